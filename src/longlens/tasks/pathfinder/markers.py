"""Where the two markers go, so that nothing but the contours tells the label.

Contour A has the tips a0 (its seed) and a1, contour B the tips b0 and b1. One contour (label 1) is
marked by (a0, a1) or (b0, b1), two (label 0) by (a0, b1) or (b0, a1): always one seed and one far
end. The label is drawn without a look at the picture. But a1 grew from a0 and b1 did not: left to
chance, markers of one contour would lie differently from markers of two, which a classifier could
use without seeing any contour. So of the two pairs that a label allows, the one is marked that
makes the markers of both labels alike as a whole. Where two pairs are too few to hide the
difference (contours that end near their own seed: easy sets, 64 × 64), more scenes are made than
are needed, and those are kept whose markers can be made alike.

How unlike two sets of marker pairs are is measured by a kernel (the maximum mean discrepancy of
Gretton et al. 2012): the mean likeness of pairs inside the sets, less that between them. With the
kernel used here it is zero only for equal distributions, so no statistic of the geometry is left
out, linear or not.

``choose`` starts from any choice and changes, one image at a time, the one that lowers it the most,
until none does. Likeness is rounded to integers: sums are exact, so the choice does not depend on
the order in which a machine adds. It sees marker positions and labels, nothing else of a picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError
from longlens.tasks.pathfinder.grow import Floats

TOGETHER = 2000  # images whose markers are chosen together; more hide less
_UNIT = np.float32(2**20)  # likeness 1 as an integer
Integers = npt.NDArray[Any]


def _pairs(tips: Floats, labels: npt.NDArray[Any]) -> Floats:
    """Return the two marker pairs that each label allows, (N, 2 choices, 2 markers, 2)."""
    seed, end = tips[:, :, 0], tips[:, :, 1]
    one = np.stack([seed, end], axis=2)
    two = np.stack([seed, end[:, ::-1]], axis=2)
    return np.where(labels[:, None, None, None] == 1, one, two).astype(np.float32)


def _folded(pairs: Floats, size: int) -> tuple[Floats, Floats]:
    """Middle and half difference of marker pairs (M, 2, 2), each (2, M), in image widths.

    Contours grow alike in all eight orientations of the square. A systematic difference between the
    labels is therefore the same in all of them, and is found with an eighth of the images when
    every pair is turned and mirrored until its middle lies in the same eighth of the square.
    """
    place = pairs.astype(np.float32) / np.float32(size) - np.float32(0.5)
    middle, half = (place[:, 0] + place[:, 1]) / 2, (place[:, 1] - place[:, 0]) / 2
    mirror = np.where(middle < 0, np.float32(-1), np.float32(1))
    middle, half = middle * mirror, half * mirror
    turn = (middle[:, 1] > middle[:, 0])[:, None]
    middle, half = (np.where(turn, side[:, ::-1], side) for side in (middle, half))
    return np.ascontiguousarray(middle.T), np.ascontiguousarray(half.T)


def _likeness(square: Floats, scale: float) -> Floats:
    """Inverse multiquadric kernel of a squared distance: near 1, and slowly falling far away."""
    return 1 / np.sqrt(1 + square / np.float32(scale**2))


class Geometry:
    """Likeness of marker pairs (M, 2, 2), as integers."""

    def __init__(self, pairs: Floats, size: int, scale: float) -> None:
        self.scale = scale
        self.middle, self.half = _folded(pairs, size)
        self.distance = 2 * np.sqrt(self.half[0] ** 2 + self.half[1] ** 2)

    def likeness(self, a: Any, b: Any) -> Integers:
        """Likeness of the pairs ``a`` to the pairs ``b``, indices that broadcast.

        A picture does not tell its two markers apart, so both ways to match them count. The
        distance between the markers, the plainest cue, counts once more on its own.
        """
        (x, y), (u, v) = self.middle[:, a], self.half[:, a]
        (other_x, other_y), (other_u, other_v) = self.middle[:, b], self.half[:, b]
        apart = (x - other_x) ** 2 + (y - other_y) ** 2
        total = _likeness((self.distance[a] - self.distance[b]) ** 2, self.scale)
        total += _likeness(apart + ((u - other_u) ** 2 + (v - other_v) ** 2), self.scale)
        total += _likeness(apart + ((u + other_u) ** 2 + (v + other_v) ** 2), self.scale)
        return np.asarray(np.rint(total * _UNIT).astype(np.int64))


class Choice:
    """A search for scenes, and a marker pair in each, that are alike for both labels.

    Args:
        tips: (M, 2 contours, 2 ends, 2) of the scenes to choose from.
        labels: (N,) of the images to make, N ≤ M; scene i can become an image of label i modulo N.
        size: of the image.
        scale: of likeness, in image widths.

    Marker pairs are numbered: 2i and 2i + 1 are those that scene i can have with its label.
    """

    def __init__(self, tips: Floats, labels: npt.NDArray[Any], size: int, scale: float) -> None:
        scene = np.arange(len(tips))
        self.labels = labels
        self.label = np.resize(labels, len(tips))
        self.sign = np.where(self.label == 1, 1, -1)
        self.pairs = _pairs(tips, self.label).reshape(-1, 2, 2)
        self.geometry = Geometry(self.pairs, size, scale)
        self.every = np.arange(len(self.pairs))
        self.now, self.kept = 2 * scene, scene < len(labels)  # marked pair; only of kept scenes
        self.usable = np.ones(len(tips), bool)
        self.excess = np.zeros(len(self.pairs), np.int64)  # likeness to label 1, less to label 0
        for pair in self.now[self.kept]:
            self._add(int(pair), 1)
        self.itself = self.geometry.likeness(self.every, self.every)
        between = self.geometry.likeness(2 * scene, 2 * scene + 1)
        self.exchanged = self.itself[0::2] + self.itself[1::2] - 2 * between

    def search(self) -> None:
        """Lower the discrepancy until no step does."""
        while self._exchange() or self._replace(1) or self._replace(-1):
            pass

    def drop(self, scenes: npt.NDArray[np.int64]) -> None:
        """Never use ``scenes``: put into their place those that fit best."""
        self.usable[scenes] = False
        for scene in scenes[self.kept[scenes]]:
            self._add(int(self.now[scene]), -1)
            self.kept[scene] = False
            self._keep(self._best(int(self.sign[scene])))

    def scenes(self) -> list[int]:
        """Scene of each of the N images."""
        return [int(pair) // 2 for pair in self._chosen()]

    def markers(self) -> Floats:
        """Marker centres of the N images, (N, 2, 2)."""
        return np.asarray(self.pairs[self._chosen()])

    def _chosen(self) -> Integers:
        chosen = np.empty(len(self.labels), np.int64)
        for value in (0, 1):
            chosen[self.labels == value] = self.now[self.kept & (self.label == value)]
        return chosen

    def _add(self, pair: int, times: int) -> None:
        sign = int(self.sign[pair // 2])
        self.excess += times * sign * self.geometry.likeness(pair, self.every)

    def _keep(self, pair: int) -> None:
        self._add(pair, 1)
        self.kept[pair // 2], self.now[pair // 2] = True, pair

    def _best(self, sign: int) -> int:
        """Return the pair of a free scene that adds least to the discrepancy."""
        free = np.flatnonzero(self.usable & ~self.kept & (self.sign == sign))
        if not len(free):
            raise DataError("pathfinder: every scene of a label was dropped; this is a defect")
        pairs = (2 * free[:, None] + np.arange(2)).reshape(-1)
        return int(pairs[(2 * sign * self.excess[pairs] + self.itself[pairs]).argmin()])

    def _exchange(self) -> bool:
        """Mark the other pair of one scene, where that helps most; say whether it helps."""
        scene = np.flatnonzero(self.kept)
        now = self.now[scene]
        change = 2 * self.sign[scene] * (self.excess[now ^ 1] - self.excess[now])
        change += self.exchanged[scene]
        best = int(change.argmin())
        if change[best] >= 0:
            return False
        self._add(int(now[best]), -1)
        self._keep(int(now[best]) ^ 1)
        return True

    def _replace(self, sign: int) -> bool:
        """Replace the scene of a label that fits worst by the best; say whether that helps."""
        mine = np.flatnonzero(self.kept & (self.sign == sign))
        if len(mine) == (self.usable & (self.sign == sign)).sum():
            return False  # all are used
        pairs = self.now[mine]
        old = int(pairs[(2 * sign * self.excess[pairs] - self.itself[pairs]).argmax()])
        self._add(old, -1)
        self.kept[old // 2] = False
        new = self._best(sign)
        cost = 2 * sign * self.excess + self.itself
        helps = bool(cost[new] < cost[old])
        self._keep(new if helps else old)
        return helps


def choose(tips: Floats, labels: npt.NDArray[Any], size: int, scale: float) -> Floats:
    """Choose which tips to mark, where every scene is used.

    Args:
        tips: (N, 2 contours, 2 ends, 2).
        labels: (N,) 1 for one contour, 0 for two.
        size: of the image.
        scale: of likeness, in image widths.

    Returns:
        Marker centres (N, 2, 2).

    >>> tips = np.array([[[[4, 4], [20, 9]], [[9, 9], [30, 30]]]])
    >>> choose(tips, np.array([0]), 32, 0.05).tolist()  # one contour's seed, the other's end
    [[[4.0, 4.0], [30.0, 30.0]]]
    """
    choice = Choice(tips, labels, size, scale)
    choice.search()
    return choice.markers()
