"""Audits of tasks and measurements inside models, as tables and pictures for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longlens.report.cells import MISSING, number
from longlens.report.results import Measurement
from longlens.report.svg import Line, line_chart

HEADER = ("schema", "kind", "title", "task", "verdict", "notes", "views")  # shown in other ways
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


def shown(measurement: Measurement) -> dict[str, Any]:
    """What the page shows of a measurement: title, verdict, notes, tables, pictures."""
    values = measurement.values
    title = str(values.get("title") or values.get("task") or measurement.name)
    notes = [str(note) for note in values.get("notes") or ()]
    if measurement.kind == "lens":
        tables, pictures = [_lens_table(title, values)], _profiles(values)
        notes = [*LENS_NOTES, *notes]
    else:
        tables, pictures = _tables(title, values), _against_field(title, values)
    return {
        "title": title,
        "verdict": _verdict(values.get("verdict")),
        "notes": notes,
        "tables": tables,
        "pictures": pictures,
    }


def word(value: Any) -> str:
    """A value as it stands in a cell.

    >>> word(0.25), word(None), word([3, 5]), word(True), word("x")
    ('0.25', '—', '3, 5', 'yes', 'x')
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


def _verdict(verdict: Any) -> str:
    if isinstance(verdict, Mapping):
        return str(verdict.get("text") or word(verdict))
    return str(verdict or "")


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows with any keys as a table; what a row lacks is a dash."""
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[word(row.get(name)) for name in head] for row in rows]
    return {"caption": caption, "head": [h.replace("_", " ") for h in head], "rows": lines}


def _tables(title: str, values: Mapping[str, Any]) -> list[Table]:
    """A table for every list of entries, every group of entries; one for the single values."""
    tables, single = [], {}
    for name, value in values.items():
        caption = f"{title}: {name.replace('_', ' ')}"
        if name in HEADER:
            continue
        if _entries(value):
            tables.append(_table(caption, value))
        elif isinstance(value, Mapping) and value and _entries(list(value.values())):
            tables.append(_table(caption, [{name: key} | dict(v) for key, v in value.items()]))
        else:
            single[name] = value
    if single:
        rows = [{"condition": key.replace("_", " "), "value": v} for key, v in single.items()]
        tables.append(_table(f"{title}: conditions", rows))
    return tables


def _entries(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _against_field(title: str, values: Mapping[str, Any]) -> list[str]:
    """Accuracy over the receptive field, in percent, for every list of entries that holds both."""
    pictures = []
    for entries in values.values():
        if not _entries(entries):
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for entry in entries:
            field, accuracy = entry.get("receptive_field"), entry.get("accuracy")
            if isinstance(field, int) and field > 0 and isinstance(accuracy, int | float):
                name = str(entry.get("model") or entry.get("mixer") or "bounded models")
                lines.setdefault(name, []).append((float(field), 100.0 * accuracy))
        drawn = [
            Line(name, sorted(points), style, mark=True)
            for style, (name, points) in enumerate(lines.items())
        ]
        if drawn:
            pictures.append(
                line_chart(title, drawn, "receptive field", "test accuracy (%)", log_x=True)
            )
    return pictures


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
    return _table(f"{title}: medians over channels or heads", rows)


def _profiles(values: Mapping[str, Any]) -> list[str]:
    """For each way of looking, the mean over heads by distance, of every subject's first layer."""
    pictures = []
    names = [str(subject["name"]) for subject in values.get("subjects") or ()]
    for view, what in (values.get("views") or {}).items():
        first: dict[str, Line] = {}
        for subject, layer in _layers(values):
            name = str(subject["name"])
            if layer["view"] == view and layer.get("profile") and name not in first:
                points = [(float(x), float(y)) for x, y in layer["profile"] if y]
                first[name] = Line(name, points, names.index(name))
        if lines := [line for line in first.values() if line.points]:
            title = f"{view[:1].upper()}{view[1:]} by distance, first layer"
            pictures.append(line_chart(title, lines, "distance", str(what), log_y=True))
    return pictures
