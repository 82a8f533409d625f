"""Curves in a terminal, drawn with braille dots."""

from __future__ import annotations

import math

from longlens.charts.scales import limits
from longlens.charts.svg import Line

# Braille dots, by column (0, 1) and row (0 … 3) of a character.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def text_chart(line: Line, width: int = 64, height: int = 12) -> str:
    """Draw one curve in braille, ``width`` × ``height`` characters, with its axes.

    >>> print(text_chart(Line("loss", [(0, 0.0), (10, 1.0)]), width=8, height=2))
    loss
    1.000 ┤⠀⠀⠀⠀⣀⠤⠒⠉
    0.000 ┤⣀⠤⠒⠉⠀⠀⠀⠀
          └────────
           0     10
    """
    if not line.points:
        return f"{line.name}: nothing to draw"
    x0, x1, y0, y1 = limits(line.points)
    columns, rows = 2 * width, 4 * height
    dots = [[0] * width for _ in range(height)]
    places = [
        ((x - x0) / (x1 - x0) * (columns - 1), (y1 - y) / (y1 - y0) * (rows - 1))
        for x, y in line.points
    ]
    for (ax, ay), (bx, by) in zip(places, places[1:] or places, strict=False):
        steps = max(1, math.ceil(max(abs(bx - ax), abs(by - ay))))
        for i in range(steps + 1):
            column, row = round(ax + (bx - ax) * i / steps), round(ay + (by - ay) * i / steps)
            dots[row // 4][column // 2] |= _BITS[column % 2][row % 4]
    labels = [f"{y1 - (y1 - y0) * row / max(1, height - 1):.4g}" for row in range(height)]
    every = max(1, (height - 1) // 3) if height > 2 else 1
    labels = [f"{float(t):.3f}" if abs(float(t)) < 1000 else t for t in labels]
    labels = [t if row % every == 0 or row == height - 1 else "" for row, t in enumerate(labels)]
    margin = max(map(len, labels))
    drawn = [line.name]
    for label, characters in zip(labels, dots, strict=True):
        tick = "┤" if label else "│"
        drawn.append(f"{label:>{margin}} {tick}" + "".join(chr(0x2800 + c) for c in characters))
    left, right = f"{x0:g}", f"{x1:g}"
    drawn.append(" " * margin + " └" + "─" * width)
    drawn.append(" " * (margin + 2) + left + right.rjust(width - len(left)))
    return "\n".join(drawn)
