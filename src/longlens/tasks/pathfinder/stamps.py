"""Pictures of single dashes and markers, drawn on a finer grid and reduced by Lanczos' filter.

A dash has one of a few hundred directions and begins or ends in the middle of a pixel, so each is
drawn once and stamped from then on. Everything is rounded to integers here; what comes after is
integer arithmetic and the same on every processor.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from longlens.tasks.arrays import Array, Bools, Bytes, Ints
from longlens.tasks.pathfinder.direction import direction
from longlens.tasks.pathfinder.parameters import FINENESS

_LOBES = 3  # of Lanczos' filter, on either side
_UNIT = 2**16  # weight 1 of the filter as an integer
INK = 2**12  # white; the filter's ripples make some dashes brighter


def round_up(values: Array) -> Ints:
    """Round up to integers; what is an integer but for rounding errors stays one."""
    return np.ceil(values - 1e-9).astype(np.int64)


def disc(radius: float) -> Ints:
    """Offsets (n, 2) of the grid points within ``radius`` of a grid point."""
    reach = int(radius)
    points = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
    return np.asarray(points[(points**2).sum(axis=1) <= radius**2])


def _sinc(values: Array) -> Array:
    angle = np.pi * np.where(values == 0, 1.0, values)
    return np.where(values == 0, 1.0, direction(angle)[..., 1] / angle)


@lru_cache
def _filter(fine: int, coarse: int) -> Ints:
    """Weights (coarse, fine) that reduce a line of ``fine`` pixels to ``coarse``, times _UNIT."""
    ratio = fine / coarse
    centre = (np.arange(coarse) + 0.5) * ratio
    offset = (np.arange(fine) + 0.5 - centre[:, None]) / ratio
    weight = np.where(abs(offset) < _LOBES, _sinc(offset) * _sinc(offset / _LOBES), 0.0)
    total = np.zeros(coarse)
    for column in weight.T:  # not weight.sum(): its order of adding depends on the processor
        total += column
    return np.rint(weight / total[:, None] * _UNIT).astype(np.int64)


def reduce(fine: Bools, size: int) -> Ints:
    """Reduce black and white pictures (…, n, n) to (…, size, size); ripples leave 0 … INK."""
    weight = _filter(fine.shape[-1], size)
    total = weight @ fine.astype(np.int64) @ weight.T
    return np.asarray(total * INK // _UNIT**2)


def reduce_bytes(fine: Bools, size: int) -> Bytes:
    """Reduce black and white pictures to bytes, first their rows and then their columns."""
    weight = _filter(fine.shape[-1], size)
    rows = (fine.astype(np.int64) * 255 @ weight.T + _UNIT // 2) // _UNIT
    both = (weight @ rows.clip(0, 255) + _UNIT // 2) // _UNIT
    return np.asarray(both.clip(0, 255).astype(np.uint8))


def _line(size: int, end: Ints, width: int) -> Bools:
    """Draw a line from the middle of a square to ``end`` (row and column from the middle).

    A thin line is one pixel in each row or column, whichever it crosses more of. A wide one is a
    parallelogram with corners on the pixel grid, filled row by row between the nearest pixels.
    """
    picture = np.zeros((size, size), bool)
    middle = size // 2
    if width == 1:
        steps = int(abs(end).max())
        along = np.arange(steps + 1)[:, None]
        y, x = (np.sign(end) * ((2 * along * abs(end) + steps) // (2 * steps))).T + middle
        picture[y, x] = True
        return picture
    across = np.array([end[1], -end[0]]) * (1 if end[1] > 0 or end[1] == 0 > end[0] else -1)
    normal = across / np.sqrt((across**2).sum())
    low, high = (np.floor(normal * part + 0.5) for part in (-((width - 1) // 2), width // 2))
    corners = [low, low + end, high + end, high]
    for y in range(int(min(c[0] for c in corners)), int(max(c[0] for c in corners)) + 1):
        crossings = []
        for (y0, x0), (y1, x1) in zip(corners, corners[1:] + corners[:1], strict=True):
            if min(y0, y1) <= y <= max(y0, y1):
                flat = y0 == y1
                crossings += [x0, x1] if flat else [x0 + (y - y0) * (x1 - x0) / (y1 - y0)]
        left, right = int(np.ceil(min(crossings) - 0.5)), int(np.floor(max(crossings) + 0.5))
        picture[y + middle, left + middle : right + middle + 1] = True
    return picture


def dashes(units: Array, length: int, thickness: float, margin: int) -> tuple[Ints, Bytes]:
    """Draw dashes from the middle of a square into the directions ``units`` (D, 2: row, column).

    Returns:
        Their ink, in units of 1/INK, and the zones within ``margin`` of them that no other dash may
        enter, in bytes; both (D, W, W).

    >>> ink, zone = dashes(np.array([[0.0, 1.0]]), 2, 0.5, 1)
    >>> (ink[0, 4] * 255 // INK).tolist(), zone[0, 4].tolist()
    ([0, 0, 1, 0, 102, 147, 115, 0, 0], [0, 3, 0, 155, 255, 255, 255, 183, 3])
    """
    reach = length + int(np.ceil(thickness)) + margin
    size, width = 2 * reach * FINENESS + 1, round(thickness * FINENESS)
    ends = round_up(units * length * FINENESS)
    fine = np.stack([_line(size, end, width) for end in ends])
    zone = np.zeros_like(fine)
    for dy, dx in disc(margin * FINENESS):
        zone |= np.roll(fine, (dy, dx), axis=(1, 2))  # the border is empty and wide enough
    return reduce(fine, 2 * reach + 1).clip(0), reduce_bytes(zone, 2 * reach + 1)


def marker(radius: float) -> Ints:
    """Draw a marker; it stands a quarter of a pixel above and left of the middle."""
    reach = int(np.ceil(radius)) + _LOBES
    fine = np.zeros(((2 * reach + 1) * FINENESS,) * 2, bool)
    y, x = (disc(radius * FINENESS) + reach * FINENESS).T
    fine[y, x] = True
    return reduce(fine, 2 * reach + 1).clip(0, INK)
