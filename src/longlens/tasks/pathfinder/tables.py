"""What a dash of each direction looks like, and where the next one may go.

A contour walks on the pixel grid. Each dash hangs on a *pivot*, ``margin`` before its tail; its
head lies on the circle of radius ``length + margin`` around it, moved to the pixel grid, so there
are as many directions as grid points next to that circle. The next pivot lies ``margin`` beyond the
head. First dashes have any of 360 directions. Directions are numbered: those of steps come first,
then the 360; a dash is stamped about its *anchor*, the head of a step or the tail of a first dash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from longlens.tasks.arrays import Array, Bools, Bytes, Ints
from longlens.tasks.pathfinder.direction import direction
from longlens.tasks.pathfinder.parameters import Parameters
from longlens.tasks.pathfinder.stamps import dashes, disc, marker, round_up

_UNIT = 2**16  # weight 1 of a turn as an integer
FAINT = 8  # the filter's faint ripples around a zone keep nobody out
_DEAD_END = 1e-4  # weight of all turns together below which a contour cannot go on


@dataclass(frozen=True)
class Stamps:
    """One picture for each of D directions, as the pixels that are not black.

    ``where`` (D, n) are flat offsets from the anchor, ``value`` (D, n) their brightness; directions
    with fewer pixels have black ones as well. No pixel occurs twice.
    """

    where: Ints
    value: npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Tables:
    """Everything that depends on the direction of a dash alone; D directions, K of them of steps.

    Points and offsets are (row, column). Flat ones are of a canvas with ``border`` more pixels on
    every side than the picture has, so that no stamp has to be cut.
    """

    margin: int
    border: int
    width: int  # of the canvas
    ink: Stamps  # a dash about its anchor
    zone: Stamps  # where no other dash may be
    near: Stamps  # within the margin of that zone, where no other dash may end
    step: Ints  # (K, 2) from pivot to head
    advance: Ints  # (D, 2) from a dash's pivot to the next
    options: Ints  # (D, C) steps that can follow; filled up with weight 0
    weight: Ints  # (D, C)
    dead_end: int
    seed_pivot: Ints  # (360, 2) from a first dash's tail to its pivot
    core: Ints  # (360, n, 2) offsets from a first dash's tail that must be free
    can_begin: Bools  # (360,) directions that a contour's first dash can have
    ways: Ints  # (n,) directions that a first contour's first dash can have
    corner: Ints  # (n, 2) its tail lies in a rectangle that begins here
    extent: Ints  # (n, 2) and has these sides
    marker: Stamps  # of one "direction"

    def flat(self, points: Array) -> Ints:
        """Flat position on the canvas of points (…, 2)."""
        return np.asarray(
            (points[..., 0] + self.border) * self.width + points[..., 1] + self.border
        )

    def canvas(self, count: int) -> npt.NDArray[np.uint16]:
        """Return ``count`` black canvases, (count, width·width)."""
        return np.zeros((count, self.width**2), np.uint16)

    def crop(self, canvas: Array) -> Array:
        """Cut the pictures (N, S·S) out of their canvases."""
        inner = slice(self.border, self.width - self.border)
        square = canvas.reshape(-1, self.width, self.width)[:, inner, inner]
        return np.ascontiguousarray(square).reshape(len(canvas), -1)


def _square(width: int) -> Ints:
    """Offsets (width², 2) of a square from its middle."""
    return np.asarray(np.mgrid[:width, :width].reshape(2, -1).T - width // 2)


def _stamps(pictures: Array, width: int, least: int = 1) -> Stamps:
    """Keep the pixels of pictures (D, W, W) that are at least as bright as ``least``."""
    flat = pictures.reshape(len(pictures), -1)
    kept = np.argsort(flat < least, axis=1, kind="stable")
    kept = kept[:, : int((flat >= least).sum(axis=1).max())]
    value = np.take_along_axis(flat, kept, axis=1)
    where = (_square(pictures.shape[1]) @ np.array([width, 1]))[kept]
    return Stamps(where, np.where(value >= least, value, 0).astype(np.uint16))


def _spread(zones: Bytes, margin: int) -> Bytes:
    """Zones (D, W, W), made wider by the margin."""
    wide = np.pad(zones, ((0, 0), (margin, margin), (margin, margin)))
    out = wide.copy()
    for dy, dx in disc(margin):
        np.maximum(out, np.roll(wide, (dy, dx), axis=(1, 2)), out=out)
    return out


def _weights(units: Array, steps: Array, continuity: float) -> Ints:
    """Weight cos²(continuity·turn) of every step after every direction, (D, K)."""
    cosine = (units[:, None] * steps).sum(axis=-1)  # two terms: no order to add them in
    sine = units[:, None, 0] * steps[:, 1] - units[:, None, 1] * steps[:, 0]
    turn = np.minimum(continuity * abs(np.arctan2(sine, cosine)), np.pi / 2)
    # The last digits of the arcus tangens differ between processors; rounding removes them.
    turn = np.rint(turn * 2**20) / 2**20
    return np.asarray(np.rint(direction(turn)[..., 0] ** 2 * _UNIT).astype(np.int64))


@lru_cache
def tables(p: Parameters, margin: int) -> Tables:
    """Make the tables of one set of images and one of its margins."""
    radius = p.paddle_length + margin
    count = int(np.ceil(2 * np.pi * radius))  # points on the circle, one pixel apart
    circle = direction(np.arange(count) / radius)[:, ::-1] * radius
    step = np.unique(np.floor(circle).astype(np.int64), axis=0)
    step_unit = step / np.sqrt((step**2).sum(axis=1))[:, None]
    seed_unit = direction(np.arange(360) * (np.pi / 180))[:, ::-1]
    units = np.concatenate([step_unit, seed_unit])

    heading = np.concatenate([-step_unit, seed_unit])  # steps are drawn from head to tail
    ink, zone = dashes(heading, p.paddle_length, p.thickness, margin)
    disk = marker(p.marker_radius)
    border = max(ink.shape[1] + 2 * margin, len(disk)) // 2
    width = p.size + 2 * border

    weight = _weights(units, step_unit, p.continuity)
    most = int((weight > 0).sum(axis=1).max())
    options = np.argsort(weight == 0, axis=1, kind="stable")[:, :most]

    # Where the original looks for room is one pixel below and right of where it draws.
    core = []
    offsets = _square(ink.shape[1])
    for first in zone[len(step) :]:
        taken = offsets[first.reshape(-1) == 255] + 1
        core.append(taken[(abs(taken) <= radius).all(axis=1)])
    full = max(map(len, core))
    # The first dash of all must lie well inside the picture, two seed distances from the border.
    inner = 2 * p.seed_distance
    corner = np.stack([inner - part.min(axis=0) for part in core])
    extent = np.stack([p.size - inner - part.max(axis=0) for part in core]) - corner
    # A direction whose core lies on one side of the tail finds no room at all: at some corner of
    # the picture the core is outside, which the original takes for a picture without room.
    can_begin = np.ones(360, bool)
    for side in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        can_begin &= [bool((part * side >= 0).all(axis=1).any()) for part in core]
    ways = np.flatnonzero(can_begin & (extent > 0).all(axis=1))
    return Tables(
        margin=margin,
        border=border,
        width=width,
        ink=_stamps(ink, width),
        zone=_stamps(zone, width, FAINT),
        near=_stamps(_spread(zone, margin), width, FAINT),
        step=step,
        advance=round_up((p.paddle_length + 2 * margin) * units),
        options=options,
        weight=np.take_along_axis(weight, options, axis=1),
        dead_end=round(_DEAD_END * 255 * _UNIT),
        seed_pivot=round_up(p.paddle_length * seed_unit) + round_up(-radius * seed_unit),
        core=np.stack([np.resize(part, (full, 2)) for part in core]),
        can_begin=can_begin,
        ways=ways,
        corner=corner[ways],
        extent=extent[ways],
        marker=_stamps(disk[None], width),
    )
