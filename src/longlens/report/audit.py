"""An audit as a picture and as text, from its JSON file alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from longlens.report.charts import COLOURS, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 410, 58, 150, 58, 52


def draw_audit(report: Mapping[str, Any]) -> str:
    """Accuracy against receptive field as SVG: convolutions, global models, chance.

    >>> row = dict(model="conv 3", receptive_field=3, test=0.4, deviation=None, seeds=1)
    >>> picture = draw_audit(dict(task="t", curve=[row], chance=0.1, points=[], length=64))
    >>> picture.startswith("<svg") and "receptive field" in picture
    True
    """
    curve = report["curve"]
    bounded = [row for row in curve if row["receptive_field"] is not None]
    unbounded = [row for row in curve if row["receptive_field"] is None]
    chance = report["chance"]
    values = [row["test"] for row in curve] + [chance]
    values += [point["test"] for point in report["points"] if point["test"] is not None]
    y0, y1 = _y_limits(values)
    fields = [row["receptive_field"] for row in bounded] or [1]
    x0, x1 = math.log2(min(fields)) - 0.3, math.log2(max([*fields, 2 * min(fields)])) + 0.3
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def across(field: float) -> float:
        return round(LEFT + (math.log2(field) - x0) / (x1 - x0) * (right - LEFT), 1)

    def down(value: float) -> float:
        return round(TOP + (y1 - value) / (y1 - y0) * (floor - TOP), 1)

    title = f"{report['task']}: test accuracy against receptive field"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>svg{color:#222;background:#fff}@media(prefers-color-scheme:dark)"
        "{svg{color:#ddd;background:#111}}text{fill:currentColor}</style>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="{LEFT}" y="41" opacity=".75">{escape(_subtitle(report))}</text>',
    ]
    for value in ticks(y0, y1):
        y = down(value)
        parts.append(
            f'<path d="M{LEFT} {y}H{right}" stroke="currentColor" opacity=".15"/>'
            f'<text x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{100 * value:g} %</text>'
        )
    parts += _x_axis(fields, across, floor, right)
    labels = [(down(chance), f"majority {100 * chance:.1f} %", "currentColor")]
    parts.append(_line(LEFT, right, down(chance), "currentColor", "2 4"))
    for number, row in enumerate(unbounded):
        colour = COLOURS[(number + 1) % len(COLOURS)]
        y, spread = down(row["test"]), row["deviation"] or 0.0
        if spread:
            top, low = down(row["test"] + spread), down(row["test"] - spread)
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{right - LEFT}" height="{low - top:.1f}" '
                f'fill="{colour}" opacity=".15"/>'
            )
        parts.append(_line(LEFT, right, y, colour, "7 4"))
        labels.append((y, f"{row['model']} {100 * row['test']:.1f} %", colour))
    for point in report["points"]:
        if point["test"] is not None:
            x, y = across(point["receptive_field"]), down(point["test"])
            parts.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{COLOURS[0]}" opacity=".5"/>')
    line = " ".join(f"{across(r['receptive_field'])},{down(r['test'])}" for r in bounded)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    for row in bounded:
        x, y = across(row["receptive_field"]), down(row["test"])
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{COLOURS[0]}"/>')
    if bounded:
        labels.append((down(bounded[-1]["test"]), "convolutions", COLOURS[0]))
    parts += _labels(labels, right + 8)
    return "\n".join([*parts, "</svg>\n"])


def _subtitle(report: Mapping[str, Any]) -> str:
    """How it was measured, and the verdict, in one line."""
    options = report.get("options") or {}
    parts = [f"quick: {_data(options)}"] if options.get("quick") else []
    for name in ("budget", "steps", "epochs"):
        if name in options:
            parts.append(f"{options[name]} {'' if name == 'budget' else name}".strip() + " a model")
    if "seeds" in options:
        parts.append(f"{options['seeds']} seeds" if options["seeds"] > 1 else "1 seed")
    verdict = report.get("verdict")
    if verdict and verdict["decided"]:
        parts.append(f"{verdict['category']} ({verdict['confidence']:.0%} sure)")
    return " · ".join(parts)


def _data(options: Mapping[str, Any]) -> str:
    """The task's options that make its examples what they are, sizes of splits left out."""
    sizes = ("train", "validation", "test", "seed")
    shown = {k: v for k, v in options.get("task_options", {}).items() if k not in sizes}
    return ", ".join(f"{key} {value}" for key, value in shown.items()) or "small models"


def _y_limits(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max(0.02, 0.08 * (high - low))
    return max(0.0, low - room), min(1.0, high + room) if high < 1 else 1.0 + room / 4


def _x_axis(fields: list[int], across: Any, floor: int, right: int) -> list[str]:
    parts, last = [], -99.0
    for field in fields:
        x = across(field)
        parts.append(f'<path d="M{x} {floor}v5" stroke="currentColor"/>')
        if x - last >= 30:  # labels must not run into each other
            parts.append(f'<text x="{x}" y="{floor + 19}" text-anchor="middle">{field}</text>')
            last = x
    parts.append(f'<path d="M{LEFT} {floor}H{right}" stroke="currentColor"/>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{floor + 40}" text-anchor="middle">receptive field, positions '
        "(logarithmic)</text>"
    )
    return parts


def _line(left: float, right: float, y: float, colour: str, dash: str) -> str:
    return (
        f'<path d="M{left} {y}H{right}" stroke="{colour}" stroke-width="1.6" '
        f'stroke-dasharray="{dash}"/>'
    )


def _labels(labels: list[tuple[float, str, str]], x: float) -> list[str]:
    """Names beside the right edge, moved apart where they would overlap."""
    parts, last = [], 0.0
    for y, text, colour in sorted(labels):
        last = max(y, last + 16)
        parts.append(
            f'<text x="{x}" y="{last + 4:.1f}" style="fill:{colour}" font-weight="600">'
            f"{escape(text)}</text>"
        )
    return parts


def audit_text(report: Mapping[str, Any]) -> str:
    """A few lines for the terminal: diagnostics, the curve, ranges and the verdict."""
    lines = [*_diagnostics(report)]
    lines.append(
        f"{'model':<14}{'field':>8}{'validation':>12}{'test':>9}{'± seeds':>9}{'seeds':>7}"
    )
    for row in report["curve"]:
        field = row["receptive_field"] or "global"
        spread = "–" if row["deviation"] is None else f"{100 * row['deviation']:.2f}"
        lines.append(
            f"{row['model']:<14}{field:>8}{100 * row['validation']:>11.2f}%"
            f"{100 * row['test']:>8.2f}%{spread:>9}{row['seeds']:>7}"
        )
    ranges = report.get("ranges") or {}
    for name, what in (("of_accuracy", "of the best accuracy"), ("of_gain", "of it beyond chance")):
        for level, found in ranges.get(name, {}).items():
            low, high = (value or "global" for value in found["interval"])
            needed = found["receptive_field"] or "global"
            lines.append(
                f"{100 * float(level):.0f} % {what}: field {needed} (90 % interval {low} … {high})"
            )
    if report.get("ratio"):
        ratio, known = report["ratio"], report["published"]
        lines.append(
            f"field {ratio['receptive_field']} reaches {ratio['ratio']:.1%} of {ratio['of']}; "
            f"published: {known['ratio']:.1%}"
        )
    if report.get("certificate"):
        proof = report["certificate"]
        lines.append(
            f"certificate ({proof['method']}, {proof['orbits']} orbits): every {proof['kind']} "
            f"model of range {proof['range']} is at or below {proof['accuracy_bound']:.1%}"
        )
    lines.append(report["verdict"]["text"])
    return "\n".join(lines)


def _diagnostics(report: Mapping[str, Any]) -> list[str]:
    found = report.get("diagnostics")
    if not found:
        return []
    lines = [f"{'majority':<24}{found['majority']:.2%}"]
    for name in ("bag_of_tokens", "bigrams", "trigrams", "tokens_in_place"):
        if name in found:
            lines.append(f"{name.replace('_', ' '):<24}{found[name]['test']:.2%}")
    for row in found.get("shuffled_trigrams", []):
        lines.append(f"trigrams, {row['kind']} {row['window']:<8}{row['test']:.2%}")
    if "mutual_information" in found:
        most = found["mutual_information"]["most"]
        lines.append(
            f"most informative token: {most['bits']:.3f} bits, position {most['position']}"
        )
    return lines
