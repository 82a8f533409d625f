"""The report as one page of HTML that needs nothing beside itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jinja2

from longlens._version import __version__
from longlens.charts import palette_css
from longlens.report.atlas import show_atlas
from longlens.report.audits import audit_failures, show_audit, summary
from longlens.report.bench import bench_conditions, bench_pictures, bench_table, title_of
from longlens.report.cells import Metric, filled, means, table
from longlens.report.figures import MOST_LINES, group_picture, groups, learning_curves, overview
from longlens.report.measurements import show_comparison, show_lens
from longlens.report.results import Bench, Results
from longlens.runs.results import ResultTable
from longlens.tables import MISSING, Table

LIMIT = 3_000_000  # bytes of a page
CURVE_POINTS = (60, 30, 12)  # a page that is too large is drawn with fewer
PICTURE = "Ours filled, published hollow"
SPEED = ("parameters", "tokens/s", "memory (MiB)", "training minutes", "hardware")


def build_page(results: Results, title: str = "longlens report") -> str:
    """Write the page.

    Raises:
        ValueError: it would be larger than ``LIMIT``, even with curves of few points.
    """
    for points in CURVE_POINTS:
        page = _render(results, title, points)
        if len(page.encode()) <= LIMIT:
            return page
    raise ValueError(f"the page has more than {LIMIT:,} bytes; choose some results with --only")


def _render(results: Results, title: str, points: int) -> str:
    folder = files("longlens.report") / "page"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    audits = [m for m in results.measurements if m.kind == "audit"]
    experiments = [_experiment(experiment, points) for experiment in results.experiments]
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        css=(folder / "style.css").read_text() + palette_css(),
        script=(folder / "sort.js").read_text(),
        facts=_facts(results),
        contents=Table.of([_content(e) for e in results.experiments], "What is here"),
        experiments=experiments,
        groups=[g for e in results.experiments for g in _groups(e)],
        benches=[_bench(bench) for bench in results.benches],
        speed=[s for e in results.experiments if (s := _speed(e)).rows],
        audits=[show_audit(m) for m in audits],
        audit_summary=summary(audits),
        lenses=[
            show(m)
            for kind, show in (
                ("atlas", show_atlas),
                ("lens", show_lens),
                ("comparison", show_comparison),
            )
            for m in results.measurements
            if m.kind == kind
        ],
        failures=Table.of(
            _failures(results.experiments)
            + [line for m in results.measurements for line in audit_failures(m)]
            + [{"status": "unreadable", "reason": problem} for problem in results.skipped],
            "Runs that did not finish",
        ),
        missing=MISSING,
    )


def _facts(results: Results) -> list[tuple[str, str]]:
    """The numbers at the top of the page."""
    records = [record for e in results.experiments for record in e.records]
    if not records:
        return []
    done = sum(record.is_finished for record in records)
    seconds = [record.train_seconds for record in records if record.train_seconds]
    days = sorted(record.started[:10] for record in records if record.started)
    facts = [
        (str(len(results.experiments)), "tables and figures"),
        (str(done), "finished runs"),
        (str(len(records) - done), "failed or stopped"),
    ]
    if seconds:
        facts.append((f"{sum(seconds) / 3600:.1f}", "hours of training"))
    if days:
        facts.append((days[0] if days[0] == days[-1] else f"{days[0]} – {days[-1]}", "date"))
    return facts


def _content(experiment: ResultTable) -> dict[str, str]:
    """A line of the table at the top: how much of an experiment was run."""
    cells = [cell for line in table(experiment).values() for cell in line.values()]
    there = [cell for cell in cells if cell.mean is not None]
    above = [cell for cell in there if cell.better]
    compared = sum(cell.difference is not None for cell in there)
    done = sum(len(cell.values) for cell in cells)
    return {
        "experiment": experiment.title,
        "cells with ours": f"{len(there)} of {len(cells)}",
        "better than published": f"{len(above)} of {compared}" if compared else MISSING,
        "finished runs": str(done),
        "failed or stopped": str(len(experiment.records) - done),
    }


def _experiment(experiment: ResultTable, points: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "name": row,
            "cells": list(cells.values()),
            "ours": any(cell.records for cell in cells.values()),
            "mean": means(experiment, cells),
            "extra": [experiment.published.get(row, {}).get(c) for c in experiment.extra],
        }
        for row, cells in table(experiment).items()
    ]
    return {
        "table": experiment,
        "metric": Metric(experiment.metric),
        "rows": [row for row in rows if not _is_empty(row)],
        "not_run": [row["name"] for row in rows if _is_empty(row)],
        "some_ours": any(row["ours"] for row in rows),
        "mixed": len({row["ours"] for row in rows}) > 1,
        "has_mean": any(row["mean"] and row["mean"].text() != MISSING for row in rows),
        "pictures": [] if experiment.quick else overview(experiment, PICTURE),
        "validation": list(learning_curves(experiment, "validation", points)),
        "train": list(learning_curves(experiment, "train", points)),
        "conditions": _conditions(experiment),
        "failures": len(_failures([experiment])),
    }


def _is_empty(row: dict[str, Any]) -> bool:
    """Whether a row was declared, but neither run nor published."""
    cells = any(cell.records or cell.published is not None for cell in row["cells"])
    return not cells and all(value is None for value in row["extra"])


def _conditions(experiment: ResultTable) -> Table:
    metric = Metric(experiment.metric)
    rows = []
    for cell in filled(experiment):
        marks = "; ".join(f"{word}: {why}" for word, why in cell.marks)
        rows.append(
            {
                "row": cell.row, "column": cell.column, "published": metric.show(cell.published),
                "ours": cell.text(), "difference": metric.show(cell.difference, sign=True),
                "finished runs": f"{len(cell.values)} of {len(cell.records)}",
                **cell.conditions(), "remarks": marks or MISSING,
            }
        )  # fmt: skip
    return Table.of(rows, f"{experiment.title}: conditions of every number")


def _speed(experiment: ResultTable) -> Table:
    rows = []
    for cell in filled(experiment):
        conditions = cell.conditions()
        if cell.values:
            chosen = {name: conditions[name] for name in SPEED}
            rows.append({"row": cell.row, "column": cell.column, **chosen})
    return Table.of(rows, f"{experiment.title}: speed and memory of training")


def _groups(experiment: ResultTable) -> list[dict[str, Any]]:
    shown = []
    for column, group, values in groups(experiment):
        keys = list(dict.fromkeys(key for cells in values.values() for key in cells))
        if all(key.isdigit() for key in keys):
            keys.sort(key=int)
        rows = [
            {"row": row} | {k: MISSING if k not in cells else f"{cells[k]:.1f}" for k in keys}
            for row, cells in values.items()
        ]
        title = f"{experiment.title}: {column} by {group}"
        few = len(values) <= MOST_LINES
        shown.append(
            {
                "title": title,
                "picture": group_picture(column, group, values),
                "remark": "" if few else f"the first {MOST_LINES} of {len(values)} rows",
                "table": Table.of(rows, f"{title}, test accuracy (%)"),
            }
        )
    return shown


def _bench(bench: Bench) -> dict[str, Any]:
    table = bench_table(bench, everything=True)
    conditions = ", ".join(f"{name} {value}" for name, value in bench_conditions(bench).items())
    return {
        "title": title_of(bench),
        "conditions": f"{bench.name}: {conditions}",
        "pictures": [picture for _, picture in bench_pictures(bench)],
        "table": replace(
            table,
            caption=f"{bench.name}: every row",
            rows=[[word or MISSING for word in row] for row in table.rows],
        ),
    }


def _failures(experiments: Sequence[ResultTable]) -> list[dict[str, str]]:
    return [
        {
            "experiment": experiment.title, "row": cell.row, "column": cell.column,
            "seed": str(record.seed), "status": record.status,
            "step": str(record.steps or MISSING), "reason": record.error or MISSING,
        }
        for experiment in experiments
        for cell in filled(experiment)
        for record in cell.unfinished
    ]  # fmt: skip
