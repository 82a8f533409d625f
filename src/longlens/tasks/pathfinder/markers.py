"""Where the two markers go, so that nothing but the contours tells the label.

Contour A has the tips a0 (its seed) and a1, contour B the tips b0 and b1. One contour is marked by
(a0, a1) or (b0, b1), two by (a0, b1) or (b0, a1): always one seed and one far end. A scene is
usable if one of the first two pairs is about as wide as one of the last two; the label then only
chooses between these two pairs.
"""

from __future__ import annotations

import numpy as np

from longlens.tasks.pathfinder.grow import Bools, Floats

ALIKE = 0.1  # of the image's side: how much the two widths may differ


def _pairs(tips: Floats) -> tuple[Floats, Floats]:
    """Pairs of tips on one contour and on two, (N, 2 choices, 2 markers, 2) each."""
    seed, end = tips[:, :, 0], tips[:, :, 1]
    return np.stack([seed, end], axis=2), np.stack([seed, end[:, ::-1]], axis=2)


def _difference(tips: Floats) -> Floats:
    """How much each pair on one contour differs in width from each pair on two, (N, 2, 2)."""
    one, two = (np.linalg.norm(pair[:, :, 0] - pair[:, :, 1], axis=-1) for pair in _pairs(tips))
    return np.asarray(np.abs(one[:, :, None] - two[:, None, :]))


def usable(tips: Floats, size: int) -> Bools:
    """Whether tips (N, 2 contours, 2 ends, 2) offer two pairs of about equal width, (N,)."""
    return np.asarray((_difference(tips) <= ALIKE * size).any(axis=(1, 2)))


def choose(rng: np.random.Generator, tips: Floats, size: int) -> Floats:
    """Choose a pair for each label: (N, 2 labels, 2 markers, 2); label 1 is one contour."""
    score = rng.random((len(tips), 4)) + (_difference(tips).reshape(-1, 4) > ALIKE * size)
    best, row = score.argmin(axis=1), np.arange(len(tips))
    one, two = _pairs(tips)
    return np.stack([two[row, best % 2], one[row, best // 2]], axis=1)
