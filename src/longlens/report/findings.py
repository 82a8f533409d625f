"""Findings: questions, and what the records answer, in sentences that rules make from records.

A question without records says which command would make them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from longlens.report import las_findings as las
from longlens.report import other_findings as other
from longlens.report.arena_findings import how_far
from longlens.report.decay_findings import other_decays
from longlens.report.las_findings import Answer
from longlens.report.layout import Part
from longlens.report.length_findings import longer
from longlens.report.results import Results


@dataclass(frozen=True)
class Question:
    """What readers ask; ``answer`` reads the records, ``command`` would make them."""

    key: str
    words: str
    answer: Callable[[Results], Answer | None]
    command: str


QUESTIONS = (
    Question("helps", "Does LaS help at the paper's settings?", las.helps,
             "longlens run table2 --only LaS --only Softmax --seeds 3"),
    Question("part", "Which part does it, decay or smoothing?", las.which_part,
             "longlens run table2 --only LaS --only L --only S --only Softmax --seeds 3"),
    Question("rotary", "What is left of it with rotary positions?", las.with_rotary,
             "longlens run minutes --only '*rotary, Muon 1e-3' --seeds 3"),
    Question("pretraining", "And with pretraining?", las.with_pretraining,
             "longlens run lasplus --only '*in minutes*' --only Text --seeds 3"),
    Question("semantics", "Which choices give the paper's numbers?", las.semantics,
             "longlens run readings --seeds 3"),
    Question("arena", "How far does attention get on the Long Range Arena?", how_far,
             "longlens run lasplus --only 'LaS+ in minutes' --only ListOps --only Text"),
    Question("cannot", "What can it not do?", las.cannot, "longlens run table7 --seeds 5"),
    Question("decays", "Do other decays or smoothers do better?", other_decays,
             "longlens run decays --only Text"),
    Question("longer", "Who keeps its accuracy on longer examples?", longer,
             "longlens run lengths --only '*flip-flop' --only '*induction' --seeds 3"),
    Question("speed", "How fast is it?", other.how_fast,
             "longlens bench ops --output results/ops.csv"),
    Question("range", "Which tasks are long-range?", other.long_range, "longlens atlas"),
)  # fmt: skip


def findings(results: Results) -> list[Part]:
    """A contents, and every question with its answer; where none has one, which model is best."""
    answers = {question: question.answer(results) for question in QUESTIONS}
    if not any(answers.values()):
        answers = {q: a for q in [BEST] if (a := q.answer(results))}
    points = [(q.words, a.short if a else "Not measured yet.", q.key) for q, a in answers.items()]
    parts = [_part(question, answer) for question, answer in answers.items()]
    return [Part("Findings", points=points), *parts] if parts else []


BEST = Question("best", "Which model is best?", other.best, "longlens train --help")


def _part(question: Question, answer: Answer | None) -> Part:
    if answer is None:
        command = Markup("Not among these records; <code>{}</code> would tell.")
        return Part(question.words, question.key, text=[command.format(question.command)])
    rest = answer.sentences[1:]
    more = Part("In more numbers", f"{question.key}-numbers", notes=rest, folded=True)
    return Part(
        question.words,
        question.key,
        answer=answer.short,
        text=answer.sentences[:1],
        figures=answer.figures,
        evidence=[(title, address) for address, title in answer.evidence.items()],
        parts=[more] if rest else [],
    )
