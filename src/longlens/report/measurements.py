"""Measurements inside models, as tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longlens.charts import Line, line_chart
from longlens.report.layout import Part
from longlens.report.results import Measurement
from longlens.tables import Table

MEASURES = {
    "decay_rate": "decay", "fit": "R²", "half_distance": "half", "reach_90": "90 %",
    "total_variation": "variation", "spectral_centroid": "centroid", "entropy": "entropy",
}  # fmt: skip
USUAL = (None, "kernel", "weights", "input gradients")  # parts that go without saying
LENS_NOTES = (
    "decay: rate of the exponential fitted to the envelope, R² of the fit; half and 90 %: distance "
    "within which that share of the mass lies.",
    "variation: total variation over the largest value (1: falls monotonically); centroid: mean "
    "frequency in cycles a position (white noise: 0.25); entropy in nats.",
    "kernel: taps of the convolution inside; attention: mean weight by distance, relative to even "
    "attention (variation and centroid: of single rows); gradient: mean |∂ output / ∂ input|.",
)


def measurement_part(measurement: Measurement) -> Part:
    """Measurements inside models, or layers compared with others' code, as a folded part."""
    values = measurement.values
    title = str(values.get("title") or measurement.name)
    lens = measurement.kind == "lens"
    rows = Table.of(values.get("rows") or (), title)
    return Part(
        title,
        key=f"m-{measurement.name}",
        folded=True,
        figures=_profiles(values),
        tables=[lens_table(title, values) if lens else rows],
        notes=[*(LENS_NOTES if lens else ()), *map(str, values.get("notes") or ())],
    )


def _layers(values: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [
        (subject, layer)
        for subject in values.get("subjects") or ()
        for layer in subject.get("layers") or ()
    ]


def lens_table(title: str, values: Mapping[str, Any]) -> Table:
    """Every layer of every subject: medians over channels or heads."""
    rows = []
    for subject, layer in _layers(values):
        median = layer.get("median") or {}
        rows.append(
            {
                "subject": subject["name"],
                "layer": "all" if layer.get("layer") is None else layer["layer"],
                "view": layer["view"] if layer.get("part") in USUAL else layer["part"],
                **{label: median.get(name) for name, label in MEASURES.items()},
                **{
                    f"beyond {distance}": f"{100 * mass:.1f} %"
                    for distance, mass in (median.get("mass_beyond") or {}).items()
                },
            }
        )
    return Table.of(rows, f"{title}: medians over channels or heads")


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
