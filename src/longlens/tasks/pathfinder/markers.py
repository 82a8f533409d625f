"""Where the two markers go, so that nothing but the contours tells the label.

Contour A has the tips a0 (its seed) and a1, contour B the tips b0 and b1. One contour (label 1) is
marked by (a0, a1) or (b0, b1), two (label 0) by (a0, b1) or (b0, a1): always one seed and one far
end. The label is drawn without a look at the picture. But a1 grew from a0 and b1 did not: left to
chance, markers of one contour would lie a little differently from markers of two, which a
classifier could use without seeing any contour. So of the two pairs that a label allows, the one is
marked that makes the markers of both labels alike as a whole.

How unlike two sets of marker pairs are is measured by a kernel (the maximum mean discrepancy of
Gretton et al. 2012): the mean likeness of pairs inside the sets, less that between them. With the
kernel used here it is zero only for equal distributions, so no statistic of the geometry is left
out, linear or not. That it can reach zero
is not said: where contours end near their own seed (easy sets, 64 × 64) two pairs are too few to
choose from; docs/tasks.md has the numbers.

``choose`` starts from any choice and changes, one image at a time, the one that lowers it the most,
until none does. Likeness is rounded to integers: sums are exact, so the choice does not depend on
the order in which a machine adds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.pathfinder.grow import Floats

TOGETHER = 2000  # images whose markers are chosen together; more hide less, but need 64 n² bytes
SCALE = 0.05  # of the image's width: pairs much nearer than this are alike, much farther are not
_UNIT = np.float32(2**20)  # likeness 1 as an integer
_ROWS = 256  # of the table made at a time, small enough for the processor's cache
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


def _likeness(square: Floats) -> Floats:
    """Inverse multiquadric kernel of a squared distance: near 1, and slowly falling far away."""
    return 1 / np.sqrt(1 + square / np.float32(SCALE**2))


def _table(pairs: Floats, size: int) -> Integers:
    """Likeness of any two of the marker pairs (M, 2, 2), as integers (M, M).

    A picture does not tell its two markers apart, so both ways to match them count. The distance
    between the markers, the plainest cue, counts once more on its own.
    """
    middle, half = _folded(pairs, size)
    distance = 2 * np.sqrt(half[0] ** 2 + half[1] ** 2)
    table = np.empty((len(pairs), len(pairs)), np.int32)
    for start in range(0, len(pairs), _ROWS):
        rows = slice(start, start + _ROWS)
        (x, y), (u, v) = middle[:, rows, None], half[:, rows, None]
        apart = (x - middle[0]) ** 2 + (y - middle[1]) ** 2
        total = _likeness((distance[rows, None] - distance) ** 2)
        total += _likeness(apart + ((u - half[0]) ** 2 + (v - half[1]) ** 2))
        total += _likeness(apart + ((u + half[0]) ** 2 + (v + half[1]) ** 2))
        table[rows] = np.rint(total * _UNIT)
    return table


def _alike(pairs: Floats, labels: npt.NDArray[Any], size: int) -> Floats:
    """Choose one of two marker pairs (N, 2, 2, 2) for each image: (N, 2, 2)."""
    table = _table(pairs.reshape(-1, 2, 2), size)
    sign = np.where(labels == 1, 1, -1)
    now = 2 * np.arange(len(pairs))  # rows of the table: what is marked, and what could be
    other = now + 1
    excess = (table[:, now] * sign).sum(axis=1)  # likeness of each pair to label 1, less to label 0
    itself = table[now, now] + table[other, other] - 2 * table[now, other]
    while True:
        change = 2 * sign * (excess[other] - excess[now]) + itself  # by each possible exchange
        best = int(change.argmin())
        if change[best] >= 0:
            return np.asarray(pairs.reshape(-1, 2, 2)[now])
        excess += sign[best] * (table[other[best]] - table[now[best]])
        now[best], other[best] = other[best], now[best]


def choose(tips: Floats, labels: npt.NDArray[Any], size: int) -> Floats:
    """Choose which tips to mark.

    Args:
        tips: (N, 2 contours, 2 ends, 2).
        labels: (N,) 1 for one contour, 0 for two.
        size: of the image.

    Returns:
        Marker centres (N, 2, 2).

    >>> tips = np.array([[[[4, 4], [20, 9]], [[9, 9], [30, 30]]]])
    >>> choose(tips, np.array([0]), 32).tolist()  # the seed of one contour, the end of the other
    [[[4.0, 4.0], [30.0, 30.0]]]
    """
    chosen = np.empty((len(tips), 2, 2), np.float32)
    for start in range(0, len(tips), TOGETHER):
        part = slice(start, start + TOGETHER)
        chosen[part] = _alike(_pairs(tips[part], labels[part]), labels[part], size)
    return chosen
