"""What can be said about a task before any model is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from longlens.lens.audit.floor import LOCAL
from longlens.lens.audit.probe import (
    Features,
    Sequences,
    linear_probe,
    ngram_counts,
    placed_tokens,
)
from longlens.lens.audit.shuffle import KINDS, shuffled
from longlens.tasks import Split, Task
from longlens.tasks.arrays import Array, Ints
from longlens.tasks.order import generator, permutation
from longlens.tasks.spec import SPLITS

BINS = 16  # of floats, and of tokens for mutual information
WINDOWS = (2, 4, 8, 16, 64, 256, 1024)
PLACES = 64  # positions at which mutual information is measured
NULLS = 20  # label shuffles that give its noise level


@dataclass(frozen=True)
class Sample:
    """Some examples of a split as tokens, with their labels (N,)."""

    sequences: list[Ints]
    labels: Ints


def sample(split: Split, count: int, edges: Array | None, length: int | None) -> Sample:
    """Take ``count`` examples at random; floats become the number of their bin (first channel)."""
    index = np.sort(permutation(len(split), 0)[:count])
    sequences = []
    for i in index:
        tokens = np.asarray(split.sequence(int(i)))[:length]
        if edges is not None:
            tokens = np.searchsorted(edges, tokens[:, 0])
        sequences.append(tokens.astype(np.int64))
    return Sample(sequences, split.targets[index].astype(np.int64))


def bin_edges(task: Task) -> Array | None:
    """Quantiles of a float task's first channel; None for tokens."""
    if task.spec.inputs == "tokens":
        return None
    train = task["train"]
    some = [np.asarray(train.sequence(i))[:, 0] for i in range(min(200, len(train)))]
    return np.asarray(np.quantile(np.concatenate(some), np.arange(1, BINS) / BINS))


def diagnose(
    task: Task, quick: bool = False, length: int | None = None, probes_only: bool = False
) -> dict[str, Any]:
    """Majority, linear probes, mutual information by position, and shuffling.

    Args:
        task: with classes, of single sequences.
        quick: fewer examples and windows.
        length: cut examples to this many positions.
        probes_only: leave out mutual information and shuffling.

    Returns:
        accuracies on the test split (of a sample of it), as JSON values.
    """
    spec = task.spec
    assert spec.num_classes is not None
    majority = int(np.bincount(task["train"].targets).argmax())
    measured: dict[str, Any] = {
        "majority": float((task["test"].targets == majority).mean()),
        "chance": 1 / spec.num_classes,
    }
    if spec.pair:
        return measured | {"note": "probes are for single sequences; this task has pairs"}
    sizes = (2000, 500, 1000) if quick else (8000, 1000, 4000)
    edges = bin_edges(task)
    parts = [
        sample(task[name], size, edges, length) for name, size in zip(SPLITS, sizes, strict=True)
    ]
    measured["examples"] = {n: len(part.labels) for n, part in zip(SPLITS, parts, strict=True)}
    classes = spec.num_classes
    vocabulary = spec.vocab_size if edges is None and spec.vocab_size else BINS
    for n, name in enumerate(LOCAL, 1):
        measured[name] = _probe(parts, partial(ngram_counts, n=n), classes)
    measured["tokens_in_place"] = _probe(parts, placed_tokens, classes)
    if probes_only:
        return measured
    measured["mutual_information"] = mutual_information(parts[0], vocabulary, classes)
    measured["shuffled_trigrams"] = _shuffled(parts, classes, quick)
    return measured


def _probe(
    parts: list[Sample], features: Callable[[Sequences], Features], classes: int
) -> dict[str, Any]:
    train, validation, test = ((features(part.sequences), part.labels) for part in parts)
    return linear_probe(train, validation, test, classes)


def _shuffled(parts: list[Sample], classes: int, quick: bool) -> list[dict[str, Any]]:
    """A trigram probe, trained and tested on sequences whose order was destroyed."""
    longest = max(len(tokens) for tokens in parts[0].sequences)
    windows = [w for w in (WINDOWS[1::2] if quick else WINDOWS) if w < longest]

    def test(kind: str, window: int) -> float:
        rng = generator(window)

        def mixed(sequences: Sequences) -> Features:
            return ngram_counts([shuffled(s, window, kind, rng) for s in sequences], 3)

        return float(_probe(parts, mixed, classes)["test"])

    return [{"kind": k, "window": w, "test": test(k, w)} for k in KINDS for w in windows]


def mutual_information(data: Sample, vocabulary: int, classes: int) -> dict[str, Any]:
    """Bits that the token at one position tells about the label, along the sequence.

    Tokens of a large vocabulary are put into 16 groups first. The estimate is corrected for its
    bias (Miller and Madow); ``floor`` is what 19 of 20 shuffles of the labels stay below.

    >>> x = [np.array([y, 0]) for y in (0, 1)] * 50
    >>> bits = mutual_information(Sample(x, np.array([0, 1] * 50)), 2, 2)
    >>> [round(p["bits"], 1) for p in bits["positions"]]
    [1.0, 0.0]
    """
    lengths = np.array([len(tokens) for tokens in data.sequences])
    reach = int(np.median(lengths))  # further on, half of the examples have no token
    places = np.unique(np.linspace(0, reach - 1, min(PLACES, reach)).round().astype(int))
    groups = min(vocabulary, BINS)
    rng = generator(0)
    positions = []
    for place in places.tolist():
        there = np.flatnonzero(lengths > place)
        tokens = np.array([data.sequences[i][place] for i in there]) * groups // vocabulary
        labels = data.labels[there]
        nulls = [_bits(tokens, rng.permutation(labels), groups, classes) for _ in range(NULLS)]
        bits = _bits(tokens, labels, groups, classes)
        floor = float(np.sort(nulls)[-2])
        positions.append({"position": place, "bits": bits, "floor": floor})
    above = [p for p in positions if p["bits"] > p["floor"]]
    return {
        "positions": positions,
        "share_above_floor": len(above) / len(positions),
        "most": max(positions, key=lambda p: p["bits"]),
    }


def _bits(tokens: Ints, labels: Ints, groups: int, classes: int) -> float:
    table = np.bincount(tokens * classes + labels, minlength=groups * classes)
    joint = table.reshape(groups, classes) / len(labels)
    rows, columns = joint.sum(1, keepdims=True), joint.sum(0, keepdims=True)
    seen = joint > 0
    plain = float((joint[seen] * np.log2((joint / np.maximum(rows * columns, 1e-300))[seen])).sum())
    cells = int(seen.sum()) - int((rows > 0).sum()) - int((columns > 0).sum()) + 1
    return float(plain - cells / (2 * len(labels) * np.log(2)))
