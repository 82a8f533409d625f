"""Measurements inside models, as tables and pictures; and how the page's plain tables are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longlens.report.cells import MISSING, number
from longlens.report.results import Measurement
from longlens.report.svg import Line, line_chart

MEASURES = {
    "decay_rate": "decay", "fit": "R²", "half_distance": "half", "reach_90": "90 %",
    "total_variation": "variation", "spectral_centroid": "centroid", "entropy": "entropy",
}  # fmt: skip
LENS_NOTES = (
    "decay: rate of the exponential fitted to the envelope, R² of the fit; half and 90 %: distance "
    "within which that share of the mass lies.",
    "variation: total variation over the largest value (1: falls monotonically); centroid: mean "
    "frequency in cycles a position (white noise: 0.25); entropy in nats.",
)
Table = dict[str, Any]


def word(value: Any) -> str:
    """A value as it stands in a cell.

    >>> word(0.25), word(None), word([3, 5]), word(True), word("x"), word({"a": 1})
    ('0.25', '—', '3, 5', 'yes', 'x', 'a 1')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value).replace("-", "−")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {word(inner)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(word, value))
    return str(value)


def plain_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table for the page: caption, head, rows of words; what a row lacks is a dash."""
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[word(row.get(name)) for name in head] for row in rows]
    return {"caption": caption, "head": head, "rows": lines}


def show_lens(measurement: Measurement) -> dict[str, Any]:
    """What the page shows of measurements inside models."""
    values = measurement.values
    shown = _shown(measurement, _lens_table(_title(measurement), values))
    return shown | {"notes": [*LENS_NOTES, *shown["notes"]], "pictures": _profiles(values)}


def show_comparison(measurement: Measurement) -> dict[str, Any]:
    """What the page shows of layers compared with others' code."""
    rows = measurement.values.get("rows") or ()
    return _shown(measurement, plain_table(_title(measurement), rows))


def _title(measurement: Measurement) -> str:
    return str(measurement.values.get("title") or measurement.name)


def _shown(measurement: Measurement, table: Table) -> dict[str, Any]:
    """A measurement with one table, as the page wants it."""
    return {
        "title": _title(measurement),
        "verdict": "",
        "marks": [],
        "notes": list(map(str, measurement.values.get("notes") or ())),
        "tables": [table],
        "pictures": [],
    }


def _layers(values: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [
        (subject, layer)
        for subject in values.get("subjects") or ()
        for layer in subject.get("layers") or ()
    ]


def _lens_table(title: str, values: Mapping[str, Any]) -> Table:
    rows = []
    for subject, layer in _layers(values):
        median = layer.get("median") or {}
        rows.append(
            {
                "subject": subject["name"],
                "layer": "all" if layer.get("layer") is None else layer["layer"],
                "view": f"{layer['view']}: {layer.get('part') or ''}".rstrip(": "),
                **{label: median.get(name) for name, label in MEASURES.items()},
                **{f"beyond {d}": m for d, m in (median.get("mass_beyond") or {}).items()},
            }
        )
    return plain_table(f"{title}: medians over channels or heads", rows)


def _profiles(values: Mapping[str, Any]) -> list[str]:
    """For each way of looking, the mean over heads by distance, of every subject's first layer."""
    pictures = []
    names = [str(subject["name"]) for subject in values.get("subjects") or ()]
    for view, what in (values.get("views") or {}).items():
        first: dict[str, Line] = {}
        for subject, layer in _layers(values):
            name = str(subject["name"])
            if layer["view"] == view and layer.get("profile") and name not in first:
                # On a logarithmic axis zero has no place.
                points = [(float(x), float(y)) for x, y in layer["profile"] if y and y > 0]
                first[name] = Line(name, points, names.index(name))
        if lines := [line for line in first.values() if line.points]:
            title = f"{view[:1].upper()}{view[1:]} by distance, first layer"
            pictures.append(line_chart(title, lines, "distance", str(what), log_y=True))
    return pictures
