"""Growing contours: many images at once, one paddle at a time.

The two long contours grow in turn. Each paddle tries a few turns and takes the first that keeps its
distance from what is already there; an image that finds none goes some paddles back and tries
again, and is given up after many such steps. Images are therefore at different paddles at the same
time, but every round is one set of array operations over all of them. Distractors come last, into
what room is left. The label is drawn afterwards, so nothing here can depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.pathfinder.direction import direction
from longlens.tasks.pathfinder.parameters import Parameters

Floats = npt.NDArray[Any]  # float32
Bools = npt.NDArray[Any]  # bool
PROPOSALS = 8  # turns tried for each paddle
MEASURED = 4  # of them, whose distances are measured
POINTS = 3  # along a paddle, to measure distances from
BACK = 8  # paddles to go back at a dead end, at most
DISTRACTOR_TRIES = 24  # places tried for each distractor
EASY_TURN = 0.76  # times 1/continuity: one turn in ten is larger, to one side
AWAY = np.float32(-1e4)  # where a paddle is that does not exist


@dataclass
class Scene:
    """The geometry of N images. Points are (x, y) in pixels; pixel i covers i … i+1.

    ``tails``, ``headings``: (N, K, 2) and (N, K), where each paddle begins and points.
    ``contour``: (K,) number of the contour that a paddle belongs to; 1 and 2 are the long ones.
    ``tips``: (N, 2, 2, 2) for the long contours their first and last tip.
    ``margin``: (N,) gap between two paddles of a contour.
    """

    tails: Floats
    headings: Floats
    contour: npt.NDArray[np.uint8]
    tips: Floats
    margin: Floats

    def pick(self, index: npt.NDArray[np.int64] | Bools) -> Scene:
        """Only the images ``index``."""
        tails, headings = self.tails[index], self.headings[index]
        return Scene(tails, headings, self.contour, self.tips[index], self.margin[index])


@lru_cache
def _disc(radius_cells: float) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    reach = int(np.ceil(radius_cells))
    dy, dx = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.int32)
    inside = dy**2 + dx**2 <= radius_cells**2
    return dy[inside], dx[inside]


def draw_angles(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Angles in all directions alike."""
    return (rng.random(shape) * (2 * np.pi)).astype(np.float32)


def draw_turns(rng: np.random.Generator, shape: tuple[int, ...], continuity: float) -> Floats:
    """Turns δ with density ∝ cos²(continuity·δ), by inverting its integral."""
    grid = np.linspace(-np.pi / 2, np.pi / 2, 257)
    cumulative = (grid + direction(grid).prod(axis=-1)) / np.pi + 0.5
    share = rng.random(shape)
    above = np.searchsorted(cumulative, share).clip(1, len(grid) - 1)
    low, high = cumulative[above - 1], cumulative[above]
    turn = grid[above - 1] + (share - low) / (high - low) * (grid[above] - grid[above - 1])
    return np.asarray(turn / continuity, np.float32)


def _along(p: Parameters, tail: Floats, forward: Floats) -> Floats:
    """Points along paddles that begin at ``tail`` (…, 2) and point ``forward``: (…, POINTS, 2)."""
    steps = np.linspace(0, p.paddle_length, POINTS, dtype=np.float32)[:, None]
    return tail[..., None, :] + forward[..., None, :] * steps


def _propose(
    p: Parameters, rng: np.random.Generator, head: Floats, heading: Floats, margin: Floats
) -> tuple[Floats, Floats, Floats]:
    """Propose next paddles after ``head`` (N, 2): tails, headings and points along them."""
    turns = draw_turns(rng, (len(head), PROPOSALS), p.continuity)
    headings = heading[:, None] + turns
    forward = direction(headings)
    tails = head[:, None] + margin[:, None, None] * forward
    return tails, headings, _along(p, tails, forward)


def _distance(points: Floats, others: Floats) -> Floats:
    """Least distance from points (N, K, POINTS, 2) to others (N, M, 2), (N, K)."""
    n, k = points.shape[:2]
    flat = points.reshape(n, -1, 2)
    out = np.empty((n, k), np.float32)
    for start in range(0, n, 128):  # small enough for the processor's cache
        rows = slice(start, start + 128)
        dx = flat[rows, :, None, 0] - others[rows, None, :, 0]
        dy = flat[rows, :, None, 1] - others[rows, None, :, 1]
        dx *= dx
        dy *= dy
        dx += dy
        out[rows] = np.sqrt(dx.min(axis=2).reshape(-1, k, POINTS).min(axis=2))
    return out


class _Pairs:
    """The two long contours of N images while they grow; paddle t of an image is contour t % 2."""

    def __init__(self, p: Parameters, rng: np.random.Generator, count: int) -> None:
        self.p, self.rng = p, rng
        self.total = 2 * p.contour_length
        self.margin = rng.choice(np.array(p.margins, np.float32), count)
        inner = min(2 * p.seed_distance, 0.45 * p.size)
        self.tails = np.full((count, self.total, 2), AWAY, np.float32)
        self.headings = draw_angles(rng, (count, self.total))
        self.points = np.full((count, self.total, POINTS, 2), AWAY, np.float32)
        middle = inner + rng.random((count, 2)) * (p.size - 2 * inner)
        angle = draw_angles(rng, (count,))
        for contour, side in ((0, -0.5), (1, 0.5)):  # alike, so that nothing tells A from B
            self.tails[:, contour] = middle + side * p.seed_distance * direction(angle)
        first = direction(self.headings[:, :2])
        self.points[:, :2] = _along(p, self.tails[:, :2], first)
        self.next = np.full(count, 2)
        self.dead_ends = np.zeros(count, np.int64)

    def heads(self, paddle: npt.NDArray[np.int64]) -> Floats:
        """Where paddle ``paddle[i]`` of image i ends, (N, 2)."""
        image = np.arange(len(paddle))
        forward = direction(self.headings[image, paddle])
        return self.tails[image, paddle] + self.p.paddle_length * forward

    def round(self) -> None:
        """Add one paddle to every unfinished image, or send it back some paddles."""
        p, image = self.p, np.flatnonzero(self.next < self.total)
        at = self.next[image]
        before = at - 2  # the last paddle of the same contour
        forward = direction(self.headings[image, before])
        head = self.tails[image, before] + p.paddle_length * forward
        tails, headings, points = _propose(
            p, self.rng, head, self.headings[image, before], self.margin[image]
        )
        inside = ((points > p.padding) & (points < p.size - p.padding)).all(axis=(2, 3))
        inside &= self._can_turn(points[:, :, -1], headings, self.margin[image])
        # Distances cost the most: measure them for the first few proposals that stay inside.
        row = np.arange(len(image))
        few = np.argsort(~inside, axis=1, kind="stable")[:, :MEASURED]
        tails, headings, points, good = (
            array[row[:, None], few] for array in (tails, headings, points, inside)
        )
        by_contour = self.points[image].reshape(len(image), p.contour_length, 2, POINTS, 2)
        others = by_contour[row, :, 1 - at % 2].reshape(len(image), -1, 2)
        good &= _distance(points, others) >= p.clearance
        by_contour[row, before // 2, at % 2] = AWAY  # a paddle touches the one before it
        own = by_contour[row, :, at % 2].reshape(len(image), -1, 2)
        good &= _distance(points, own) >= self.margin[image, None] + 1.0
        other_tip = self.tails[image, 1 - at % 2][:, None]
        good &= _distance(points, other_tip) >= p.tip_clearance
        last = np.flatnonzero(at >= self.total - 2)  # its head may carry a marker
        if len(last):
            end = np.repeat(points[last, :, -1:], POINTS, axis=2)
            good[last] &= _distance(end, others[last]) >= p.tip_clearance
            good[last] &= ((end > p.marker_radius) & (end < p.size - p.marker_radius)).all((2, 3))
        found, first = good.any(axis=1), good.argmax(axis=1)
        row, here = image[found], np.flatnonzero(found)
        self.tails[row, at[found]] = tails[here, first[found]]
        self.headings[row, at[found]] = headings[here, first[found]]
        self.points[row, at[found]] = points[here, first[found]]
        self.next[row] += 1
        stuck = image[~found]
        self.dead_ends[stuck] += 1
        back = self.rng.integers(1, BACK + 1, len(stuck))
        self.next[stuck] = np.maximum(2, self.next[stuck] - back)
        gone = np.arange(self.total)[None] >= self.next[stuck, None]
        kept = self.points[stuck]
        kept[gone] = AWAY
        self.points[stuck] = kept

    def _can_turn(self, head: Floats, heading: Floats, margin: Floats) -> Bools:
        """Whether a contour at ``head`` (N, K, 2) can still turn away from the border.

        It can if the circle of a turn that is easily drawn lies inside the image on either side.
        Without this, most contours run into the border and an image takes seconds.
        """
        p = self.p
        radius = (p.paddle_length + margin[:, None]) * p.continuity / EASY_TURN
        normal = direction(heading)[..., ::-1] * np.array([-1, 1], np.float32)
        low = (p.padding + radius)[..., None]
        fits = np.zeros(heading.shape, bool)
        for side in (-1, 1):
            centre = head + side * radius[..., None] * normal
            fits |= ((centre >= low) & (centre <= p.size - low)).all(axis=-1)
        return fits

    def keep(self, index: npt.NDArray[np.int64] | Bools) -> None:
        """Drop all other images."""
        for name in ("margin", "tails", "headings", "points", "next", "dead_ends"):
            setattr(self, name, getattr(self, name)[index])

    def tips(self) -> Floats:
        """Return the first and last tip of both contours, (N, 2, 2, 2)."""
        last = [self.heads(np.full(len(self.next), self.total - 2 + c)) for c in (0, 1)]
        return np.stack([np.stack([self.tails[:, c], last[c]], axis=1) for c in (0, 1)], axis=1)

    def clear(self) -> Bools:
        """Room for a marker at all four tips, whichever will be drawn; no two markers touching."""
        p, tips = self.p, self.tips()
        clear = ((tips >= p.marker_radius) & (tips <= p.size - p.marker_radius)).all(axis=(1, 2, 3))
        for c in (0, 1):
            others = self.points[:, 1 - c :: 2].reshape(len(tips), -1, 2)
            ends = np.repeat(tips[:, c, :, None], POINTS, axis=2)
            clear &= (_distance(ends, others) >= p.tip_clearance).all(axis=1)
        corners = tips.reshape(-1, 4, 2)
        apart = 2 * p.marker_radius + p.link + 1
        for a, b in ((0, 1), (2, 3), (0, 3), (1, 2)):  # the pairs that can be marked together
            clear &= np.linalg.norm(corners[:, a] - corners[:, b], axis=-1) >= apart
        return np.asarray(clear)


def join(scenes: list[Scene]) -> Scene:
    """All images of scenes with the same number of paddles."""
    tails, headings, tips, margin = (
        np.concatenate([getattr(scene, name) for scene in scenes])
        for name in ("tails", "headings", "tips", "margin")
    )
    return Scene(tails, headings, scenes[0].contour, tips, margin)


def grow_contours(p: Parameters, rng: np.random.Generator, count: int) -> Scene:
    """Grow the two long contours of ``count`` candidate images; return those that succeeded."""
    pairs = _Pairs(p, rng, count)
    for _ in range(8 * pairs.total):
        if (pairs.next == pairs.total).all():
            break
        pairs.round()
        pairs.keep(pairs.dead_ends < p.contour_length)
    pairs.keep(pairs.next == pairs.total)
    pairs.keep(pairs.clear())
    order = np.r_[0 : pairs.total : 2, 1 : pairs.total : 2]
    return Scene(
        pairs.tails[:, order],
        pairs.headings[:, order],
        np.repeat([1, 2], p.contour_length).astype(np.uint8),
        pairs.tips(),
        pairs.margin,
    )


class _Ground:
    """Which cells of N images are taken; cells are half a pixel up to size 64, a pixel above."""

    def __init__(self, count: int, p: Parameters) -> None:
        self.scale = 2 if p.size <= 64 else 1
        self.cells = p.size * self.scale
        centres = (np.arange(self.cells) + 0.5) / self.scale
        outside = (centres < p.padding) | (centres > p.size - p.padding)
        border = outside[:, None] | outside[None, :]
        self.taken = np.broadcast_to(border, (count, self.cells, self.cells)).copy()

    def free(self, points: Floats) -> Bools:
        """Whether points (N·t, …, 2), t rows to an image, lie on free cells inside it."""
        cell = np.floor(points * self.scale).astype(np.int32)
        inside = ((cell >= 0) & (cell < self.cells)).all(axis=-1)
        cell = np.clip(cell, 0, self.cells - 1)
        image = np.arange(len(points)) // (len(points) // len(self.taken))
        image = image.reshape(-1, *[1] * (points.ndim - 2))
        return np.asarray(inside & ~self.taken[image, cell[..., 1], cell[..., 0]])

    def take(self, points: Floats, radius: float) -> None:
        """Mark every cell within ``radius`` of points (N, n, 2) as taken."""
        dy, dx = _disc(radius * self.scale)
        cell = np.floor(points * self.scale).astype(np.int32)
        y = np.clip(cell[..., 1, None] + dy, 0, self.cells - 1)
        x = np.clip(cell[..., 0, None] + dx, 0, self.cells - 1)
        self.taken[np.arange(len(points))[:, None, None], y, x] = True

    def places(self, rng: np.random.Generator, count: int) -> Floats:
        """Return ``count`` random free places in each image, (N·count, 2)."""
        taken = self.taken.reshape(len(self.taken), -1)
        cells = taken.shape[1]
        # Scores are distinct, and the chosen ones sorted: neither the order of equal values nor
        # argpartition's is the same on all processors.
        score = np.where(taken, 1.0 + np.arange(cells) / cells, rng.random(taken.shape))
        few = np.argpartition(score, count, axis=1)[:, :count]
        best = np.take_along_axis(score, few, axis=1).argsort(axis=1)
        cell = np.take_along_axis(few, best, axis=1).reshape(-1)
        corner = np.stack([cell % self.cells, cell // self.cells], axis=-1)
        return ((corner + rng.random(corner.shape)) / self.scale).astype(np.float32)


def add_distractors(p: Parameters, rng: np.random.Generator, scene: Scene) -> tuple[Scene, Bools]:
    """Add as many distractors as fit, up to the published number; say where any did, (N,)."""
    count = len(scene.tips)
    if not count:
        return scene, np.zeros(0, bool)
    ground = _Ground(count, p)
    ground.take(scene.tips.reshape(count, 4, 2), p.tip_clearance)
    ground.take(
        _along(p, scene.tails, direction(scene.headings)).reshape(count, -1, 2), p.clearance
    )
    tails, headings = [scene.tails], [scene.headings]
    placed = np.zeros(count, np.int64)
    margins = np.repeat(scene.margin, DISTRACTOR_TRIES)
    for _ in range(p.distractors):
        tail = [ground.places(rng, DISTRACTOR_TRIES)]
        heading = [draw_angles(rng, (len(margins),))]
        good: Bools = np.asarray(ground.free(_along(p, tail[0], direction(heading[0]))).all(axis=1))
        for _ in range(p.distractor_length - 1):
            head = tail[-1] + p.paddle_length * direction(heading[-1])
            next_tails, next_headings, points = _propose(p, rng, head, heading[-1], margins)
            free: Bools = np.asarray(ground.free(points).all(axis=2))
            row, first = np.arange(len(margins)), free.argmax(axis=1)
            good &= free.any(axis=1)
            tail.append(next_tails[row, first])
            heading.append(next_headings[row, first])
        tried = np.asarray(good).reshape(count, DISTRACTOR_TRIES)
        fits: Bools = np.asarray(tried.any(axis=1))
        chosen = np.arange(count) * DISTRACTOR_TRIES + tried.argmax(axis=1)
        new_tails = np.where(fits[:, None, None], np.stack(tail, axis=1)[chosen], AWAY)
        new_headings = np.stack(heading, axis=1)[chosen]
        points = _along(p, new_tails, direction(new_headings)).reshape(count, -1, 2)
        ground.take(points, p.clearance)
        tails.append(new_tails)
        headings.append(new_headings)
        placed += fits
    numbers = np.repeat(np.arange(3, 3 + p.distractors), p.distractor_length).astype(np.uint8)
    full = Scene(
        np.concatenate(tails, axis=1),
        np.concatenate(headings, axis=1),
        np.concatenate([scene.contour, numbers]),
        scene.tips,
        scene.margin,
    )
    return full, placed > 0
