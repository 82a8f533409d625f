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
    return standalone(
        field_chart(report, title, plain_verdict(report), width=640, height=340) or ""
    )


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


def plain_verdict(values: Mapping[str, Any]) -> str:
    """What an audit says, in words that need no explanation.

    >>> values = {"length": 1000, "ranges": {"of_gain": {"0.95": {"receptive_field": 5}}},
    ...           "verdict": {"category": "short range", "decided": True, "confidence": 0.97}}
    >>> plain_verdict(values)
    'Short range, 97 % sure: 5 of 1,000 positions are enough.'
    """
    verdict = values.get("verdict") or {}
    category = verdict.get("category")
    if category is None:
        return "Nothing is known yet."
    field = needed(values)
    fields = [row["receptive_field"] for row in values.get("curve") or () if "test" in row]
    widest = max(filter(None, fields), default=None)
    if field:
        enough = f"{field:,} of {values['length']:,} positions are enough"
    else:
        enough = f"{widest or 0:,} of {values.get('length') or 0:,} positions are not enough"
    if verdict.get("decided"):
        sure = verdict.get("confidence")
        said = "" if sure is None else f", {100 * sure:.0f} % sure"
        return f"{category.capitalize()}{said}: {enough}."
    seeds = verdict.get("seeds") or 0
    few = f"{seeds} seed{'' if seeds == 1 else 's'}"
    if category != "open":
        return f"Probably {category}: {enough}, as far as {few} can tell."
    return f"Open: {enough} among the models that were tried ({few})."


def needed(values: Mapping[str, Any]) -> int | None:
    """The receptive field that 95 % of what is learned beyond chance needs; None: not found."""
    gain = (values.get("ranges") or {}).get("of_gain") or {}
    field: int | None = (gain.get("0.95") or {}).get("receptive_field")
    return field
