"""Runs that fill a whole row of a table: one record a column, made of one record a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Values = dict[str, Any]
LARGE = ("curves", "ablations")


def fill_rows(records: Sequence[Values], labels: Mapping[str, Any]) -> list[Values]:
    """One record for every column that ``labels["reads"]`` names; without it the records as given.

    A column's number is read from where "reads" says and stands where a cell looks for it, as the
    metric of the test split. With "relative_to" it is divided by that row's of the same seed; the
    number itself is kept as "measured". Curves and ablations stay with the first column.

    >>> labels = {"reads": {"Speed": "speed.tokens"}, "relative_to": "a", "metric": "ratio"}
    >>> runs = [dict(row=row, column="Speed", seed=0, speed={"tokens": n}) for row, n in
    ...         (("a", 2.0), ("b", 6.0))]
    >>> fill_rows(runs, labels)[1]["metrics"]
    {'test': {'ratio': 3.0, 'measured': 6.0}}
    """
    reads: Mapping[str, str] = labels.get("reads") or {}
    if not reads:
        return list(records)
    base = {r.get("seed"): r for r in records if r["row"] == labels.get("relative_to")}
    filled = []
    for record in records:
        for number, (column, path) in enumerate(reads.items()):
            value = _at(record, path)
            metrics: Values = {} if value is None else {str(labels["metric"]): value}
            if labels.get("relative_to") and value is not None:
                one = _at(base.get(record.get("seed"), {}), path)
                metrics = {"ratio": value / one if one else None, "measured": value}
            kept = {k: v for k, v in record.items() if not number or k not in LARGE}
            filled.append({**kept, "column": column, "metrics": {"test": metrics}})
    return filled


def _at(record: Mapping[str, Any], path: str) -> float | None:
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None
