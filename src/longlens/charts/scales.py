"""Where things go on an axis: ticks, their labels, and the frame around points."""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """1, 2, 5, 10 … between ``low`` and ``high``, or whole powers of ten where those are many.

    Where fewer than three of them lie between, round numbers at even distances.

    >>> log_ticks(0.9, 60), log_ticks(1, 10**6, 4)
    ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [1.0, 100.0, 10000.0, 1000000.0])
    >>> log_ticks(0.97, 1.32)
    [1.0, 1.1, 1.2, 1.3]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        powers = [e for e in range(first, last + 1) if e % every == 0]
        marks = [d * 10.0**e for e in powers for d in digits]
        marks = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if len(marks) <= most:
            return marks if len(marks) > 2 else ticks(low, high)
    return marks


def short(value: float) -> str:
    """A tick's label.

    >>> short(20000), short(0.25), short(1.5e6), short(16384)
    ('20k', '0.25', '1.5M', '16.4k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.3g}{unit}"
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.0e}"


def limits(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """The smallest frame around points; a flat one gets room above and below."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    if y0 == y1:  # a flat curve is drawn through the middle
        room = abs(y0) * 0.1 or 1.0
        y0, y1 = y0 - room, y1 + room
    return x0, x1 if x1 > x0 else x0 + 1.0, y0, y1
