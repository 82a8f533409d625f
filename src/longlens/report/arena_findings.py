"""What records say about how far attention gets on the Long Range Arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from longlens.report.cells import TableCell, filled
from longlens.report.compare import joined
from longlens.report.figures import cell_figure
from longlens.report.las_findings import Answer
from longlens.report.results import Results

OURS = "the task's labels"
# Marks of recipes that stand apart, and what is said of them.
MARKED = {
    "collapsed": "trained with inputs that values of subexpressions shorten",
    "more labels": "trained on the values of subexpressions as well, labels that no published run "
    "had",
}


def how_far(results: Results) -> Answer | None:
    """The best recipe of each task by validation, their mean, and the best published one's."""
    experiment = next((e for e in results.experiments if e.name == "lasplus"), None)
    if experiment is None:
        return None
    chosen: dict[str, dict[str, TableCell]] = {kind: {} for kind in (OURS, *MARKED)}
    for cell in filled(experiment):
        if cell.mean is None:
            continue
        kind = OURS if cell.comparable else next((m for m in MARKED if m in dict(cell.marks)), "")
        if not kind:
            continue
        best = chosen[kind]
        if _validation(cell) > _validation(best.setdefault(cell.column, cell)):
            best[cell.column] = cell
    fair = chosen.pop(OURS)
    tasks = list(fair)
    theirs = _best_published(experiment.published, tasks)
    if not tasks:
        return None
    rows = {task: {OURS: fair[task]} | {m: best[task] for m, best in chosen.items() if task in best}
            for task in tasks}  # fmt: skip
    goals = {} if theirs is None else {f"{theirs[0]}, published": theirs[1]}
    figure = cell_figure(results, rows, f"Test {fair[tasks[0]].metric.label}", goals)
    evidence = {f"t-{experiment.name}": experiment.title}
    return Answer(_short(fair, chosen, theirs), _sentences(fair, chosen), [figure], evidence)


def _validation(cell: TableCell) -> float:
    """The mean on the validation split, by which recipes are chosen; without one, 0."""
    values = [cell.metric.value(r.metrics.get("validation") or {}) for r, _ in cell.scored]
    known = [value for value in values if value is not None]
    return mean(known) if known else 0.0


def _best_published(
    published: Mapping[str, Mapping[str, float]], tasks: Sequence[str]
) -> tuple[str, dict[str, float]] | None:
    """The published model with the best mean over these tasks, of those that have all of them."""
    whole = {row: {task: numbers[task] for task in tasks} for row, numbers in published.items()
             if tasks and all(task in numbers for task in tasks)}  # fmt: skip
    if not whole:
        return None
    best = max(whole, key=lambda row: mean(whole[row].values()))
    return best, whole[best]


def _short(
    fair: Mapping[str, TableCell],
    apart: Mapping[str, Mapping[str, TableCell]],
    theirs: tuple[str, dict[str, float]] | None,
) -> str:
    show = next(iter(fair.values())).metric.show
    said = _numbers(fair)
    if len(fair) > 1:
        average = show(mean(cell.mean or 0.0 for cell in fair.values()))
        said = f"{average} on average over {joined(list(fair))}"
    if theirs is not None:
        said += f"; {theirs[0]} is published with {show(mean(theirs[1].values()))}"
    marked: dict[str, list[str]] = {}
    for mark, cells in apart.items():
        for task, cell in cells.items():
            marked.setdefault(task, []).append(f"{show(cell.mean)} ({mark})")
    more = joined([f"{joined(numbers)} on {task}" for task, numbers in marked.items()])
    return f"{said}." + (f" Apart: {more}." if more else "")


def _numbers(cells: Mapping[str, TableCell]) -> str:
    return joined([f"{cell.metric.show(cell.mean)} on {task}" for task, cell in cells.items()])


def _sentences(
    fair: Mapping[str, TableCell], apart: Mapping[str, Mapping[str, TableCell]]
) -> list[str]:
    said = [
        f"{task}: {cell.text()} by “{cell.row}”, {MARKED[mark]} ({_seeds(cell)})."
        for mark, cells in apart.items()
        for task, cell in cells.items()
    ]
    return said + [
        f"{task}: {cell.text()} by “{cell.row}”, chosen on validation ({_seeds(cell)})."
        for task, cell in fair.items()
    ]


def _seeds(cell: TableCell) -> str:
    return f"{len(cell.values)} seeds" if len(cell.values) > 1 else "a single run"
