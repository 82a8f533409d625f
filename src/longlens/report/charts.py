"""Curves: drawn in the terminal with braille dots, and as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from longlens.report import svg

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
        if line.get("split") == split and _number(line.get(metric)) and _number(line.get(x))
    ]
    return Series(name, points)


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


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
    x0, x1, y0, y1 = svg.limits(curve.points)
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
    lines = [svg.Line(curve.name, curve.points, style) for style, curve in enumerate(curves)]
    return svg.standalone(svg.line_chart(title, lines, x_name, width=width, height=height))
