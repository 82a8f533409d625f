"""Tables of the lens: measurements by subject and layer, and the design aspects (Table 10)."""

from __future__ import annotations

from collections.abc import Sequence

from longlens.lens.look import View
from longlens.lens.pictures import main_view
from longlens.lens.subjects import Subject
from longlens.models.aspects import ASPECTS, describe
from longlens.tables import MISSING, Table

MEASURES = ("decay", "R²", "half", "90 %", "variation", "centroid", "entropy")


def _number(value: float | None, form: str = ".3g") -> str:
    if value is None:
        return MISSING
    return str(value) if isinstance(value, int) else format(value, form)


def measured(view: View) -> list[str]:
    """The cells of :data:`MEASURES` and the farthest share of mass."""
    summary = view.summary()
    if summary is None:
        return [MISSING] * (len(MEASURES) + 1)
    far, share = list(summary.mass_beyond.items())[-1] if summary.mass_beyond else ("", 0.0)
    return [
        _number(summary.decay_rate, ".4f"),
        _number(summary.fit, ".2f"),
        _number(summary.half_distance),
        _number(summary.reach_90),
        _number(summary.total_variation, ".1f"),
        _number(summary.spectral_centroid, ".3f"),
        _number(summary.entropy, ".2f"),
        f"{100 * share:.1f} % > {far}",
    ]


def measure_table(looked: Sequence[tuple[Subject, list[View]]]) -> Table:
    """The table in the terminal: a row a view, medians over heads."""
    head = ["subject", "layer", "view", *MEASURES, "mass beyond"]
    rows = []
    for subject, views in looked:
        for view in views:
            layer = "all" if view.layer is None else str(view.layer)
            part = view.view if view.part in ("kernel", "weights", "input gradients") else view.part
            rows.append([subject.name, layer, part, *measured(view)])
    return Table(head, rows)


def aspect_table(looked: Sequence[tuple[Subject, list[View]]]) -> Table:
    """The paper's Table 10 for the subjects' mixers, with measured decay and smoothness.

    Aspects are those of ``longlens layers``; the numbers are medians over channels or heads of the
    first layer.
    """
    head = ["layer", "seen by", *ASPECTS.values(), "rate", "half", "variation", "centroid"]
    described = {m: describe(m, dim=64) for m in {subject.mixer for subject, _ in looked}}
    rows = []
    for subject, views in looked:
        view = main_view(views)
        told = described[subject.mixer]
        yes = ["y" if getattr(told, name) else "·" for name in ASPECTS]
        rate, _, half, _, variation, centroid, *_ = measured(view)
        rows.append([subject.name, view.view, *yes, rate, half, variation, centroid])
    return Table(head, rows)
