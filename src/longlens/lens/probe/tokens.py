"""Features of tokens: counts of what stands in a window of r positions, hashed into buckets.

A pattern is a number of tokens at a distance from each other: single tokens, neighbours (up to five
of them), and pairs and triples that stand apart, up to all of the reach. Of every pattern all that
occurs is counted, each in its own bucket where the vocabulary is small, otherwise in a random one.
Begin and end of an example are two further tokens: a window may hang over an edge, as it may in a
convolution with zero padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longlens.tasks.arrays import Array
from longlens.tasks.order import generator

Pattern = tuple[int, int]  # tokens, and the distance from one to the next
NEIGHBOURS = 5
GAPS = [2, 3, *(k * 2**n for n in range(1, 20) for k in (2, 3))]  # of pairs and triples
NEAR = 0.6  # share of the buckets that neighbours have
PLACES = 16  # parts of an example in which neighbours are counted, where features know positions


def patterns(reach: int) -> list[Pattern]:
    """The patterns that fit into ``reach`` positions, neighbours first.

    >>> patterns(2), patterns(4)
    ([(1, 1), (2, 1)], [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (2, 3)])
    """
    near = [(size, 1) for size in range(1, min(NEIGHBOURS, reach) + 1)]
    apart = []
    for size in (2, 3):
        most = (reach - 1) // (size - 1)
        gaps = {gap for gap in GAPS if gap < most} | {most}
        apart += [(size, gap) for gap in sorted(gaps) if gap > 1]
    return near + apart


class TokenFeatures:
    """Counts (log(1 + n)) of what occurs in windows of ``reach`` positions.

    Args:
        vocabulary: tokens are 0 … vocabulary − 1.
        reach: the positions that one window covers, at most.
        count: of buckets, about.
        seed: of the hashing.
        longest: the longest example; given, features also know where in an example they are.
    """

    def __init__(
        self, vocabulary: int, reach: int, count: int, seed: int, longest: int | None = None
    ) -> None:
        self.vocabulary, self.longest = vocabulary + 2, longest  # with begin and end
        self.patterns = patterns(reach)
        self.keys = generator(seed, 11).integers(1, 2**62, (len(self.patterns) + 2, 8)) | 1
        wanted = [float(self.vocabulary) ** size for size, _ in self.patterns]
        near = [n for n, (_, gap) in enumerate(self.patterns) if gap == 1]
        apart = [n for n, (_, gap) in enumerate(self.patterns) if gap > 1]
        room = count // (1 if longest is None else 3)
        sizes = dict(zip(near, share_out([wanted[n] for n in near], int(NEAR * room)
                                         if apart else room), strict=True))  # fmt: skip
        rest = room - sum(sizes.values())
        sizes |= dict(zip(apart, share_out([wanted[n] for n in apart], rest), strict=True))
        self.sizes = [sizes[n] for n in range(len(self.patterns))]
        if longest is not None:  # single tokens where they stand, and neighbours by part
            self.sizes += [room, room]
        self.starts = np.cumsum([0, *self.sizes])

    @property
    def pairs(self) -> list[int]:
        """Columns of single tokens and pairs alone, the less noisy part of the features."""
        found: list[int] = []
        for number, (size, _) in enumerate(self.patterns):
            if size <= 2:
                found += range(int(self.starts[number]), int(self.starts[number + 1]))
        return found

    def __call__(self, examples: Sequence[Array]) -> Tensor:
        """Features (N, F) of examples (length,)."""
        out = np.empty((len(examples), int(self.starts[-1])), np.float32)
        for row, example in enumerate(examples):
            buckets = np.concatenate(self._buckets(example))
            out[row] = np.bincount(buckets, minlength=out.shape[1])
        return torch.from_numpy(np.log1p(out, out=out))

    def _buckets(self, example: Array) -> list[Array]:
        begin, end = self.vocabulary - 2, self.vocabulary - 1
        tokens = np.concatenate([[begin], example, [end]]).astype(np.int64)
        found = []
        for number, (size, gap) in enumerate(self.patterns):
            parts = [tokens[k * gap : len(tokens) - (size - 1 - k) * gap] for k in range(size)]
            if min(map(len, parts)):
                found.append(self._bucket(number, parts, float(self.vocabulary) ** size))
        if self.longest is not None:
            place = np.arange(len(tokens))
            number = len(self.patterns)
            found.append(self._bucket(number, [tokens, place], np.inf))
            part = place * PLACES // (self.longest + 2)
            found.append(self._bucket(number + 1, [tokens[:-1], tokens[1:], part[1:]], np.inf))
        return found

    def _bucket(self, number: int, parts: list[Array], variants: float) -> Array:
        """Buckets of what stands side by side in ``parts``: one each, or hashed."""
        size, start = self.sizes[number], self.starts[number]
        mixed = np.zeros(len(parts[0]), np.int64)
        if variants <= size:
            for part in parts:
                mixed = mixed * self.vocabulary + part
            return np.asarray(mixed + start)
        with np.errstate(over="ignore"):
            for part, key in zip(parts, self.keys[number], strict=False):
                mixed = (mixed ^ (part + 1) * key) * self.keys[number, 7]
                mixed ^= mixed >> 31
        return np.asarray((mixed & (2**62 - 1)) % size + start)


def share_out(wanted: Sequence[float], room: int) -> list[int]:
    """Give each what it wants if that is at most half of what is left; else an equal share.

    >>> share_out([5, 100, 100], 45), share_out([18, 20, 100], 60)
    ([5, 20, 20], [18, 20, 22])
    """
    given = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    for rank, n in enumerate(order):
        equal = room // (len(wanted) - rank)
        given[n] = max(1, int(wanted[n]) if wanted[n] <= room // 2 else equal)
        room -= given[n]
    return given
