"""Bags of windows, compared exactly: two sequences give one multiset of windows, or they do not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from longlens.tasks.arrays import Array, Ints


def windows_by_width(tokens: Array, widest: int, at_least: int = 1) -> Iterator[tuple[int, Ints]]:
    """Number all windows of all sequences, for widths 1, 2, 4 … and ``widest``.

    Edges count: each sequence is continued by a begin sign on its left and an end sign on its
    right, as far as windows reach. Windows are named by doubling (a window of width 2m is the pair
    of the names of its halves), so the cost is O(N L log widest), and no hash can collide.

    Args:
        tokens: (N, L) integers.
        widest: the last width.
        at_least: windows that occur fewer times than that, in all sequences, have the name -1.

    Yields:
        a width r, and (N, L + r - 1): the name of every window that holds a real token, equal for
        equal windows and no others.

    >>> [(width, names.tolist()) for width, names in windows_by_width(np.array([[7, 8, 7]]), 2)]
    [(1, [[2, 3, 2]]), (2, [[0, 2, 3, 1]])]
    """
    if widest < 1:
        raise ValueError(f"width must be 1 or more, got {widest}")
    edge, length = widest - 1, tokens.shape[1]
    ids = tokens.astype(np.int64) - int(tokens.min()) + 2
    padded = np.pad(ids, ((0, 0), (edge, edge)), constant_values=((0, 0), (0, 1)))
    names: Ints = _renumbered(padded.ravel(), at_least).reshape(len(tokens), -1)
    width = 1
    while True:
        yield width, names[:, widest - width : edge + length]
        if width == widest:
            return
        shift = min(width, widest - width)  # the last step joins two halves that overlap
        left, right = names[:, : names.shape[1] - shift], names[:, shift:]
        pairs = left * (int(names.max()) + 1) + right
        known = np.flatnonzero((left >= 0) & (right >= 0))  # what holds a rare window is rare
        joined = np.full(pairs.size, -1, np.int64)
        joined[known] = _renumbered(pairs.ravel()[known], at_least)
        names = joined.reshape(len(tokens), -1)
        width += shift


def window_names(tokens: Array, width: int) -> Ints:
    """Number all windows of one width: (N, L) -> (N, L + width - 1); see `windows_by_width`.

    >>> window_names(np.array([[7, 8], [8, 7]]), 1).tolist()
    [[0, 1], [1, 0]]
    """
    *_, (_, names) = windows_by_width(tokens, width)
    return names


def _renumbered(values: Ints, at_least: int) -> Ints:
    """0, 1, 2 … in place of the different values (N,), so that pairs of them do not overflow.

    >>> [_renumbered(np.array([50, 7, 50]), times).tolist() for times in (1, 2)]
    [[1, 0, 1], [0, -1, 0]]
    """
    if not len(values):
        return values
    if int(values.max()) < 4 * len(values):  # a table is faster than sorting
        counts = np.bincount(values)
        number, place = np.cumsum(counts >= at_least) - 1, values
    else:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        number = np.cumsum(counts >= at_least) - 1
    return np.asarray(np.where(counts >= at_least, number, -1)[place], np.int64)


def same_bags(tokens: Array, width: int) -> bool:
    """Whether all sequences (N, L) have the same bag of windows of ``width``, edges included.

    >>> same_bags(np.array([[0, 1, 0, 2, 0], [0, 2, 0, 1, 0]]), 2)
    True
    >>> same_bags(np.array([[0, 1, 0, 2, 0], [0, 2, 0, 1, 0]]), 3)
    False
    """
    names = np.sort(window_names(tokens, width), axis=1)
    return bool((names == names[:1]).all())


def first_difference(tokens: Array, low: int, high: int) -> int | None:
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
