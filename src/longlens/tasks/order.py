"""Random numbers that are pure functions of a key, and the global order of batches made from them.

NumPy promises that a bit generator's raw stream never changes, but not what ``Generator`` makes of
it. Orders and splits, which must stay the same for ever, are therefore made from raw 64-bit words.
"""

from __future__ import annotations

import numpy as np

from longlens.tasks.arrays import Ints
from longlens.tasks.errors import DataError


def bit_generator(*key: int) -> np.random.Philox:
    """Return a counter-based generator that depends on ``key`` alone (integers of 0 or more)."""
    if any(part < 0 for part in key):
        raise DataError(f"seeds must be 0 or more, got {key}")
    return np.random.Philox(np.random.SeedSequence(key))


def generator(*key: int) -> np.random.Generator:
    """Return a NumPy generator that depends on ``key`` alone."""
    return np.random.Generator(bit_generator(*key))


def permutation(count: int, *key: int) -> Ints:
    """Return a random order of 0 … count-1, (count,), a pure function of ``key``.

    >>> permutation(5, 0).tolist() == permutation(5, 0).tolist() != permutation(5, 1).tolist()
    True
    """
    return np.argsort(bit_generator(*key).random_raw(count), kind="stable").astype(np.int64)


def draw(limit: int, *key: int) -> int:
    """Return one integer from 0 … limit-1, a pure function of ``key``."""
    return int(bit_generator(*key).random_raw()) % limit


def bucket_edges(lengths: Ints, buckets: int, multiple: int) -> Ints:
    """Padded lengths for at most ``buckets`` groups of about equally many examples.

    Each edge is a multiple of ``multiple``; the last one holds the longest example. Few edges mean
    few shapes to compile, many mean little padding.

    >>> bucket_edges(np.array([10, 20, 30, 100]), buckets=2, multiple=16).tolist()
    [32, 112]
    """
    if buckets < 1 or multiple < 1:
        raise DataError(f"buckets and multiple must be 1 or more, got {buckets} and {multiple}")
    quantiles = np.quantile(lengths, np.arange(1, buckets + 1) / buckets, method="higher")
    return np.unique(-(-quantiles.astype(np.int64) // multiple) * multiple)


def cut_into_batches(
    lengths: Ints, edges: Ints, batch_size: int, order: Ints, drop_last: bool
) -> list[tuple[Ints, int]]:
    """Cut ``order`` into batches of examples of similar length: their examples and padded length.

    Every bucket takes its examples in the given order. What does not fill a batch moves up to the
    next longer bucket, so that an epoch has at most one batch that is not full (the last of the
    longest bucket; ``drop_last`` leaves it out). Batches follow each other by the place in
    ``order`` of their last example, so lengths stay mixed over the epoch.
    """
    place = np.empty(len(lengths), np.int64)
    place[order] = np.arange(len(order))
    bucket = np.searchsorted(edges, lengths[order])
    batches: list[tuple[int, int, Ints]] = []
    left = order[:0]
    for number, edge in enumerate(edges):
        members = np.concatenate([left, order[bucket == number]])
        members = members[np.argsort(place[members], kind="stable")]
        full = len(members) // batch_size * batch_size
        for start in range(0, full, batch_size):
            batch = members[start : start + batch_size]
            batches.append((int(place[batch[-1]]), int(edge), batch))
        left = members[full:]
    if len(left) and not drop_last:
        batches.append((len(order), int(edges[-1]), left))
    batches.sort(key=lambda batch: batch[0])
    return [(batch, edge) for _, edge, batch in batches]
