"""Growing contours on the pixel grid, many images at once, by the rules of the original.

The two long contours grow in turn, a dash each. A dash that finds no place ends the attempt, and
both contours start anew. Distractors come last, into what room is left. A dash's keep-out zone
counts only once the next dash of its contour is placed, and that of the first contour's last dash
never does, so contours touch and cross: as in the original. The label is drawn afterwards, so
nothing here can depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array, Bools, Bytes, Ints
from longlens.tasks.pathfinder.direction import direction
from longlens.tasks.pathfinder.parameters import Parameters
from longlens.tasks.pathfinder.tables import Tables

TRIES = 3  # of a dash, before its contour is given up
DISTRACTOR_TRIES = 5  # of a distractor, before the image does without
PLACES = 64  # drawn for a distractor's first dash, of which the first free one is taken
CLASH = 459  # two zones that add up to this (1.8 times white) are too near
FREE = 76  # a pixel whose zone is no brighter (0.3 times white) is free


def stamp(canvas: Array, rows: Ints, where: Ints, value: Array) -> None:
    """Make pixels ``where`` (n, m) of the canvases ``rows`` (n,) at least ``value``, in place."""
    flat = canvas.reshape(-1)
    where = where + rows[:, None] * canvas.shape[1]
    flat[where] = np.maximum(flat[where], value)


@dataclass
class Scene:
    """Dashes of N images: direction (N, n), anchor (N, n, 2), and whether there is one (N, n).

    The first 2·contour_length belong to the long contours, in turn. ``tips`` (N, 2, 2, 2) are their
    first and last points.
    """

    direction: Ints
    anchor: Ints
    present: Bools
    tips: Ints

    def pick(self, index: Any) -> Scene:
        """Only the images ``index``."""
        return Scene(
            self.direction[index], self.anchor[index], self.present[index], self.tips[index]
        )


def join(scenes: list[Scene]) -> Scene:
    """All images of several scenes."""
    names = ("direction", "anchor", "present", "tips")
    return Scene(*(np.concatenate([getattr(scene, name) for scene in scenes]) for name in names))


@dataclass
class _Dash:
    """The last dash of a contour in each of n images."""

    pivot: Ints  # (n, 2)
    anchor: Ints  # (n, 2)
    direction: Ints  # (n,)

    def pick(self, index: Any) -> _Dash:
        return _Dash(self.pivot[index], self.anchor[index], self.direction[index])


@dataclass
class Ground:
    """What is taken in N images: zones of dashes, and all that is within the margin of a zone."""

    zone: Bytes  # (N, pixels of a canvas)
    near: Bytes

    @classmethod
    def bare(cls, p: Parameters, t: Tables, count: int) -> Ground:
        """Only the padding is taken."""
        canvases = []
        for reach in (p.padding, p.padding + t.margin):
            square = np.zeros((t.width, t.width), np.uint8)
            inner = square[t.border : -t.border, t.border : -t.border]
            inner[:reach] = inner[-reach:] = 255
            inner[:, :reach] = inner[:, -reach:] = 255
            canvases.append(np.tile(square.reshape(1, -1), (count, 1)))
        return cls(*canvases)

    def pick(self, index: Any) -> Ground:
        """Copy the images ``index``."""
        return Ground(self.zone[index], self.near[index])

    def take(self, t: Tables, rows: Ints, dash: _Dash) -> None:
        """Take the place of one dash in each image of ``rows``."""
        flat = t.flat(dash.anchor)[:, None]
        for canvas, stamps in ((self.zone, t.zone), (self.near, t.near)):
            stamp(canvas, rows, flat + stamps.where[dash.direction], stamps.value[dash.direction])


def _extend(
    p: Parameters, t: Tables, rng: np.random.Generator, ground: Ground, rows: Ints, last: _Dash
) -> tuple[_Dash, Bools]:
    """Propose the dash after ``last`` in each image of ``rows``; say where one was found."""
    count = len(rows)
    pivot = last.pivot + t.advance[last.direction]
    options = t.options[last.direction]
    heads = pivot[:, None] + t.step[options]
    inside = ((heads >= 0) & (heads < p.size)).all(axis=-1)
    flat = t.flat(heads.clip(0, p.size - 1))
    near = ground.near[rows[:, None], flat].astype(np.int64)
    total = (t.weight[last.direction] * (255 - near) * inside).cumsum(axis=1)
    alive = total[:, -1] >= t.dead_end
    chosen = np.zeros(count, np.int64)
    placed = np.zeros(count, bool)
    for _ in range(TRIES):
        left = np.flatnonzero(alive & ~placed)
        aim = (rng.random(len(left)) * total[left, -1]).astype(np.int64)
        pick = (total[left] > aim[:, None]).argmax(axis=1)
        way = options[left, pick]
        zone = t.zone.value[way]
        zone += ground.zone[rows[left, None], flat[left, pick][:, None] + t.zone.where[way]]
        chosen[left] = pick
        placed[left] = zone.max(axis=1) < CLASH
    image = np.arange(count)
    return _Dash(pivot, heads[image, chosen], options[image, chosen]), placed


def grow_contours(
    p: Parameters, t: Tables, rng: np.random.Generator, ground: Ground
) -> tuple[Scene, Ints]:
    """Grow the two long contours of candidate images on bare ground, in place.

    Returns:
        The scenes that succeeded, and their rows.
    """
    count = len(ground.zone)
    which = rng.integers(0, len(t.ways), count)
    way = np.stack([t.ways[which], rng.integers(0, 360, count)])
    one = t.corner[which] + (rng.random((count, 2)) * t.extent[which]).astype(np.int64)
    aside = direction(np.arange(360) * (np.pi / 180)) * p.seed_distance
    two = one + np.rint(aside[rng.integers(0, 360, count)]).astype(np.int64)
    tails = np.stack([one, two])
    last = [_Dash(tails[c] + t.seed_pivot[way[c]], tails[c], len(t.step) + way[c]) for c in (0, 1)]
    rows = np.arange(count)
    total = 2 * p.contour_length
    ways = np.zeros((count, total), np.int64)
    anchors = np.zeros((count, total, 2), np.int64)
    ways[:, :2] = np.stack([dash.direction for dash in last], axis=1)
    anchors[:, :2] = tails.swapaxes(0, 1)
    for number in range(2, total):
        contour = number % 2
        new, placed = _extend(p, t, rng, ground, rows, last[contour])
        rows, last = rows[placed], [dash.pick(placed) for dash in last]
        ground.take(t, rows, last[contour])
        last[contour] = new.pick(placed)
        ways[rows, number], anchors[rows, number] = last[contour].direction, last[contour].anchor
    ground.take(t, rows, last[1])
    ways, anchors = ways[rows], anchors[rows]
    tips = np.stack([anchors[:, :2], anchors[:, -2:]], axis=2)
    return Scene(ways, anchors, np.ones(ways.shape, bool), tips), rows


def _seed_distractor(
    p: Parameters, t: Tables, rng: np.random.Generator, ground: Ground, rows: Ints
) -> tuple[_Dash, Bools]:
    """Propose the first dash of a distractor in each image of ``rows``; say where one was found."""
    count = len(rows)
    ways = rng.integers(0, 360, count)
    places = rng.integers(0, p.size, (count, PLACES, 2))
    points = places[:, :, None] + t.core[ways][:, None]
    free = ground.zone[rows[:, None, None], t.flat(points)].max(axis=-1) <= FREE
    free &= ~((points == 0) | (points == p.size - 1)).any(axis=(2, 3))
    placed = free.any(axis=1) & t.can_begin[ways]
    tail = places[np.arange(count), free.argmax(axis=1)]
    return _Dash(tail + t.seed_pivot[ways], tail, len(t.step) + ways), placed


def _grow_distractor(
    p: Parameters, t: Tables, rng: np.random.Generator, ground: Ground, rows: Ints
) -> tuple[Ints, list[_Dash]]:
    """Try one distractor in each image of ``rows``: the rows where it found room, its dashes."""
    dash, placed = _seed_distractor(p, t, rng, ground, rows)
    rows, dashes = rows[placed], [dash.pick(placed)]
    # its own zones count while it grows, and are kept only if it becomes complete
    tentative = ground.pick(rows)
    here = np.arange(len(rows))
    for _ in range(p.distractor_length - 1):
        new, placed = _extend(p, t, rng, tentative, here, dashes[-1])
        here, dashes = here[placed], [part.pick(placed) for part in dashes]
        tentative.take(t, here, dashes[-1])
        dashes.append(new.pick(placed))
    tentative.take(t, here, dashes[-1])
    rows = rows[here]
    ground.zone[rows], ground.near[rows] = tentative.zone[here], tentative.near[here]
    return rows, dashes


def add_distractors(
    p: Parameters, t: Tables, rng: np.random.Generator, scene: Scene, ground: Ground
) -> Scene:
    """Add as many distractors as find room, up to the published number."""
    count, length = len(ground.zone), p.distractor_length
    shape = (count, p.distractors, length)
    ways, anchors = np.zeros(shape, np.int64), np.zeros((*shape, 2), np.int64)
    present = np.zeros(shape, bool)
    for number in range(p.distractors):
        for _ in range(DISTRACTOR_TRIES):
            missing = np.flatnonzero(~present[:, number, 0])
            if not len(missing):
                break
            rows, dashes = _grow_distractor(p, t, rng, ground, missing)
            ways[rows, number] = np.stack([part.direction for part in dashes], axis=1)
            anchors[rows, number] = np.stack([part.anchor for part in dashes], axis=1)
            present[rows, number] = True
    flat = (count, p.distractors * length)
    return Scene(
        np.concatenate([scene.direction, ways.reshape(flat)], axis=1),
        np.concatenate([scene.anchor, anchors.reshape(*flat, 2)], axis=1),
        np.concatenate([scene.present, present.reshape(flat)], axis=1),
        scene.tips,
    )
