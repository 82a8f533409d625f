"""Bags of windows, compared exactly: two sequences give one multiset of windows, or they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def window_names(tokens: npt.NDArray[Any], width: int) -> Ints:
    """Number all windows of all sequences, equal numbers for equal windows and no others.

    Edges count: each sequence is continued by a begin sign on its left and an end sign on its
    right, as far as windows reach. Windows are named by doubling (a window of width 2m is the pair
    of the names of its halves), so the cost is O(N L log width), and no hash can collide.

    Args:
        tokens: (N, L) integers.
        width: r.

    Returns:
        (N, L + r - 1): the name of every window that holds a real token.

    >>> window_names(np.array([[7, 8], [8, 7]]), 1).tolist()
    [[2, 3], [3, 2]]
    """
    if width < 1:
        raise ValueError(f"width must be 1 or more, got {width}")
    ids = tokens.astype(np.int64) - int(tokens.min()) + 2
    names = np.pad(ids, ((0, 0), (width - 1, width - 1)), constant_values=((0, 0), (0, 1)))
    names = _renumbered(names)
    if width == 1:
        return names + 2  # no edge sign occurs
    known = 1
    while known < width:
        shift = min(known, width - known)  # the last step joins two halves that overlap
        left, right = names[:, : names.shape[1] - shift], names[:, shift:]
        pairs = left * (int(names.max()) + 1) + right
        names = _renumbered(pairs)
        known += shift
    return names


def _renumbered(values: Ints) -> Ints:
    """0, 1, 2 … in place of the different values, so that pairs of them do not overflow."""
    return np.asarray(np.unique(values, return_inverse=True)[1], np.int64).reshape(values.shape)


def same_bags(tokens: npt.NDArray[Any], width: int) -> bool:
    """Whether all sequences (N, L) have the same bag of windows of ``width``, edges included.

    >>> same_bags(np.array([[0, 1, 0, 2, 0], [0, 2, 0, 1, 0]]), 2)
    True
    >>> same_bags(np.array([[0, 1, 0, 2, 0], [0, 2, 0, 1, 0]]), 3)
    False
    """
    names = np.sort(window_names(tokens, width), axis=1)
    return bool((names == names[:1]).all())


def first_difference(tokens: npt.NDArray[Any], low: int, high: int) -> int | None:
    """The least width in low … high at which the sequences' bags differ; None: they never do.

    A wider window tells no less, so the answer is found by halving.

    >>> first_difference(np.array([[0, 1, 0, 2, 0], [0, 2, 0, 1, 0]]), 1, 5)
    3
    """
    high = min(high, tokens.shape[1])
    if same_bags(tokens, high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if same_bags(tokens, middle) else (low, middle)
    return low
