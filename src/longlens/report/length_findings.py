"""What records say about examples longer than those of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longlens.charts import Line, line_chart
from longlens.report.cells import TableCell, table
from longlens.report.compare import joined
from longlens.report.las_findings import Answer
from longlens.report.layout import Figure, full_width
from longlens.report.results import Results

Rows = dict[str, list[TableCell]]  # of one task: model to its cells, in the order of lengths


def longer(results: Results) -> Answer | None:
    """What models that were trained on short examples keep on longer ones."""
    found = next((e for e in results.experiments if e.name == "lengths"), None)
    tasks = {} if found is None else _by_task(table(found))
    if found is None or not tasks:
        return None
    short = "; ".join(_kept(task, rows) for task, rows in tasks.items())
    said = [
        "Every model is trained at one length; lines are means over seeds.",
        *(_in_full(task, rows) for task, rows in tasks.items()),
    ]
    figures = [_figure(task, rows, found.x_label) for task, rows in tasks.items()]
    return Answer(
        f"At {found.columns[-1]} times the length of training: {short}.",
        said,
        figures,
        {f"t-{found.name}": found.title},
    )


def _by_task(cells: Mapping[str, Mapping[str, TableCell]]) -> dict[str, Rows]:
    """Rows are named after a model and a task."""
    tasks: dict[str, Rows] = {}
    for row, columns in cells.items():
        model, _, task = row.rpartition(", ")
        if all(cell.is_of_one_model for cell in columns.values()):
            tasks.setdefault(task, {})[model] = list(columns.values())
    return tasks


def _kept(task: str, rows: Rows) -> str:
    """Who is best where examples are longest, and LaS and softmax attention beside it."""
    order = sorted(rows, key=lambda model: rows[model][-1].mean or 0, reverse=True)
    shown = [order[0], *(model for model in order[1:] if model in ("LaS", "softmax"))]
    words = [f"{model} {rows[model][-1].mean:.1f} %" for model in shown]
    return f"{task} {joined(words)}"


def _in_full(task: str, rows: Rows) -> str:
    each = [
        f"{model} " + ", ".join(f"{cell.text()} (× {cell.column})" for cell in cells)
        for model, cells in rows.items()
    ]
    seeds = sorted({len(cell.values) for cells in rows.values() for cell in cells})
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"{task}, {count} seed{'s' * (count != '1')} each: {'; '.join(each)}."


def _figure(task: str, rows: Rows, x_label: str) -> Figure:
    lines = [
        Line(model, [(float(c.column), c.mean or 0.0) for c in cells], style, mark=True)
        for style, (model, cells) in enumerate(rows.items())
    ]
    first: Sequence[TableCell] = next(iter(rows.values()))
    return full_width(
        lambda width: line_chart(
            f"{task}: trained at 1, tested beyond", lines, x_label,
            f"test {first[0].metric.label}", log_x=True,
            x_ticks=[float(c.column) for c in first], width=width,
        )
    )  # fmt: skip
