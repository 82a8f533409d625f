"""Measurements inside models, as tables and pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from longlens.charts import Line, line_chart
from longlens.report.figures import MOST_LINES
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
        figures=[picture for _, picture in profiles(values)],
        tables=[lens_table(title, values) if lens else rows],
        notes=[*(LENS_NOTES if lens else ()), *map(str, values.get("notes") or ())],
    )


def readable(name: str) -> str:
    """The name of a run's folder in words.

    >>> readable("lasplus-in-minutes--image--0, before training")
    'lasplus-in-minutes, image, seed 0, before training'
    """
    return re.sub(r"--(\d+)\b", r", seed \1", str(name)).replace("--", ", ")


def lens_table(title: str, values: Mapping[str, Any]) -> Table:
    """Every layer of every subject: medians over channels or heads."""
    rows = []
    subjects = values.get("subjects") or ()
    for subject, layer in ((s, each) for s in subjects for each in s.get("layers") or ()):
        median = layer.get("median") or {}
        rows.append(
            {
                "subject": readable(subject["name"]),
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


def profiles(values: Mapping[str, Any], width: int = 400) -> list[tuple[str, str]]:
    """For each way of looking, what is seen by distance: the mean over layers, a line a subject."""
    pictures = []
    for view, what in (values.get("views") or {}).items():
        lines = []
        for style, subject in enumerate(values.get("subjects") or ()):
            by: dict[float, list[float]] = {}
            for layer in subject.get("layers") or ():
                for x, y in (layer.get("profile") or ()) if layer["view"] == view else ():
                    by.setdefault(float(x), []).append(float(y or 0))
            # Logarithmic axes have no place for zero.
            points = [(x + 1, y) for x, ys in sorted(by.items()) if (y := sum(ys) / len(ys)) > 0]
            if points:
                lines.append(Line(readable(subject["name"]), points, style))
        if lines:
            name = f"{view[:1].upper()}{view[1:]} by distance, mean over layers"
            if len(lines) > MOST_LINES:
                name += f"; {MOST_LINES} of {len(lines)}"
            chart = line_chart(
                name, lines[:MOST_LINES], "distance + 1", str(what), log_x=True, log_y=True,
                width=width,
            )  # fmt: skip
            pictures.append((view, chart))
    return pictures
