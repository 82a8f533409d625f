"""What records say about LaS: against softmax attention, part by part, choice by choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longlens.report.cells import TableCell, filled, subexpressions
from longlens.report.compare import Difference, Setting, grouped, joined, model_of, settings
from longlens.report.figures import Rows, cell_figure
from longlens.report.layout import Figure
from longlens.report.results import Results

PAPER = ("table2", "table4", "table8", "figure3", "readings")  # at the paper's settings
NAMES = {"softmax": "softmax attention", "LaS": "LaS", "L": "decay alone (L)",
         "S": "smoothing alone (S)"}  # fmt: skip
ON_TEST = "selected on test"


@dataclass(frozen=True)
class Answer:
    """What records say: in short, in sentences, in figures; ``evidence`` is address to title."""

    short: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------- LaS against softmax


def helps(results: Results) -> Answer | None:
    """Whether LaS is ahead where all else is as the paper has it."""
    chosen = [s for s in _pairs(results, PAPER) if s.cells["LaS"][0].row == "LaS"]
    return _compared(results, _first(chosen))


def with_rotary(results: Results) -> Answer | None:
    """The same with rotary positions, and what it was without in the same experiments."""
    pairs = [s for s in _pairs(results) if not _pretrained(s) and not _more_labels(s)]
    chosen = [s for s in pairs if s.options.get("positions") == "rotary"]
    answer = _compared(results, chosen, most=3)
    told = [s for s in chosen if s.difference("LaS").margin is not None]
    if answer is not None and 0 < len(told) < len(chosen):  # several seeds say more
        once = joined(list(dict.fromkeys(s.column for s in chosen if s not in told)))
        short = _against_softmax(_differences(told), 3).removesuffix(".")
        answer = replace(answer, short=f"{short}; single runs on {once}.")
    places = {(s.experiment.name, s.column) for s in chosen}
    without = [s for s in pairs if (s.experiment.name, s.column) in places
               and s.options.get("positions") in (None, "none")]  # fmt: skip
    if answer is None or not without:
        return answer
    said = f"Without positions, in the same experiments, it is {grouped(_differences(without), 1)}."
    return replace(answer, sentences=[said, *answer.sentences])


def with_pretraining(results: Results) -> Answer | None:
    """The same where models learn to reconstruct first, or beside the labels."""
    return _compared(results, list(filter(_pretrained, _pairs(results))))


def cannot(results: Results) -> Answer | None:
    """Tasks that are neither local nor smooth, and the sums of ListOps."""
    pairs = _pairs(results, ["table7", "subtrees", "scratchpad"])
    sums = [s for s in pairs if s.experiment.name == "table7" or s.column == "sum mod 10"]
    answer = _compared(results, sums)
    if answer is None:
        return None
    surest = _first(sorted(sums, key=lambda s: -min(len(c[0].values) for c in s.cells.values())))
    answer = replace(answer, short=_against_softmax(_differences(surest)))
    if "behind" in answer.short:
        return answer
    return replace(answer, short=f"Nothing that was tried. {answer.short}")


def _more_labels(setting: Setting) -> bool:
    """Runs that learn sums from the values of subexpressions: another question (:func:`cannot`)."""
    return any(subexpressions(r) for c in setting.cells["LaS"] for r in c.records)


def _pretrained(setting: Setting) -> bool:
    protocol = str(setting.options.get("protocol"))
    return "pretrain" in protocol or "denoise" in protocol


def _pairs(results: Results, names: Sequence[str] = ()) -> list[Setting]:
    """Settings with LaS and softmax, of experiments of these names in order, or of all tables.

    Of all tables: where a run fills several columns, the first, so that it counts once.
    """
    every = [e for e in results.experiments if e.kind == "table" and e.metric != "ratio"]
    by_name = {e.name: e for e in results.experiments}
    chosen = [by_name[name] for name in names if name in by_name] if names else every
    found = [s for s in settings(chosen) if {"LaS", "softmax"} <= s.cells.keys()]
    return (
        found
        if names
        else [s for s in found if s.column == next(iter(s.experiment.reads), s.column)]
    )


def _first(chosen: Iterable[Setting]) -> list[Setting]:
    """The first setting of every column."""
    first: dict[str, Setting] = {}
    for setting in chosen:
        first.setdefault(setting.column, setting)
    return list(first.values())


def _differences(chosen: Sequence[Setting]) -> list[Difference]:
    """Every LaS row against softmax; columns with several of them name the row, too."""
    columns = [s.column for s in chosen for _ in s.cells["LaS"]]
    return [
        Difference(
            s.column if columns.count(s.column) == 1 else f"{s.column}, “{cell.row}”",
            cell,
            s.cells["softmax"][0],
        )
        for s in chosen
        for cell in s.cells["LaS"]
    ]


def _compared(results: Results, chosen: Sequence[Setting], most: int = 5) -> Answer | None:
    if not chosen:
        return None
    differences = _differences(chosen)
    rows = {d.label: {NAMES["softmax"]: d.theirs, NAMES["LaS"]: d.ours} for d in differences}
    said = list(map(_in_full, differences))
    short = _against_softmax(differences, most)
    return Answer(short, said, _figures(results, rows), _evidence(chosen))


def _against_softmax(differences: Sequence[Difference], most: int = 5) -> str:
    return f"Against softmax attention LaS is {grouped(differences, most)}."


def _in_full(d: Difference) -> str:
    numbers = f"{d.label}: LaS {d.ours.text()}, softmax attention {d.theirs.text()}"
    said = f"{numbers}, a difference of {d.amount()}{d.unit} ({d.evidence()})."
    gap = d.ours.difference
    if gap is None:
        return said
    show = d.ours.metric.show
    side = "more" if gap < 0 else "less"
    return f"{said} The paper reports {show(d.ours.published)} for LaS, {show(abs(gap))} {side}."


def _evidence(chosen: Sequence[Setting]) -> dict[str, str]:
    return {f"t-{s.experiment.name}": s.experiment.title for s in chosen}


def _figures(results: Results, rows: Rows) -> list[Figure]:
    """A figure for each metric."""
    metrics = dict.fromkeys(cell.metric for cells in rows.values() for cell in cells.values())
    by = {m: {r: c for r, c in rows.items() if next(iter(c.values())).metric == m} for m in metrics}
    return [cell_figure(results, some, f"Test {m.label}") for m, some in by.items()]


# ---------------------------------------------------------------------- decay or smoothing


def which_part(results: Results) -> Answer | None:
    """What decay alone and smoothing alone are worth."""
    pairs = _pairs(results, (*PAPER, "lineup"))
    chosen = _first(s for s in pairs if {"L", "S"} <= s.cells.keys())
    if not chosen:
        return None
    rows = {s.column: {NAMES[m]: s.cells[m][0] for m in NAMES} for s in chosen}
    told = [s for s in chosen if s.difference("S").margin is not None]
    once = [s for s in chosen if s not in told]
    short = [
        f"{part} alone is {grouped([s.difference(model) for s in told or once])}"
        for part, model in (("Smoothing", "S"), ("decay", "L"))
    ]
    if told and once:
        short.append(f"single runs on {joined([s.column for s in once])}")
    return Answer(
        f"{'; '.join(short)}.",
        list(map(_parts, [*told, *once])),
        _figures(results, rows),
        _evidence(chosen),
    )


def _parts(setting: Setting) -> str:
    words = [
        f"{NAMES[model]} {d.amount()}{d.unit} ({d.evidence()})"
        for model in ("S", "L")
        for d in [setting.difference(model)]
    ]
    best = max(("S", "L"), key=lambda model: setting.difference(model).value)
    both = setting.difference("LaS", best)
    side = {"ahead": "ahead of", "behind": "behind", "level": "not to be told apart from"}
    word = side[both.verdict.removesuffix(" once")]
    together = f"LaS, both together, is {word} {NAMES[best]}: {both.amount()}{both.unit}"
    return f"{setting.column}: {joined(words)}. {together} ({both.evidence()})."


# ---------------------------------------------------------------------- which semantics


def semantics(results: Results) -> Answer | None:
    """Which of the choices that the paper leaves open gives its numbers, task by task."""
    tables = {e.name: e for e in results.experiments if e.name in ("readings", "table2")}
    if "readings" not in tables:
        return None
    cells = [c for e in tables.values() for c in filled(e)
             if c.is_of_one_model and model_of(c.scored[0][0]) == "LaS"
             and (e.name == "readings" or c.row == "LaS")]  # fmt: skip
    cells.sort(key=lambda c: c.mean or 0, reverse=True)
    declared = [row for row in tables["readings"].rows if not row.startswith("softmax")]
    short, said, figures = [], [], []
    for column, goal in tables["readings"].published.get("LaS", {}).items():
        here = [c for c in cells if c.column == column]
        usual = sorted((c for c in here if c.row == "LaS"), key=lambda c: -len(c.values))
        here = [c for c in here if c not in usual[1:]]  # of both experiments that with more seeds
        fair = [c for c in here if ON_TEST not in dict(c.marks)]
        if fair and len(here) > 1:
            short.append(_nearest(column, fair, goal))
            said.append(_tried(column, here, fair, goal, len(declared)))
            rows = {_name(c): {"ours": c} for c in here}
            title = f"{column}: every choice that was tried, test {fair[0].metric.label}"
            goals = {"published": dict.fromkeys(rows, goal)}
            figures.append(cell_figure(results, rows, title, goals))
    evidence = {f"t-{name}": table.title for name, table in tables.items()}
    return Answer(" ".join(short), said, figures, evidence) if said else None


def _name(cell: TableCell) -> str:
    return "as this library reads it" if cell.row == "LaS" else cell.row


def _reaches(cell: TableCell, goal: float) -> bool:
    """Whether a published number is within two standard deviations over seeds."""
    return (cell.mean or 0) + 2 * (cell.deviation or 0) >= goal


def _nearest(column: str, fair: Sequence[TableCell], goal: float) -> str:
    hits = [f"“{_name(c)}”" for c in fair if _reaches(c, goal)]
    show = fair[0].metric.show
    if hits:
        return f"{column}: {joined(hits)} reach{'es' * (len(hits) == 1)} {show(goal)}."
    return f"{column}: none so far; {show(fair[0].mean)} at best, {show(goal)} published."


def _tried(
    column: str, here: Sequence[TableCell], fair: Sequence[TableCell], goal: float, declared: int
) -> str:
    best = fair[0]
    show = best.metric.show
    runs = f"{len(best.values)} seeds" if len(best.values) > 1 else "a single run"
    if len(best.values) == 1 and len(fair) > 2:
        runs += f", the best of {len(fair)} and so probably flattered"
    side = "reaches" if _reaches(best, goal) else "comes nearest to"
    said = [
        f"{column}: {len(here)} of {declared} choices have been run; “{_name(best)}” {side} "
        f"the published {show(goal)} with {best.text()} ({runs})"
    ]
    said += [f"our default has {c.text()}" for c in fair[1:] if c.row == "LaS"]
    said += [f"where the test split chooses the step, {c.text()}, an upper bound" for c in here
             if c not in fair][:1]  # fmt: skip
    return "; ".join(said) + "."
