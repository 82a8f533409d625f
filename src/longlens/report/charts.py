"""Curves: drawn in the terminal with braille dots, and as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#777777")
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One curve: its name and its points (x, y), x rising."""

    name: str
    points: Points


def series(
    curves: Iterable[dict[str, Any]], split: str, metric: str, name: str, x: str = "step"
) -> Series:
    """Take one metric of one split out of a run's curves; values that are missing are left out.

    >>> series([{"step": 1, "split": "train", "loss": 2.0}], "train", "loss", "a")
    Series(name='a', points=[(1.0, 2.0)])
    """
    points = [
        (float(line[x]), float(line[metric]))
        for line in curves
        if line.get("split") == split and line.get(metric) is not None and x in line
    ]
    return Series(name, points)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that divide ``low`` … ``high`` into about ``count`` parts.

    >>> ticks(0.13, 0.88), ticks(0, 1000, 4)
    ([0.2, 0.4, 0.6, 0.8], [0.0, 500.0, 1000.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _limits(points: Points) -> tuple[float, float, float, float]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    if y0 == y1:  # a flat curve is drawn through the middle
        room = abs(y0) * 0.1 or 1.0
        y0, y1 = y0 - room, y1 + room
    return x0, x1 if x1 > x0 else x0 + 1.0, y0, y1


def draw_text(curve: Series, width: int = 64, height: int = 12) -> str:
    """Draw one curve in braille, ``width`` × ``height`` characters, with its axes.

    >>> print(draw_text(Series("loss", [(0, 0.0), (10, 1.0)]), width=8, height=2))
    loss
    1.000 ┤⠀⠀⠀⠀⣀⠤⠒⠉
    0.000 ┤⣀⠤⠒⠉⠀⠀⠀⠀
          └────────
           0     10
    """
    if not curve.points:
        return f"{curve.name}: nothing to draw"
    x0, x1, y0, y1 = _limits(curve.points)
    columns, rows = 2 * width, 4 * height
    dots = [[0] * width for _ in range(height)]
    places = [
        ((x - x0) / (x1 - x0) * (columns - 1), (y1 - y) / (y1 - y0) * (rows - 1))
        for x, y in curve.points
    ]
    for (ax, ay), (bx, by) in zip(places, places[1:] or places, strict=False):
        steps = max(1, math.ceil(max(abs(bx - ax), abs(by - ay))))
        for i in range(steps + 1):
            _dot(dots, ax + (bx - ax) * i / steps, ay + (by - ay) * i / steps)
    labels = [f"{y1 - (y1 - y0) * row / max(1, height - 1):.4g}" for row in range(height)]
    every = max(1, (height - 1) // 3) if height > 2 else 1
    labels = [f"{float(t):.3f}" if abs(float(t)) < 1000 else t for t in labels]
    labels = [t if row % every == 0 or row == height - 1 else "" for row, t in enumerate(labels)]
    margin = max(map(len, labels))
    lines = [curve.name]
    for label, line in zip(labels, dots, strict=True):
        mark = "┤" if label else "│"
        lines.append(f"{label:>{margin}} {mark}" + "".join(chr(0x2800 + dot) for dot in line))
    left, right = f"{x0:g}", f"{x1:g}"
    lines.append(" " * margin + " └" + "─" * width)
    lines.append(" " * (margin + 2) + left + right.rjust(width - len(left)))
    return "\n".join(lines)


# Braille dots, by column (0, 1) and row (0 … 3) of a character.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _dot(dots: list[list[int]], x: float, y: float) -> None:
    column, row = round(x), round(y)
    dots[row // 4][column // 2] |= _BITS[column % 2][row % 4]


def draw_svg(
    title: str, curves: Sequence[Series], x_name: str, width: int = 640, height: int = 360
) -> str:
    """Draw curves on common axes as an SVG picture, readable on light and on dark ground."""
    left, right, top, bottom = 62, 14, 34, 44 + 18 * len(curves)
    everything = [point for curve in curves for point in curve.points]
    x0, x1, y0, y1 = _limits(everything or [(0.0, 0.0)])
    total = height + bottom - 44

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (x - x0) / (x1 - x0) * (width - left - right)
        down = top + (y1 - y) / (y1 - y0) * (height - top - 44)
        return round(across, 1), round(down, 1)

    floor = height - 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" '
        f'height="{total}" font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>svg{color:#222;background:#fff}@media(prefers-color-scheme:dark)"
        "{svg{color:#ddd;background:#111}}text{fill:currentColor}</style>",
        f'<text x="{left}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for value in ticks(y0, y1):
        y = place(x0, value)[1]
        parts.append(
            f'<path d="M{left} {y}H{width - right}" stroke="currentColor" opacity=".15"/>'
            f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>'
        )
    for value in ticks(x0, x1, 6):
        x = place(value, y0)[0]
        parts.append(
            f'<path d="M{x} {floor}v5" stroke="currentColor"/>'
            f'<text x="{x}" y="{floor + 18}" text-anchor="middle">{value:g}</text>'
        )
    parts.append(f'<path d="M{left} {floor}H{width - right}" stroke="currentColor"/>')
    parts.append(
        f'<text x="{width - right}" y="{floor + 34}" text-anchor="end">{escape(x_name)}</text>'
    )
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        dash = ("", "6 3", "2 2")[number // len(COLOURS) % 3]
        points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in curve.points))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{dash}" stroke-linejoin="round"/>'
        )
        y = height - 4 + 18 * number
        parts.append(
            f'<path d="M{left} {y - 4}h22" stroke="{colour}" stroke-width="3" '
            f'stroke-dasharray="{dash}"/><text x="{left + 28}" y="{y}">{escape(curve.name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])
