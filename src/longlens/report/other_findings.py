"""What records say about speed, about the reach of tasks, and, of plain runs, which is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from longlens.charts import Line, line_chart
from longlens.report.atlas import atlas_words
from longlens.report.atlas_chart import atlas_chart
from longlens.report.audit_chart import audited
from longlens.report.audits import plain_verdict
from longlens.report.bench import bench_pictures, kind, title_of, value_of
from longlens.report.cells import TableCell, table
from longlens.report.compare import Difference, joined
from longlens.report.figures import cell_figure
from longlens.report.las_findings import Answer
from longlens.report.layout import Figure, full_width
from longlens.report.results import Bench, Results


def how_fast(results: Results) -> Answer | None:
    """How long LaS takes beside plain attention."""
    benches = [b for b in results.benches if kind(b) == "ops" and _ratios(b, "ratio_to_plain")]
    if not benches:
        return None
    benches.sort(key=_side_issue)
    main = benches[0]
    graphs = _ratios(main, "graph_ratio")
    shown = graphs or _ratios(main, "ratio_to_plain")
    where = main.rows[0].get("hardware") or "one machine"
    how = ", as CUDA graphs" if graphs else ""
    return Answer(
        f"LaS takes {_range(shown)} times as long as plain attention ({where}{how}).",
        [f"Forward and backward, {len(shown)} shapes.", *map(_speed, benches)],
        [full_width(lambda width: bench_pictures(main, width)[0][1])],
        {f"b-{b.name}": title_of(b) for b in benches},
    )


def _side_issue(bench: Bench) -> tuple[bool, bool, int, int]:
    """Smaller for the benchmark that answers the question itself: `ops`, as graphs, on a device.

    A longer name says that something is special about it (`ops_padding`), and so do other commands
    (`odd`, `family`).
    """
    parts = bench.name.split("_")
    return not _ratios(bench, "graph_ratio"), parts[0] != "ops", len(parts), -len(bench.rows)


def _speed(bench: Bench) -> str:
    words = []
    for column, how in (("ratio_to_plain", "called eagerly"), ("graph_ratio", "as CUDA graphs")):
        names = ("LaS", "FlexAttention", "eager Eq. 4")
        each = [f"{n} {_range(values)} ×" for n in names if (values := _ratios(bench, column, n))]
        words += [f"{how} {joined(each)}"] if each else []
    return f"{title_of(bench)}: {'; '.join(words)}."


def _ratios(bench: Bench, column: str, name: str = "LaS") -> list[float]:
    values = [value_of(row, column) for row in bench.rows if row["implementation"] == name]
    return [value for value in values if not math.isnan(value)]


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def long_range(results: Results) -> Answer | None:
    """How far models must see: an atlas of many tasks, and audits of single ones."""
    audits = [m for m in results.measurements if m.kind == "audit" and m.values.get("curve")]
    audits.sort(key=lambda m: not (m.values.get("verdict") or {}).get("decided"))
    atlases = [m for m in results.measurements if m.kind == "atlas" and m.values["tasks"]]
    if not audits and not atlases:
        return None
    said = [words for m in atlases for words in atlas_words(m.values)]
    figures = [_map(m.values["tasks"]) for m in atlases]
    if audits:
        said.append(_sure([m.values for m in audits]))
        curves = [m.values for m in audits]
        figures.append(full_width(lambda width: _shares(curves, width)))
    said += [f"{audited(m.values)}: {plain_verdict(m.values)}" for m in audits]
    evidence = {f"m-{m.name}": m.values["title"] for m in atlases}
    evidence |= {"audits": f"{len(audits)} audits"} if audits else {}
    return Answer(said[0], said[1:], figures, evidence)


def _map(tasks: Sequence[Mapping[str, Any]]) -> Figure:
    return full_width(lambda width: atlas_chart(tasks, "A point is a task", width))


def _sure(audits: Sequence[Mapping[str, Any]]) -> str:
    """Which audits are decided."""
    by: dict[str, list[str]] = {}
    for values in audits:
        verdict = values.get("verdict") or {}
        if verdict.get("decided"):
            by.setdefault(str(verdict["category"]), []).append(audited(values))
    count = f"{sum(map(len, by.values()))} of {len(audits)} audits with trained models"
    if not by:
        return f"None of {len(audits)} audits with trained models is decided."
    return f"{count} are decided: " + "; ".join(f"{w}: {', '.join(t)}" for w, t in by.items()) + "."


def _shares(audits: Sequence[Mapping[str, Any]], width: int) -> str:
    """What convolutions of a field learn beyond chance, in per cent of what the best model does."""
    lines = []
    for style, values in enumerate(audits):
        best = (values.get("best") or {}).get("gain")
        points = sorted(
            (float(row["receptive_field"]), 100 * row["gain"] / best)
            for row in values["curve"]
            if best and row.get("receptive_field") and not row.get("probe")
        )
        if points:
            lines.append(Line(audited(values), points, style, mark=True))
    return line_chart(
        "What a window has of what the best model learns", lines, "receptive field, positions",
        "accuracy beyond chance, % of the best model's; 0: chance", log_x=True,
        x_ticks=sorted({x for line in lines for x, _ in line.points}), reference=0.0, width=width,
        height=320,
    )  # fmt: skip


def best(results: Results) -> Answer | None:
    """Of plain runs: which is the best on each task, and whether the seeds tell."""
    said, figures, evidence = [], [], {}
    for experiment in results.experiments:
        cells = table(experiment)
        for column in experiment.columns:
            here = [cells[row][column] for row in cells if cells[row][column].is_of_one_model]
            if not here or experiment.quick:
                continue
            sign = 1 if here[0].metric.higher_is_better else -1
            here.sort(key=lambda c: sign * (c.mean or 0), reverse=True)
            said.append(_leads(column, here))
            title = f"{column}: test {here[0].metric.label}"
            figures.append(cell_figure(results, {c.row: {"ours": c} for c in here}, title))
            evidence[f"t-{experiment.name}"] = experiment.title
    return Answer(said[0], said[1:], figures, evidence) if said else None


def _leads(column: str, here: Sequence[TableCell]) -> str:
    """The best of some cells, and whether it is ahead of the second."""
    first = here[0]
    if len(here) == 1:
        return f"On {column} {first.row} has {first.metric.label} {first.text()}."
    d = Difference(column, first, here[1])
    side = {"ahead": "is ahead of", "ahead once": "is ahead, in single runs, of"}
    word = side.get(d.verdict, "is not to be told apart from")
    numbers = f"{first.text()} against {here[1].text()} ({d.evidence()})"
    return f"On {column} {first.row} {word} {here[1].row}: {numbers}."
