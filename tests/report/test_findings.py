"""Findings are written by rules: other records, other sentences."""

import inspect
import shlex
from dataclasses import replace

import pytest

from longlens.cli import run
from longlens.experiments.catalog import find
from longlens.report.compare import Difference, settings
from longlens.report.figures import chances, overview
from longlens.report.findings import BEST, QUESTIONS, findings
from longlens.report.read import STATED
from longlens.report.results import Bench, Measurement, Results
from longlens.runs.record import Record, given_options
from longlens.runs.results import ResultTable
from longlens.training.augment.image import AugmentImage
from tests.report.test_page import audit

ASK = {question.key: question.answer for question in QUESTIONS}
MIXERS = {"softmax": "softmax", "LaS": "las", "L": "l", "S": "s"}


def runs(row, values, column="Text", mixer=None, metric="accuracy", selected_on=None, **options):
    """One finished run a value."""
    las = {} if "softmax" in row else {"mixer_options": {"window": 5}}
    return [
        Record(
            status="finished", row=row, column=column, seed=seed,
            options={"task": column.lower(), "mixer": mixer or MIXERS[row], **las, **options},
            data={"selected_on": selected_on} if selected_on else {},
            metrics={"test": {metric: value}},
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip


def results(*records, name="table2", published=None, **header):
    header = {"published": published or {}, **header}
    flat = [record for group in records for record in group]
    return Results((ResultTable.from_json(header, flat, name),))


LOW, HIGH = (0.645, 0.65, 0.655), (0.725, 0.73, 0.735)


def test_the_interval_is_welchs():
    (setting,) = settings(results(runs("softmax", [0.01, 0.02, 0.03]),
                                  runs("LaS", [0.02, 0.03, 0.04])).experiments)  # fmt: skip
    difference = setting.difference("LaS")
    assert difference.value == pytest.approx(1.0)
    assert difference.margin == pytest.approx(2.776 * (2 / 3) ** 0.5)
    assert difference.verdict == "level"


def test_who_is_ahead_changes_with_the_records():
    answer = ASK["helps"](results(runs("softmax", LOW), runs("LaS", HIGH)))
    assert answer.short == "Against softmax attention LaS is ahead on Text (+8.0 points)."
    assert "LaS 73.00 ± 0.50, softmax attention 65.00 ± 0.50" in answer.sentences[0]
    assert "95 % interval +6.9 to +9.1; 3 seeds each" in answer.sentences[0]
    answer = ASK["helps"](results(runs("softmax", HIGH), runs("LaS", LOW)))
    assert answer.short == "Against softmax attention LaS is behind on Text (−8.0 points)."
    answer = ASK["helps"](results(runs("softmax", LOW), runs("LaS", (0.735, 0.74, 0.745))))
    assert "+9.0 points" in answer.short


def test_no_more_is_said_than_the_spread_allows():
    near = ASK["helps"](results(runs("softmax", LOW), runs("LaS", (0.64, 0.66, 0.665))))
    assert near.short.endswith("LaS is not to be told apart on Text (+0.5 points).")
    once = ASK["helps"](results(runs("softmax", LOW), runs("LaS", (0.8,))))
    assert once.short.endswith("LaS is ahead in single runs on Text (+15.0 points).")
    assert "a single run on one side" in once.sentences[0]
    image = runs("softmax", (0.5,), "Image"), runs("LaS", (0.4,), "Image")
    both = ASK["helps"](results(runs("softmax", LOW), runs("LaS", HIGH), *image))
    assert both.short == (
        "Against softmax attention LaS is ahead on Text (+8.0 points) and behind in single runs on "
        "Image (−10.0 points)."
    )


def test_what_was_published_is_compared():
    published = {"LaS": {"Text": 79.28}}
    answer = ASK["helps"](results(runs("softmax", LOW), runs("LaS", HIGH), published=published))
    assert answer.sentences[0].endswith("The paper reports 79.28 for LaS, 6.28 more.")
    assert "hollow: published" in answer.figures[0][0]


def test_only_runs_that_differ_in_las_alone_are_compared():
    assert ASK["helps"](results(runs("softmax", LOW, lr=1e-3), runs("LaS", HIGH, lr=2e-3))) is None
    other = runs("LaS", HIGH, selected_on="test")
    assert ASK["helps"](results(runs("softmax", LOW), other)) is None
    quick = results(runs("softmax", LOW), runs("LaS", HIGH), quick=True)
    assert ASK["helps"](quick) is None


def test_seeds_with_other_options_are_compared_with_nothing():
    seeds = [runs("LaS", HIGH)[0], runs("LaS", HIGH, steps=200)[1]]
    assert ASK["helps"](results(runs("softmax", LOW), runs("LaS", HIGH))) is not None
    assert ASK["helps"](results(runs("softmax", LOW), seeds)) is None
    said = BEST.answer(results(runs("softmax", LOW), seeds, name="mine"))
    assert "LaS" not in said.short


def test_a_stated_default_is_no_difference():
    def answer(**stated):
        plain = runs("softmax", LOW, augment_options={"shift": 0.125})
        augment = {"shift": 0.125, **stated}
        return ASK["helps"](results(plain, runs("LaS", HIGH, augment_options=augment)))

    assert "+8.0 points" in answer(policy=True).short
    assert answer(policy=False) is None
    default = inspect.signature(AugmentImage).parameters["policy"].default
    assert default is STATED["augment_options"]["policy"]


def test_bits_count_downwards():
    bits = dict(metric="bits_per_token", name="table8")
    records = [runs(row, values, "Enwik8", metric="bits_per_token")
               for row, values in (("softmax", (1.3, 1.31)), ("LaS", (1.2, 1.21)))]  # fmt: skip
    answer = ASK["helps"](results(*records, **bits))
    assert answer.short.endswith("LaS is ahead on Enwik8 (+0.100 bits).")


def parts(decay, smoothing):
    return results(runs("softmax", LOW), runs("L", decay), runs("S", smoothing), runs("LaS", HIGH))


def test_which_part_helps():
    answer = ASK["part"](parts(LOW, HIGH))
    assert answer.short == (
        "Smoothing alone is ahead on Text (+8.0 points); decay alone is not to be told apart on "
        "Text (0.0 points)."
    )
    assert "is not to be told apart from smoothing alone (S): 0.0" in answer.sentences[0]
    swapped = ASK["part"](parts(HIGH, LOW)).short
    assert "Smoothing alone is not to be told apart on Text (0.0 points); decay alone is" in swapped
    single = ASK["part"](parts((0.66,), (0.70,))).short
    assert "Smoothing alone is ahead in single runs on Text (+5.0 points); decay" in single


def test_many_tasks_are_named_or_counted():
    def ahead(count):
        tasks = [f"T{n}" for n in range(count)]
        records = [runs(r, v, t) for t in tasks for r, v in (("softmax", LOW), ("LaS", HIGH))]
        return ASK["helps"](results(*records)).short

    assert ahead(3).endswith("LaS is ahead on T0 (+8.0), T1 (+8.0) and T2 (+8.0 points).")
    assert ahead(6).endswith("LaS is ahead in 6 settings (+8.0 to +8.0 points).")


def test_positions_and_pretraining_are_told_apart():
    rotary, pretrain = dict(positions="rotary"), dict(positions="rotary", protocol="pretrain")
    both = results(
        *(runs(row, LOW, "Image", **rotary) for row in ("softmax", "LaS")),
        runs("softmax", HIGH, "Mail", **pretrain),
        runs("LaS", LOW, "Mail", **pretrain),
    )
    assert "not to be told apart on Image (0.0 points)" in ASK["rotary"](both).short
    assert ASK["pretraining"](both).short.endswith("LaS is behind on Mail (−8.0 points).")
    values = dict(positions="rotary", protocol="scratchpad+augment")  # a question of its own
    more = results(runs("softmax", HIGH, **values), runs("LaS", LOW, **values))
    assert ASK["rotary"](more) is None
    assert ASK["helps"](results(runs("softmax", LOW))) is None
    assert ASK["pretraining"](results(runs("softmax", LOW), runs("LaS", HIGH))) is None


def test_what_is_left_is_compared_with_what_there_was():
    rotary = dict(positions="rotary")
    some = [
        runs("softmax", LOW),
        runs("LaS", HIGH),
        runs("softmax, rotary", LOW, mixer="softmax", **rotary),
        runs("LaS, rotary", (0.67, 0.675, 0.68), mixer="las", **rotary),
    ]
    answer = ASK["rotary"](results(*some))
    assert answer.short.endswith("LaS is ahead on Text (+2.5 points).")
    assert answer.sentences[0] == (
        "Without positions, in the same experiments, it is ahead on Text (+8.0 points)."
    )
    once = runs("softmax", [0.6], "Image", **rotary), runs("LaS", [0.5], "Image", **rotary)
    answer = ASK["rotary"](results(*some, *once))
    assert answer.short.endswith("LaS is ahead on Text (+2.5 points); single runs on Image.")
    assert any("Image: LaS 50.00" in sentence for sentence in answer.sentences)


READINGS = dict(name="readings", published={"LaS": {"Text": 79.0}})


def test_which_choice_comes_nearest():
    some = [runs("LaS", HIGH), runs("window 3", (0.74,), mixer="las"),
            runs("on test", (0.9,), mixer="las", selected_on="test")]  # fmt: skip
    answer = ASK["semantics"](results(*some, **READINGS))
    assert answer.short == "Text: none so far; 74.00 at best, 79.00 published."
    assert (
        "“window 3” comes nearest to the published 79.00 with 74.00 (a single run)"
        in (answer.sentences[0])
    )
    assert "our default has 73.00 ± 0.50" in answer.sentences[0]
    assert "the test split chooses the step, 90.00, an upper bound" in answer.sentences[0]
    hit = ASK["semantics"](results(*some, runs("bound", (0.79, 0.795), mixer="las"), **READINGS))
    assert hit.short == "Text: “bound” reaches 79.00."
    assert ASK["semantics"](results(*some)) is None
    (table2,) = results(runs("LaS", (0.76, 0.76, 0.77, 0.77))).experiments
    two = ASK["semantics"](Results((*results(*some, **READINGS).experiments, table2)))
    assert "“as this library reads it” comes nearest" in two.sentences[0]  # the one with more seeds
    assert "3 of 3 choices" in two.sentences[0]


def test_what_it_cannot_do():
    records = [runs(row, values, column, metric="r2") for row, values, column in (
        ("softmax", (0.97, 0.98), "Select"), ("LaS", (0.78, 0.79), "Select"),
        ("softmax", (0.99, 1.0), "CumSum"), ("LaS", (0.99, 1.0), "CumSum"))]  # fmt: skip
    answer = ASK["cannot"](results(*records, name="table7", metric="r2"))
    assert answer.short.endswith(
        "LaS is behind on Select (−0.190 R²) and not to be told apart on CumSum (0.000 R²)."
    )
    answer = ASK["cannot"](results(*records[2:], name="table7", metric="r2"))
    assert answer.short.startswith("Nothing that was tried. Against softmax attention LaS is not")
    records = [runs(row, values, column) for row, values, column in (
        ("softmax", (0.4,), "sum mod 10"), ("LaS", (0.1,), "sum mod 10"),
        ("softmax", (0.9,), "MIN"), ("LaS", (0.8,), "MIN"))]  # fmt: skip
    answer = ASK["cannot"](results(*records, name="subtrees"))
    assert answer.short.endswith("LaS is behind in single runs on sum mod 10 (−30.0 points).")


def bench_of(*ratios):
    rows = [dict(shape=f"1,1,{n},1", implementation="LaS", ratio_to_plain=str(ratio), hardware="X")
            for n, ratio in enumerate(ratios)]  # fmt: skip
    return Results(benches=(Bench("ops_x", tuple(rows)),))


def test_how_fast():
    assert ASK["speed"](bench_of(1.5, 1.1)).short == (
        "LaS takes 1.10 to 1.50 times as long as plain attention (X)."
    )
    assert "2.00 times" in ASK["speed"](bench_of(2)).short
    odd = Bench("odd_x", bench_of(*range(2, 9)).benches[0].rows)  # more rows, but of another kind
    both = Results(benches=(odd, *bench_of(1.5).benches))
    assert "1.50 times" in ASK["speed"](both).short


def test_other_decays():
    decays, smoothers = {"no decay": 0, "LaS": 1, "FoX": 4}, {"no smoother": 0, "average": 8}
    records = [
        Record(status="finished", row=f"{decay}, {smoother}", column="Text",
               metrics={"test": {"accuracy": 0.6 + (d + s + (d and s) / 8) / 100}})
        for decay, d in decays.items()
        for smoother, s in smoothers.items()
    ]  # fmt: skip
    header = ResultTable(**vars(find("decays").described()))
    answer = ASK["decays"](Results((header.with_records(records),)))
    assert answer.short == (
        "Text: FoX, average 73.0 %, LaS 70.0 % and neither 60.0 % (one seed each)."
    )
    # 4 and 4 + 1 points, and 8, 8 + 1 and 8 + 1
    decay, smoother, beside = answer.sentences
    assert "LaS +1.5 ± 6.4 (2)" in decay and "FoX +4.5 ± 6.4 (2)" in decay
    assert "average +8.7 ± 1.4 (3)" in smoother
    assert "no decay +8.0 (1), LaS +9.0 (1)" in beside
    alone = [r for r in records if "no smoother" in r.row]  # nothing to say of smoothers
    assert ASK["decays"](Results((header.with_records(alone),))) is None


def test_a_decay_in_the_place_of_las():
    alibi = runs("ALiBi", (0.82, 0.83), mixer="alibi")
    answer = ASK["decays"](results(alibi, runs("LaS", HIGH)))
    assert answer.short == (
        "In the place of LaS, at the paper's settings, ALiBi is ahead on Text (+9.5 points)."
    )
    assert "ALiBi 82.50 ± 0.71, LaS 73.00 ± 0.50, a difference of +9.5" in answer.sentences[0]
    assert ASK["decays"](results(runs("LaS", HIGH))) is None


def test_a_small_difference_is_no_zero():
    near, nearer = (0.99991, 0.99992), (0.99985, 0.99986)
    pair = [runs(row, each, "CumMax", metric="r2")
            for row, each in (("softmax", near), ("LaS", nearer))]  # fmt: skip
    answer = ASK["cannot"](results(*pair, name="table7", metric="r2"))
    assert answer.short.endswith("LaS is behind on CumMax (−0.00006 R²).")


def test_longer_examples():
    experiment = find("lengths")
    values = {"softmax, rotary": (0.99, 0.8, 0.6, 0.5), "LaS": (1.0, 0.9, 0.8, 0.7)}
    records = [
        Record(status="finished", row=f"{row}, flip-flop", column=column, seed=seed,
               metrics={"test": {"accuracy": value + 0.01 * seed}})
        for row, each in values.items()
        for column, value in zip(experiment.columns, each, strict=True)
        for seed in range(2)
    ]  # fmt: skip
    header = ResultTable(**vars(experiment.described()))
    assert len(header.with_records(records).runs) == 4  # each with a record in four columns
    answer = ASK["longer"](Results((header.with_records(records),)))
    assert answer.short == "At 8 times the length of training: flip-flop LaS 70.5 %."
    assert answer.sentences[1].startswith(
        "flip-flop, 2 seeds each: softmax, rotary 99.50 ± 0.71 (× 1)"
    )
    best = [
        replace(r, metrics={"test": {"accuracy": 0.9}}) if "soft" in r.row else r for r in records
    ]
    answer = ASK["longer"](Results((header.with_records(best),)))
    assert "flip-flop softmax, rotary 90.0 % and LaS 70.5 %" in answer.short


def test_which_tasks_are_long_range():
    values = dict(audit().values)
    values["verdict"] = {"category": "short range", "decided": True, "confidence": 0.97}
    values["best"] = {"gain": 0.75}
    found = Results(measurements=(Measurement("audit_image", "audit", values),))
    assert "1 of 1 audits with trained models are decided: short range: image." in (
        ASK["range"](found).short
    )
    values["verdict"] = {"category": "open", "decided": False, "seeds": 1}
    assert ASK["range"](found).short.startswith("None of 1 audits")


def test_questions_without_records_name_a_command():
    found = findings(results(runs("softmax", LOW), runs("LaS", HIGH)))
    assert found[0].points[0][1].startswith("Against softmax attention")
    missing = [part for part in found if any("would tell" in words for words in part.text)]
    assert [part.key for part in missing] == [
        "part", "rotary", "pretraining", "semantics", "arena", "cannot", "decays", "longer",
        "speed", "range",
    ]  # fmt: skip


def test_how_far_attention_gets():
    """Recipes are chosen on validation; more labels stand apart and enter no mean."""

    def judged(records, validation):
        return [replace(r, metrics={**r.metrics, "validation": {"accuracy": validation}})
                for r in records]  # fmt: skip

    rows = [
        judged(runs("first", (0.91,), mixer="las"), 0.80),
        judged(runs("second", (0.89, 0.90), mixer="las"), 0.85),
        judged(runs("first", (0.6,), "ListOps", mixer="las"), 0.60),
    ]
    more = [
        *judged(runs("written", (0.99,), "ListOps", "las", protocol="scratchpad+augment"), 0.99),
        *judged(runs("grown", (0.7,), "ListOps", "las", collapse_depth=2), 0.7),
    ]
    published = {"MEGA": {"Text": 90.0, "ListOps": 63.0}, "Old": {"Text": 80.0, "ListOps": 62.0},
                 "Half": {"Text": 99.0}}  # fmt: skip
    found = results(*rows, more, name="lasplus", published=published)
    answer = ASK["arena"](found)
    assert answer.short == (
        "74.75 on average over Text and ListOps; MEGA is published with 76.50. Apart: "
        "70.00 (collapsed) and 99.00 (more labels) on ListOps."
    )
    assert "inputs that values of subexpressions shorten" in answer.sentences[0]
    assert "trained on the values of subexpressions" in answer.sentences[1]
    assert answer.sentences[2] == "Text: 89.50 ± 0.71 by “second”, chosen on validation (2 seeds)."
    assert ASK["arena"](results(more, name="lasplus", published=published)) is None
    assert ASK["arena"](results(*rows, name="minutes")) is None


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_the_command_that_a_question_names_would_answer_it(question):
    _, command, name, *words = [*shlex.split(question.command), ""]
    if command != "run":
        assert question.key in ("speed", "range") and name in ("ops", "")
        return
    args = run.parser().parse_args([name, *filter(None, words)])
    experiment = find(name)
    records = [
        Record(status="finished", name=cell["name"], seed=cell["seed"],
               options=given_options(cell), metrics={"test": {experiment.metric: 0.5}},
               transfer={n: {experiment.metric: 0.5} for n in cell.get("transfer_options", {})})
        for cell in experiment.cells(args.only, args.seeds)
    ]  # fmt: skip
    assert question.answer(Results((experiment.results(records),))) is not None


def test_plain_runs_are_ranked():
    plain = results(runs("mine", HIGH, mixer="s4"), runs("other", LOW, mixer="lru"), name="runs")
    found = findings(plain)
    assert [part.key for part in found] == ["", BEST.key]
    assert found[1].answer.startswith("On Text mine is ahead of other: 73.00 ± 0.50 against 65.00")
    near = results(runs("mine", LOW, mixer="s4"), runs("other", LOW, mixer="lru"), name="runs")
    assert "mine is not to be told apart from other" in findings(near)[1].answer
    assert findings(Results()) == []


def test_equal_seeds_have_no_interval():
    (setting,) = settings(results(runs("softmax", (1, 1)), runs("LaS", (1, 1))).experiments)
    difference = setting.difference("LaS")
    assert isinstance(difference, Difference) and difference.margin == 0.0
    assert difference.verdict == "level"


def test_chance_is_a_line_where_an_audit_knows_it():
    (table,) = results(runs("softmax", LOW), runs("LaS", HIGH), kind="curve").experiments
    measured = {"chance": 0.5, "majority": 0.6}
    known = Measurement("audit_text", "audit", {"task": "text", "diagnostics": measured})
    found = Results((table,), (known,))
    levels = {"chance": 50.0, "always the commonest class": 60.0}
    assert chances(found) == {"text": {"chance": 50.0}, "text {}": levels}
    for drawn in ASK["helps"](found).figures[0]:
        assert ">chance<" in drawn and ">always the commonest class<" in drawn
    assert ">chance<" not in ASK["helps"](Results((table,))).figures[0][0]
    other = [replace(r, options={**r.options, "task_options": {"a": 1}}) for r in table.records]
    changed = Results((replace(table, records=tuple(other)),), (known,))
    for drawn in ASK["helps"](changed).figures[0]:  # of other data only chance is known
        assert ">chance<" in drawn and ">always the commonest class<" not in drawn
    measured["majority"] = 0.502
    assert chances(found) == {"text": {"chance": 50.0}, "text {}": {"chance": 50.0}}
    numbers = runs("LaS", HIGH, "64"), runs("LaS", LOW, "256")
    (over,) = results(*numbers, kind="curve", x_label="D").experiments
    known = {task: {"chance": 50.0} for task in ("64", "256")}
    assert "chance" not in overview(over, "t", known=known)[0][1]  # two tasks, no common line
    same = replace(over, records=tuple(replace(r, options={"task": "64"}) for r in over.records))
    assert "chance: 50.0 %" in overview(same, "t", known=known)[0][1]
