"""Facts about a prepared task: lengths, class balance, duplicates within and between splits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Ints
from longlens.tasks.data import Split, Task


@dataclass(frozen=True)
class SplitStats:
    """Of one split: sizes, a length histogram, the share of each class, repeated examples."""

    examples: int
    tokens: int
    shortest: int
    longest: int
    histogram: tuple[tuple[int, int, int], ...]  # from, to (inclusive), examples
    classes: tuple[float, ...]
    repeated: int  # examples that occur earlier in the same split


def _keys(split: Split) -> list[bytes]:
    """Return sixteen bytes for each example that are equal for equal inputs only."""
    keys = []
    for index in range(len(split)):
        hashed = hashlib.blake2b(digest_size=16)
        for inputs in split[index].inputs:
            hashed.update(len(inputs).to_bytes(8, "little"))
            hashed.update(np.ascontiguousarray(inputs).tobytes())
        keys.append(hashed.digest())
    return keys


def _histogram(lengths: Ints, bins: int = 10) -> tuple[tuple[int, int, int], ...]:
    low, high = int(lengths.min()), int(lengths.max())
    if low == high:
        return ((low, high, len(lengths)),)
    edges = np.unique(np.linspace(low, high + 1, bins + 1).astype(np.int64))
    counts = np.histogram(lengths, edges)[0]
    return tuple(
        (int(a), int(b) - 1, int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    )


def task_stats(task: Task) -> tuple[dict[str, SplitStats], dict[tuple[str, str], int]]:
    """Return the facts of each split, and how many examples of one split occur in another."""
    stats, keys = {}, {}
    for name, split in task.splits.items():
        if task.spec.kind == "next_token":
            counts = np.bincount(split.stream, minlength=1)
            share = tuple((np.sort(counts)[::-1][:10] / len(split)).tolist())
            stats[name] = SplitStats(1, len(split), len(split), len(split), (), share, 0)
            continue
        all_keys = _keys(split)
        keys[name] = set(all_keys)
        lengths = split.lengths
        classes: tuple[float, ...] = ()
        if task.spec.num_classes:
            counts = np.bincount(split.targets, minlength=task.spec.num_classes)
            classes = tuple((counts / len(split)).tolist())
        stats[name] = SplitStats(
            examples=len(split),
            tokens=int(lengths.sum()),
            shortest=int(lengths.min()),
            longest=int(lengths.max()),
            histogram=_histogram(lengths),
            classes=classes,
            repeated=len(all_keys) - len(keys[name]),
        )
    names = list(keys)
    shared = {(a, b): len(keys[a] & keys[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
    return stats, shared
