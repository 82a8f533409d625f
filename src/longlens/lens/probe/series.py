"""Random features of series: dilated convolutions whose field is at most r positions, pooled.

The kernels are MiniRocket's (Dempster, Schmidt and Webb 2021): nine taps, three of them 2 and six
of them −1, all 84 of these; thresholds are quantiles of what a kernel gives on a training example;
a feature is the share of positions above a threshold. Below nine positions the taps are random.

A convolution is *valid*: it is evaluated only where all its taps lie inside the example, so that a
feature is a mean over windows of functions of that window alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longlens.tasks.arrays import Array
from longlens.tasks.order import generator

TAPS = 9
KERNELS = 84
DILATIONS = 32
BLOCK = 1 << 20  # numbers of one block of convolution outputs: it stays in the cache
GOLDEN = (np.sqrt(5) + 1) / 2


def kernels(taps: int, rng: np.random.Generator, fixed: bool = True) -> npt.NDArray[np.float32]:
    """The 84 kernels of so many taps, (84, taps).

    Args:
        taps: up to nine.
        rng: of what is random.
        fixed: of nine taps, MiniRocket's; otherwise half of them are random, of three to nine
            neighbouring taps, half of these with a sum that is not zero, so that they see levels.

    >>> kernels(9, generator(0)).shape, kernels(9, generator(0)).sum(1).max()
    ((84, 9), np.float32(0.0))
    """
    if taps == 1:
        return np.ones((1, 1), np.float32)
    found = np.zeros((KERNELS, taps), np.float32)
    for row in range(KERNELS):
        size = int(rng.integers(min(3, taps), taps + 1))
        start = int(rng.integers(0, taps - size + 1))
        values = rng.standard_normal(size)
        found[row, start : start + size] = values - values.mean() * (row // 2 % 2)
    if taps == TAPS:
        places = list(combinations(range(TAPS), 3))
        for row in range(KERNELS) if fixed else range(0, KERNELS, 2):
            found[row] = -1
            found[row, list(places[row])] = 2
    return found


def dilations(reach: int, taps: int = TAPS, count: int = DILATIONS) -> dict[int, int]:
    """Distances between taps, up to all of the reach, each with its share of ``count``.

    They are spaced as logarithms and rounded down, so that small ones come several times.

    >>> dilations(9), dilations(33)
    ({1: 1}, {1: 16, 2: 9, 3: 6, 4: 1})
    """
    most = (reach - 1) // (taps - 1) if taps > 1 else 1
    count = count if most > 1 else 1
    steps = (np.geomspace(1, most, count) + 1e-9).astype(int)
    found, shares = np.unique(steps, return_counts=True)
    return dict(zip(found.tolist(), shares.tolist(), strict=True))


class SeriesFeatures:
    """Features of series (length, channels), fitted to some of them.

    Of every kernel and dilation: the share of positions above each threshold, the largest and the
    least output and the mean square (where all positions are pooled together).

    Args:
        examples: of the training split; thresholds are taken from them.
        reach: the positions that one window covers, at most.
        count: of features, about.
        seed: of kernels, thresholds and channels.
        segments: pool this many parts of the example apart, so that features know where they are.
        padded: half of the kernels also look over the ends, where there are zeros (for probes that
            see everything).
    """

    def __init__(
        self,
        examples: Sequence[Array],
        reach: int,
        count: int,
        seed: int,
        segments: int = 1,
        padded: bool = False,
    ) -> None:
        rng = generator(seed, reach, segments)
        self.segments, self.padded, self.moments = segments, padded, segments == 1 and not padded
        self.length = max(len(example) for example in examples)
        self.taps = min(TAPS, reach, self.length)  # examples of test may be longer
        base = kernels(self.taps, rng, fixed=padded)
        each_costs = len(base) * segments * (1 + 3 * self.moments)
        many = min(DILATIONS, max(4, count // each_costs))
        self.dilations = dilations(min(reach, self.length), self.taps, many)
        channels = examples[0].shape[1]
        left = count - 3 * self.moments * len(base) * segments * len(self.dilations)
        once = left / (len(base) * segments * sum(self.dilations.values()))
        self.weights = [
            torch.from_numpy(base[:, None, :] * _channels(len(base), channels, rng)[:, :, None])
            for _ in self.dilations
        ]
        number = 1
        self.thresholds: list[Tensor] = []
        for weight, (dilation, share) in zip(self.weights, self.dilations.items(), strict=True):
            each = max(1, round(once * share))
            chosen = rng.integers(0, len(examples), len(base))
            levels = (np.arange(number, number + len(base) * each) / GOLDEN) % 1
            number += len(base) * each
            rows = self._outputs_of(examples, chosen, weight, dilation)
            self.thresholds.append(
                torch.from_numpy(
                    np.stack(
                        [
                            _quantiles(row, level)
                            for row, level in zip(
                                rows, levels.reshape(len(base), each), strict=True
                            )
                        ]
                    )
                )
            )

    def _outputs_of(
        self, examples: Sequence[Array], chosen: Array, weight: Tensor, dilation: int
    ) -> list[Array]:
        """What kernel k gives on the example ``chosen[k]``."""
        found = []
        for kernel, place in enumerate(chosen.tolist()):
            x = torch.from_numpy(np.asarray(examples[place], np.float32).T.copy())[None]
            half = self._padding(kernel % 2, dilation)
            found.append(_convolve(x, weight[kernel : kernel + 1], dilation, half)[0, 0].numpy())
        return found

    def _padding(self, parity: int, dilation: int) -> int:
        """Zeros at each end: for every other kernel, where they are wanted at all."""
        return (self.taps - 1) * dilation // 2 if self.padded and parity else 0

    def __call__(self, examples: Sequence[Array]) -> Tensor:
        """Features (N, F) of examples."""
        out: list[Tensor] = []
        order = np.argsort([len(example) for example in examples], kind="stable")
        for index in self._blocks(examples, order):
            out.append(self._block([examples[i] for i in index]))
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.from_numpy(order)] = torch.arange(len(order))
        return torch.cat(out)[back]

    def _blocks(self, examples: Sequence[Array], order: Array) -> Iterator[list[int]]:
        rows = max(len(weight) for weight in self.weights)
        block: list[int] = []
        for place in order.tolist():
            if block and (len(block) + 1) * rows * len(examples[place]) > BLOCK:
                yield block
                block = []
            block.append(place)
        yield block

    def _block(self, examples: Sequence[Array]) -> Tensor:
        lengths = torch.tensor([len(example) for example in examples])
        longest = int(lengths.max())
        if self.segments > 1:
            longest = max(longest, self.length)
        batch = np.zeros((len(examples), examples[0].shape[1], longest), np.float32)
        for row, example in enumerate(examples):
            batch[row, :, : len(example)] = example.T
        x = torch.from_numpy(batch)
        parts: list[Tensor] = []
        for weight, dilation, thresholds in zip(
            self.weights, self.dilations, self.thresholds, strict=True
        ):
            groups = (0, 1) if self.padded else (None,)
            for parity in groups:
                here = slice(None) if parity is None else slice(parity, None, 2)
                half = self._padding(parity or 0, dilation)
                outputs = _convolve(x, weight[here], dilation, half)
                windows = lengths + 2 * half - (self.taps - 1) * dilation
                parts.append(self._pool(outputs, thresholds[here], windows))
        return torch.cat(parts, 1)

    def _pool(self, outputs: Tensor, thresholds: Tensor, windows: Tensor) -> Tensor:
        """What is kept of outputs (B, K, positions), of which ``windows`` (B,) exist."""
        count, rows, positions = outputs.shape
        size = thresholds.shape[1]
        if positions == 0:
            return outputs.new_zeros(count, rows * (size + 3 * self.moments) * self.segments)
        masked = int(windows.min()) < positions
        if masked:  # what a shorter example has beyond its end
            beyond = torch.arange(positions) >= windows[:, None]
            outputs = outputs.masked_fill(beyond[:, None], -torch.inf)
        each = -(-positions // self.segments)
        edges = [slice(k * each, (k + 1) * each) for k in range(self.segments)]
        above = torch.empty_like(outputs)
        shares = outputs.new_empty(count, self.segments, size, rows)
        for number in range(size):
            torch.gt(outputs, thresholds[:, number, None], out=above)
            for part, edge in enumerate(edges):
                shares[:, part, number] = above[..., edge].sum(-1)
        inside = torch.stack([(windows - edge.start).clamp(1, each) for edge in edges], dim=1)
        pooled = [(shares / inside[:, :, None, None]).flatten(1)]
        if self.moments:
            most, least = outputs.amax(-1), outputs.amin(-1)
            if masked:
                least = outputs.masked_fill(beyond[:, None], torch.inf).amin(-1)
                empty = (windows < 1)[:, None]
                most, least = most.masked_fill(empty, 0), least.masked_fill(empty, 0)
                outputs = outputs.masked_fill(beyond[:, None], 0)
            pooled += [most, least, outputs.square().sum(-1) / inside]
        return torch.cat(pooled, 1)


def _convolve(x: Tensor, weight: Tensor, dilation: int, half: int) -> Tensor:
    """Convolve (B, C, L) by (K, C, taps): (B, K, positions), after ``half`` zeros at each end."""
    if half:
        x = torch.nn.functional.pad(x, (half, half))
    count, channels, length = x.shape
    taps = weight.shape[2]
    positions = length - (taps - 1) * dilation
    if positions < 1:
        return x.new_zeros(count, len(weight), 0)
    a, b, c = x.stride()
    windows = x.as_strided((count, channels, taps, positions), (a, b, c * dilation, c))
    return weight.flatten(1) @ windows.reshape(count, channels * taps, positions)


def _channels(rows: int, channels: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Which channels each kernel adds up: (rows, channels) of 0 and 1; few more often than many."""
    if channels == 1:
        return np.ones((rows, 1), np.float32)
    found = np.zeros((rows, channels), np.float32)
    for row in found:
        many = int(2 ** rng.uniform(0, np.log2(min(channels, TAPS) + 1)))
        row[rng.permutation(channels)[:many]] = 1
    return found


def _quantiles(values: Array, levels: Array) -> npt.NDArray[np.float32]:
    if not len(values):
        return np.zeros(len(levels), np.float32)
    return np.quantile(values, levels).astype(np.float32)
