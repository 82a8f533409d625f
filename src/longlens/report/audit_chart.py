"""The pictures of an audit, from its JSON file alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longlens.charts import Line, line_chart, standalone

SIZES = ("train", "validation", "test", "seed")


def audited(report: Mapping[str, Any]) -> str:
    """The task of an audit, with the options that make its examples what they are.

    >>> audited(dict(task="far-order", options=dict(task_options=dict(distance=512))))
    'far-order, distance 512'
    """
    given = (report.get("options") or {}).get("task_options") or {}
    shown = [f"{k} {v}" for k, v in given.items() if k not in SIZES]
    return ", ".join([str(report.get("task")), *shown])


def draw_audit(report: Mapping[str, Any]) -> str:
    """Test accuracy against receptive field as a file of its own.

    >>> row = dict(model="conv 3", receptive_field=3, test=0.4, deviation=None, seeds=1)
    >>> picture = draw_audit(dict(task="t", curve=[row], chance=0.1, points=[], length=64))
    >>> picture.startswith("<svg") and "receptive field" in picture
    True
    """
    title = f"{audited(report)}: test accuracy (%) against receptive field"
    return standalone(field_chart(report, title, _subtitle(report), width=640, height=340) or "")


def field_chart(
    report: Mapping[str, Any], title: str, subtitle: str, width: int = 400, height: int = 300
) -> str | None:
    """Accuracy of convolutions over their receptive field, global models and chance as levels."""
    curve = report.get("curve") or ()
    if not curve:
        return None
    points: dict[str, list[tuple[float, float]]] = {}
    for row in curve:
        if row.get("receptive_field"):
            kind = "probes" if row.get("probe") else "convolutions"
            points.setdefault(kind, []).append((float(row["receptive_field"]), 100.0 * row["test"]))
    fields = sorted({field for line in points.values() for field, _ in line}) or [1.0]
    length = float(report.get("length") or 0)
    if length > fields[-1]:
        fields.append(length)
    ends = (fields[0], fields[-1] if len(fields) > 1 else 2 * fields[0])
    lines = [
        Line(kind, sorted(line), style, mark=True)
        for style, (kind, line) in enumerate(sorted(points.items()))
    ]
    levels = (row for row in curve if not row.get("receptive_field"))
    for style, row in enumerate(levels, max(1, len(lines))):
        level = 100 * row["test"]
        spread = f" ± {100 * row['deviation']:.1f}" if row.get("deviation") is not None else ""
        what = "global" if row.get("global", True) else "in blocks"
        name = f"{row['model']}, {what}: {level:.1f}{spread} %"
        lines.append(Line(name, [(x, level) for x in ends], style))
    if report.get("chance") is not None:
        chance = 100 * report["chance"]
        lines.append(Line(f"chance: {chance:.1f} %", [(x, chance) for x in ends], 6, hollow=True))
    return line_chart(
        title, lines, "receptive field, positions", subtitle, log_x=True, x_ticks=fields,
        width=width, height=height,
    )  # fmt: skip


def _subtitle(report: Mapping[str, Any]) -> str:
    """How it was measured, and the verdict, in one line."""
    options = report.get("options") or {}
    verdict = report.get("verdict")
    parts = []
    if verdict and verdict["decided"]:
        parts.append(f"{verdict['category']}, {verdict['confidence']:.0%} sure")
    if "total" in options:
        parts.append(f"{options['total']} in all")
    if "budget" in options:
        parts.append(f"{options['budget']} a model")
    for name in ("steps", "epochs"):
        if name in options:
            parts.append(f"{options[name]:,g} {name} a model")
    if "seeds" in options:
        parts.append(f"{options['seeds']} seeds" if options["seeds"] > 1 else "1 seed")
    if options.get("quick"):
        parts.append("quick: small models")
    return " · ".join(parts)
