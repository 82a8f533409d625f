"""Does what a bounded model sees depend on the label? Counted on examples that were drawn.

A *feature* is something that an example has or has not: a window, more of it than half of the
examples have, an odd number of it, a value at one place. If it tells nothing, the label of the m
examples that have it are m draws without replacement from all labels, and the share of label y
among them is x or farther from π, its share among all, with probability exp(-m KL(x ‖ π)) at most
on either side (Hoeffding 1963, theorem 4). That holds for samples of every size. A feature *leaks*
where the bound is below ``FALSE_ALARM``, divided by the number of all comparisons.

What it cannot see: a label that is hidden in no single feature (in the parity of two far places,
say). That the order is drawn independently of all else can be read in ``draw``, and is not proven
by any sample; ``detectable`` says how large a leak must be to be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array, Floats, Ints
from longlens.tasks.farfield.bags import windows_by_width

FALSE_ALARM = 1e-4  # probability that a flawless generator is accused
POWER = 1.645  # standard deviations: a leak of the stated size is found with 95 %
RARE = 16  # fewer examples prove nothing among so many comparisons
FEW = 64  # values of a place that are compared one by one
Group = tuple[str, Ints]
"""What the features are, and how many examples of each label have them: (features, labels)."""


@dataclass(frozen=True)
class Leaks:
    """What was compared, and what depends on the label."""

    compared: int
    """Features that enough examples have."""
    worst: tuple[str, ...]
    """The worst feature of each group that leaks, in words."""
    detectable: float
    """A feature of half of the examples is found with 95 % if it gives a label this share."""


def find_leaks(groups: Iterable[Group], sizes: Ints) -> Leaks:
    """Compare the labels of the examples that have a feature with those of all examples.

    Args:
        groups: see :data:`Group`.
        sizes: how many examples there are of each label.

    >>> sizes = np.array([500, 500])
    >>> find_leaks([("a", np.array([[250, 250], [100, 0]]))], sizes).worst
    ('a: of the 100 examples that have one of them 100 are of label 0',)
    """
    kept = []
    for what, having in groups:
        total = having.sum(1)
        having = having[(total >= RARE) & (total <= sizes.sum() - RARE)]
        kept.append((what, np.concatenate([having, sizes - having])))  # also: to have it not
    tests = sum(having.size for _, having in kept)
    threshold = float(np.log(2 * max(tests, 1) / FALSE_ALARM))  # on either side
    worst = []
    for what, having in kept:
        if not len(having):
            continue
        total = having.sum(1, keepdims=True)
        surprise = total * divergence(having / total, sizes / sizes.sum())
        feature, label = np.unravel_index(int(surprise.argmax()), surprise.shape)
        if surprise[feature, label] > threshold:
            worst.append(
                f"{what}: of the {total[feature, 0]} examples that have one of them "
                f"{having[feature, label]} are of label {label}"
            )
    share, half = 1 / len(sizes), max(int(sizes.sum()) // 2, 1)
    return Leaks(tests // (2 * len(sizes)), tuple(worst), detectable(half, share, threshold))


def divergence(share: Floats, expected: Floats | float) -> Floats:
    """KL(share ‖ expected) of a coin, element by element, in nats.

    >>> divergence(np.array([0.5, 1.0]), 0.5).round(3).tolist()
    [0.0, 0.693]
    """
    tiny = 1e-300

    def term(p: Floats, q: Any) -> Floats:
        return np.asarray(p * np.log(np.maximum(p, tiny) / np.maximum(q, tiny)))

    return term(share, expected) + term(1 - share, 1 - np.asarray(expected))


def detectable(having: int, share: float, threshold: float) -> float:
    """The least share of a label among ``having`` examples that is found with 95 %.

    >>> 0.5 < detectable(2000, 0.5, 20.0) < detectable(200, 0.5, 20.0) < 1
    True
    """
    x = np.linspace(share, 1, 10_001)
    low = np.maximum(x - POWER * np.sqrt(x * (1 - x) / having), share)
    hits = having * divergence(low, share) > threshold
    return float(x[hits.argmax()]) if hits.any() else 1.0


def unlikely(counts: Ints, shares: Floats) -> bool:
    """Whether counts of all draws are too far from the shares that they should have.

    >>> half = np.array([0.5, 0.5])
    >>> unlikely(np.array([980, 1020]), half), unlikely(np.array([600, 1400]), half)
    (False, True)
    """
    total = counts.sum()
    threshold = np.log(2 * len(counts) / FALSE_ALARM)
    return bool((total * divergence(counts / total, shares) > threshold).any())


def window_features(tokens: Array, labels: Ints, kinds: int, widest: int) -> Iterator[Group]:
    """The bag of windows of tokens (N, L) by label, for widths 1, 2, 4 … and ``widest``."""
    count = len(tokens)
    rows = np.arange(count)[:, None]
    for width, names in windows_by_width(tokens, widest, RARE):
        keys = (names * count + rows)[names >= 0]
        if not len(keys):
            return  # a wider window is no less rare
        pairs, times = np.unique(keys, return_counts=True)
        name, row = np.divmod(pairs, count)
        features = int(name[-1]) + 1
        having = np.bincount(name * kinds + labels[row], minlength=features * kinds)
        having = having.reshape(features, kinds)
        yield f"windows of width {width}", having
        starts = np.searchsorted(name, np.arange(features + 1))
        more, odd = [], []
        for each in np.flatnonzero(having.sum(1) > count / 2):
            part = slice(starts[each], starts[each + 1])
            often = np.zeros(count, np.int64)
            often[row[part]] = times[part]
            more.append(np.bincount(labels[often > np.median(often)], minlength=kinds))
            odd.append(np.bincount(labels[often % 2 == 1], minlength=kinds))
        if more:
            yield f"many windows of width {width}", np.array(more)
            yield f"an odd number of windows of width {width}", np.array(odd)


def place_features(what: str, columns: Array, labels: Ints, kinds: int) -> Iterator[Group]:
    """Values of (N, C) by label, place by place: one by one where they are few, and at most v."""
    values = np.unique(columns)
    by_label = [columns[labels == label] for label in range(kinds)]
    if len(values) <= FEW:
        for value in values:
            yield f"{what} is {value}", np.stack([(c == value).sum(0) for c in by_label], axis=1)
    if len(values) > 2:
        for value in np.unique(values[np.linspace(0, len(values) - 1, 17).astype(int)[1:-1]]):
            yield (
                f"{what} is at most {value}",
                np.stack([(c <= value).sum(0) for c in by_label], axis=1),
            )
