"""Pictures of an experiment: its numbers, its curves, its results by group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from longlens.charts import Line, dot_chart, line_chart
from longlens.report.cells import SAME, Metric, TableCell, table
from longlens.report.layout import Figure, full_width
from longlens.report.results import Results
from longlens.runs.record import Record, thin
from longlens.runs.results import ResultTable
from longlens.tables import MISSING, Table

MOST_SERIES = 6  # of one chart of dots
MOST_LINES = 12  # of one chart of learning curves
OPERATORS = ("MIN", "MAX", "MED", "SM")  # ListOps, as its records number them


Chances = Mapping[str, Mapping[str, float]]  # data or task to the names and values of its levels


def chances(results: Results) -> Chances:
    """Chance, and what always naming the commonest class gives, in per cent, as audits know it.

    Chance is a task's, the commonest class that of its data with the same options.
    """
    known: dict[str, dict[str, float]] = {}
    for audit in (m.values for m in results.measurements if m.kind == "audit"):
        measured = audit.get("diagnostics") or {}
        chance, most = measured.get("chance", audit.get("chance")), measured.get("majority") or 0
        if chance is not None:
            task = str(audit.get("task"))
            data = _data(audit.get("options") or {}, task)
            known[task] = known[data] = {"chance": 100 * chance}
            if most > chance + 0.005:
                known[data] = known[task] | {"always the commonest class": 100 * most}
    return known


def _data(options: Mapping[str, Any], task: str) -> str:
    """A name for the data of a run or an audit."""
    return f"{task} {json.dumps(options.get('task_options') or {}, sort_keys=True)}"


def _levels(records: Iterable[Record], metric: Metric, known: Chances) -> Mapping[str, float]:
    """Those of the data or the task of some records, if they share it and accuracy judges them."""
    options = [record.options for record in records]
    tasks = {str(each.get("task")) for each in options}
    if len(tasks) != 1 or metric.name != "accuracy":
        return {}
    task = tasks.pop()
    data = {_data(each, task) for each in options}
    return known.get(data.pop() if len(data) == 1 else task) or known.get(task, {})


def _across(levels: Mapping[str, float], lines: Sequence[Line]) -> list[Line]:
    """Levels as lines across a chart."""
    xs = [x for line in lines for x, _ in line.points]
    return [Line(f"{name}: {y:.1f} %", [(min(xs), y), (max(xs), y)], style, hollow=True)
            for style, (name, y) in enumerate(levels.items(), 6)]  # fmt: skip


def overview(
    experiment: ResultTable, title: str, width: int = 400, known: Chances | None = None
) -> list[tuple[str, str]]:
    """Our numbers beside the published ones: names and pictures, none where we have none.

    One picture where columns are few; else one a column. Rows that were published and not run here
    are shown where something stands beside them.
    """
    cells = [cell for line in table(experiment).values() for cell in line.values()]
    ours = [cell for cell in cells if cell.mean is not None]
    if not ours:
        return []
    if experiment.kind == "curve" and (picture := _over_x(experiment, title, width, known or {})):
        return [("", picture)]
    beside = {cell.column for cell in ours if cell.comparable}
    shown = [c for c in cells if c.mean is not None or (c.published and c.column in beside)]
    columns = [name for name in experiment.columns if any(c.column == name for c in shown)]
    if len(columns) <= MOST_SERIES:
        return [("", _dots(title, shown, width, known or {}))]
    by = {name: [c for c in shown if c.column == name] for name in columns}
    return [(name, _dots(name, some, width, known or {})) for name, some in by.items()]


def _dots(title: str, cells: Sequence[TableCell], width: int, known: Chances) -> str:
    """Rows as lines, columns as series; a stand-in says so, and nothing published is beside it."""
    ours: dict[str, dict[str, float]] = {}
    theirs: dict[str, dict[str, float]] = {}
    spread: dict[str, dict[str, float]] = {}
    for cell in cells:
        column = cell.column + (" *" if cell.stands_in_for else "")
        values = ours.setdefault(cell.row, {})
        if cell.mean is not None:
            values[column] = cell.mean
        if cell.deviation:
            spread.setdefault(cell.row, {})[column] = cell.deviation
        if cell.published is not None and (cell.comparable or cell.mean is None):
            theirs.setdefault(cell.row, {})[column] = cell.published
    stand_in = any(cell.stands_in_for for cell in cells)
    label = cells[0].metric.label + ("; *: stand-in data" if stand_in else "")
    there = _levels((r for cell in cells for r in cell.records), cells[0].metric, known)
    levels = {name: dict.fromkeys(ours, value) for name, value in there.items()}
    return dot_chart(
        title, ours, label, hollow=theirs, spread=spread, levels=levels, log=False, width=width
    )


def _over_x(experiment: ResultTable, title: str, width: int, known: Chances) -> str | None:
    """An experiment whose columns are numbers, as curves; None if they are none."""
    try:
        xs = {column: float(column) for column in experiment.columns}
    except ValueError:
        return None
    lines = []
    for style, (row, cells) in enumerate(table(experiment).items()):
        pairs = [(xs[column], cells[column]) for column in sorted(cells, key=xs.__getitem__)]
        ours = [(x, cell.mean) for x, cell in pairs if cell.mean is not None]
        theirs = [(x, cell.published) for x, cell in pairs if cell.published is not None]
        if theirs:
            lines.append(Line(f"{row}, published", theirs, style, mark=True, hollow=True))
        if ours:
            lines.append(Line(row, ours, style, mark=True))
    places = sorted({x for line in lines for x, _ in line.points})  # where there is something
    if not places:
        return None
    lines += _across(_levels(experiment.records, Metric(experiment.metric), known), lines)
    return line_chart(
        title, lines, experiment.x_label or "x", Metric(experiment.metric).label,
        log_x=places[0] > 0 and places[-1] >= 16 * places[0], x_ticks=places, width=width,
    )  # fmt: skip


def learning_curves(
    experiment: ResultTable, split: str, points: int, known: Chances
) -> Iterator[str]:
    """For every column a chart of its runs: ``train`` shows the loss, ``validation`` the metric.

    A run that did not finish ends with a cross.
    """
    cells = table(experiment)
    styles = {row: i for i, row in enumerate(row for row in cells if _has_runs(cells[row]))}
    metric = Metric("loss" if split == "train" else experiment.metric)
    for column in experiment.columns:
        best: list[tuple[float, list[Line]]] = []
        for row, line in cells.items():
            drawn = []
            for record in line[column].records:
                if curve := _curve(record, split, metric, points):
                    broken = not record.is_finished
                    drawn.append(Line(row, curve, styles[row], broken=broken))
            if drawn:
                ends = [one.points[-1][1] for one in drawn]
                best.append((max(ends) if metric.higher_is_better else -min(ends), drawn))
        if not best:
            continue
        kept = sorted(best, key=lambda pair: pair[0], reverse=True)[:MOST_LINES]
        lines = [one for pair in best if pair in kept for one in pair[1]]
        there = (record for row in cells.values() for record in row[column].records)
        lines += _across(_levels(there, metric, known), lines)
        name = column if experiment.kind == "table" else f"{experiment.x_label} {column}"
        if len(best) > len(kept):
            name += f": {len(kept)} best of {len(best)} rows"
        yield line_chart(name, lines, "step", f"{split} {metric.label}")


def _has_runs(cells: Mapping[str, TableCell]) -> bool:
    return any(cell.records for cell in cells.values())


def _curve(record: Record, split: str, metric: Metric, points: int) -> list[tuple[float, float]]:
    for name in (metric.name, SAME.get(metric.name, metric.name), "bits_per_token"):
        if curve := record.curves.get(f"{split}.{name}"):
            pairs = [(x, metric.value({name: y})) for x, y in curve if None not in (x, y)]
            return thin([(float(x or 0), y) for x, y in pairs if y is not None], points)
    return []


Rows = Mapping[str, Mapping[str, TableCell]]  # by label and series


def cell_figure(
    results: Results, rows: Rows, title: str, goals: Mapping[str, Mapping[str, float]] | None = None
) -> Figure:
    """Cells across the page, with their spread, what was published, and chance where it is known.

    ``goals`` are further levels, by name and row; published numbers of the cells are then left out.
    """
    metric = next(cell.metric for cells in rows.values() for cell in cells.values())
    values = {r: {s: c.mean or 0.0 for s, c in cells.items()} for r, cells in rows.items()}
    spread = {r: {s: c.deviation for s, c in cells.items() if c.deviation}
              for r, cells in rows.items()}  # fmt: skip
    theirs = {r: {s: c.published for s, c in cells.items() if c.published and c.comparable}
              for r, cells in rows.items() if goals is None}  # fmt: skip
    levels: dict[str, dict[str, float]] = {}
    for row, cells in rows.items():
        records = (record for cell in cells.values() for record in cell.records)
        for name, level in _levels(records, metric, chances(results)).items():
            levels.setdefault(name, {})[row] = level
    levels |= {name: dict(marks) for name, marks in (goals or {}).items()}
    return full_width(
        lambda width: dot_chart(
            title, values, metric.label, hollow=theirs, spread=spread, levels=levels, log=False,
            digits=1 if metric.name == "accuracy" else 3, width=width,
        )
    )  # fmt: skip


def groups(experiment: ResultTable) -> Iterator[Table]:
    """Test accuracy by group, as ListOps by operator and by depth: means over finished seeds."""
    by_place: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for row, cells in table(experiment).items():
        for column, cell in cells.items():
            for record, _ in cell.scored:
                for name, entries in record.groups().items():
                    metric, _, group = name.partition("_by_")
                    values = by_place.setdefault((column, group), {}).setdefault(row, {})
                    for key, entry in entries.items():
                        value = Metric(metric).value(entry)
                        if value is not None:
                            values.setdefault(_group_name(record, group, key), []).append(value)
    for (column, group), by_row in by_place.items():
        keys = list(dict.fromkeys(key for values in by_row.values() for key in values))
        keys.sort(key=lambda key: int(key) if key.isdigit() else 0)
        rows = [
            {"row": row} | {k: f"{mean(values[k]):.1f}" if k in values else MISSING for k in keys}
            for row, values in by_row.items()
        ]
        yield Table.of(rows, f"{experiment.title}: {column} by {group}, test accuracy (%)")


def _group_name(record: Record, group: str, key: str) -> str:
    operator = record.data.get("name") == "listops" and group == "operator"
    return OPERATORS[int(key)] if operator and int(key) < len(OPERATORS) else key
