"""Rows of records as text, Markdown, CSV or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from longlens.runs.record import Record
from longlens.tables import MISSING, Table, csv_text

Row = dict[str, Any]
FORMATS = ("text", "markdown", "csv", "json")
NUMBERS = ("validation", "test", "tokens/s", "seconds", "memory")  # averaged over a group


def rows_of(runs: Sequence[Record], columns: Sequence[str]) -> list[Row]:
    """One row a run."""
    return [{column: run.get(column) for column in columns} for run in runs]


def grouped_rows(runs: Sequence[Record], by: Sequence[str]) -> list[Row]:
    """One row a group of runs that agree in ``by``: how many, and mean ± deviation of the rest.

    Runs that failed are counted, not dropped: ``runs`` says how many there are, ``finished`` how
    many the means are over, quick ones not among them. Stages of pretraining, whose numbers mean
    something else, are part of their runs.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        if run.name.endswith("/pretrain"):
            continue
        groups.setdefault(tuple(str(run.get(name)) for name in by), []).append(run)
    rows = []
    for key, members in groups.items():
        done = [run for run in members if run.is_finished and not run.quick]
        row: Row = dict(zip(by, key, strict=True)) | {"runs": len(members), "finished": len(done)}
        for column in NUMBERS:
            values = [v for run in done if isinstance(v := run.get(column), int | float)]
            row[column] = Spread(values) if values else None
        rows.append(row)
    return rows


class Spread:
    """Mean and standard deviation of some numbers.

    >>> str(Spread([0.5, 0.6])), str(Spread([0.5])), Spread([1, 3]).to_json()
    ('0.55 ± 0.0707', '0.5', {'mean': 2, 'deviation': 1.4142135623730951, 'count': 2})
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self.mean = mean(values)
        self.deviation = stdev(values) if len(values) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"mean": self.mean, "deviation": self.deviation, "count": len(self.values)}

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {show(self.deviation)}"
        return f"{show(self.mean)}{spread}"


def show(value: Any) -> str:
    """A value as people like to read it.

    >>> show(0.51234), show(1234567.8), show(None), show(3), show(1e-5), show(0.0)
    ('0.5123', '1,234,568', '—', '3', '1e-05', '0')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or value == 0:
        return f"{value:,}" if abs(value) >= 10_000 else f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.3g}"
    text = f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:g}" if float(text) == value else text


def render(rows: Sequence[Row], form: str = "text") -> str:
    """Write rows in one of ``FORMATS``; what a row lacks is left out."""
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if form == "json":
        return json.dumps(rows, indent=1, default=lambda value: value.to_json())
    if form == "csv":
        return csv_text(rows).rstrip("\n")
    table = Table.of(rows, write=show)
    return table.markdown() if form == "markdown" else table.text()
