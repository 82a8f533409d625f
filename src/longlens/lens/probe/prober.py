"""Probes of a task: what a window of r positions is worth, without training a network.

A probe is a set of random features that see r positions at a time (of series: convolutions; of
tokens: what stands in a window), pooled over the example, and a ridge regression on them. What
sees r positions may also use fewer, so of all probes up to a reach the one with the least
left-out error counts. Beside them stand two that see everything: one whose features do not know
where they are, one whose features do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from longlens.lens.probe.ridge import fit_ridge
from longlens.lens.probe.series import SeriesFeatures
from longlens.lens.probe.tokens import TokenFeatures
from longlens.tasks import Split, Task
from longlens.tasks.arrays import Array, Bools
from longlens.tasks.order import permutation

Where = Literal["window", "anywhere", "in place"]
SOLVE = 3000  # the eigenvalue problem's size: more examples than this have so many features
MANY, POSITIONS = 12_000, 2_000_000  # features where examples, and their positions, are few
SEGMENTS = 8
SYMBOLS = 32  # larger vocabularies may be numbers: both readings are tried


@dataclass(frozen=True)
class Outcome:
    """One probe: its reach (None: everything), its left-out accuracy and error, and who is right.

    ``right`` (test examples,) says of each whether the probe was right about it.
    """

    where: Where
    reach: int | None
    seed: int
    left_out: float
    error: float
    right: Bools
    features: int
    seconds: float

    @property
    def test(self) -> float:
        """Test accuracy."""
        return float(self.right.mean())


class Prober:
    """Probes of a task with classes, of single sequences.

    Args:
        task: its training and validation splits are fitted, its test split is predicted (training
            alone where validation is the test split).
        examples: of both together, at most, at random.
        test: examples of the test split, at most.
        length: cut examples to this many positions.
        features: how many, about; None: as many as examples of this number and length are worth.

    >>> import tempfile
    >>> from longlens.tasks import load
    >>> task = load("far-order", tempfile.mkdtemp(), distance=5, train=64, validation=16, test=32)
    >>> prober = Prober(task, 80, 32)
    >>> outcome = prober.probe("window", 3, seed=0)
    >>> outcome.reach, len(outcome.right)
    (3, 32)
    """

    def __init__(
        self,
        task: Task,
        examples: int,
        test: int,
        length: int | None = None,
        features: int | None = None,
    ) -> None:
        spec = task.spec
        if spec.pair or spec.kind != "classification":
            raise ValueError(f"probes need single sequences with classes; {task.name} has others")
        assert spec.num_classes is not None
        self.spec, self.classes = spec, spec.num_classes
        known, labels = [], []
        # A validation split that is the test split must not be learned from.
        parts = ("train",) if task.selected_on == "test" else ("train", "validation")
        for split in parts:
            few = -(-examples * len(task[split]) // sum(len(task[part]) for part in parts))
            sequences, own = _take(task[split], few, length)
            known += sequences
            labels.append(own)
        order = permutation(len(known), 1)[:examples]
        self.known = [known[i] for i in order]
        self.labels = torch.from_numpy(np.concatenate(labels)[order])
        self.test, self.test_labels = _take(task["test"], test, length)
        self.longest = max(map(len, (*self.known, *self.test)))
        positions = sum(map(len, (*self.known, *self.test)))
        self.count = features or features_for(len(self.known), positions)
        self.series = spec.inputs == "floats" or spec.image is not None
        if not self.series and (spec.vocab_size or 0) > SYMBOLS and spec.encoding is None:
            self.series = self._are_numbers()

    def _are_numbers(self) -> bool:
        """Whether tokens tell more as numbers than as symbols, by the left-out error of a few."""
        errors = []
        for series in (False, True):
            self.series = series
            few = self._ready(self.known[:1000])
            features = self._features("window", 5, 0, 2000, few)
            fit = fit_ridge(features(few), self.labels[:1000], self.classes)
            errors.append(fit.error)
        return errors[1] < errors[0]

    def probe(self, where: Where, reach: int | None, seed: int) -> Outcome:
        """Fit one probe.

        Args:
            where: "window" of ``reach`` positions; "anywhere" in the example; "in place", with
                features that know where they are.
            reach: of a window.
            seed: of what is random.
        """
        began = time.perf_counter()
        known, test = self._ready(self.known, reach), self._ready(self.test, reach)
        features = self._features(where, reach, seed, self.count, known)
        x, unseen = features(known), features(test)
        if self.series and self.spec.readout == "last":  # values where they stand
            wide = min(reach or self.longest, self.longest)
            x, unseen = (torch.cat([pooled, last_values(examples, wide)], 1)
                         for pooled, examples in ((x, known), (unseen, test)))  # fmt: skip
        fit = fit_ridge(x, self.labels, self.classes)
        if isinstance(features, TokenFeatures) and where == "window":
            columns = torch.tensor(features.pairs)
            fewer = fit_ridge(x[:, columns], self.labels, self.classes)
            if fewer.error < fit.error:
                fit, unseen = fewer, unseen[:, columns]
        right = fit.scores(unseen).argmax(1).numpy() == self.test_labels
        return Outcome(where, reach, seed, fit.left_out, fit.error, right, x.shape[1],
                       time.perf_counter() - began)  # fmt: skip

    def _ready(self, examples: Sequence[Array], reach: int | None = None) -> list[Array]:
        """Examples as the features take them; of a task read out at its end, what that sees."""
        if self.spec.readout == "last" and reach is not None:
            examples = [example[-reach:] for example in examples]
        if not self.series:
            return list(examples)
        found = [np.asarray(example, np.float32) for example in examples]
        return [example[:, None] if example.ndim == 1 else example for example in found]

    def _features(
        self, where: Where, reach: int | None, seed: int, count: int, known: Sequence[Array]
    ) -> SeriesFeatures | TokenFeatures:
        # A window that is read out at its end may know where in it something stands.
        placed = where == "in place" or (self.spec.readout == "last" and reach is not None)
        wide = self.longest if reach is None else min(reach, self.longest)
        if self.series:
            return SeriesFeatures(known, wide, count, seed, SEGMENTS if placed else 1,
                                  padded=where == "anywhere")  # fmt: skip
        longest = (wide if reach is not None else self.longest) if placed else None
        return TokenFeatures(self.spec.vocab_size or 0, wide, count, seed, longest)


def last_values(examples: Sequence[Array], wide: int) -> torch.Tensor:
    """The last ``wide`` values of series (L, C) as (N, wide · C); zeros before a shorter one.

    >>> last_values([np.array([[1.0], [2.0]]), np.array([[3.0]])], 2).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    found = np.zeros((len(examples), wide, examples[0].shape[1]), np.float32)
    for row, example in zip(found, examples, strict=True):
        row[wide - len(example[-wide:]) :] = example[-wide:]
    return torch.from_numpy(found.reshape(len(examples), -1))


def features_for(examples: int, positions: int) -> int:
    """How many features: many for few and short examples, else few enough to be quick.

    >>> features_for(500, 100_000), features_for(500, 10**7), features_for(5000, 100_000)
    (12000, 3000, 3000)
    """
    return MANY if examples <= SOLVE and positions <= POSITIONS else SOLVE


def nested(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Of every probe, the best by left-out error of all that see no more than it does."""
    every = list(outcomes)
    found = []
    for outcome in every:
        wide = np.inf if outcome.reach is None else outcome.reach
        others = [
            other for other in every
            if other.seed == outcome.seed and (other is outcome or (other.reach or np.inf) < wide)
        ]  # fmt: skip
        found.append(min(others, key=lambda other: other.error))
    return found


def _take(split: Split, count: int, length: int | None) -> tuple[list[Array], Array]:
    """Examples at random (all, in their order, if there are no more), cut, with their labels."""
    index = np.sort(permutation(len(split), 0)[:count])
    sequences = [np.asarray(split.sequence(int(i)))[:length] for i in index]
    return sequences, split.targets[index].astype(np.int64)
