"""What the synthetic tasks share: options, and how blocks of examples become files."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.build import Draft
from longlens.tasks.errors import check_least
from longlens.tasks.order import generator
from longlens.tasks.spec import SPLITS, Spec

BLOCK = 2000


@dataclass(frozen=True)
class SyntheticOptions:
    """Options that all synthetic tasks have.

    Args:
        length: of an example, in tokens.
        train: examples to make.
        validation: examples to make.
        test: examples to make.
        seed: of everything that is drawn.
    """

    length: int = 256
    train: int = 10_000
    validation: int = 1_000
    test: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, "", train=1, validation=1, test=1, seed=0, **self.least())

    def least(self) -> dict[str, int]:
        """The least value of each option that has one, given the others."""
        return {"length": 2}


class Kind(NamedTuple):
    """A synthetic task: ``draw(options, rng, count)`` gives tokens (N, L) and labels (N,)."""

    summary: str
    options: type[SyntheticOptions]
    draw: Callable[[Any, np.random.Generator, int], tuple[Array, Array]]
    vocabulary: Callable[[Any], int]
    classes: Callable[[Any], int]
    encoding: str | None = None

    def spec(self, options: SyntheticOptions) -> Spec:
        """The shape of the task."""
        return Spec(
            kind="classification",
            inputs="tokens",
            max_length=options.length,
            vocab_size=self.vocabulary(options),
            num_classes=self.classes(options),
            encoding=self.encoding,
            readout="last",
        )

    def build(self, draft: Draft) -> tuple[Spec, dict[str, int]]:
        """Write the three splits."""
        sizes = {split: getattr(draft.options, split) for split in SPLITS}
        counts = self.vocabulary(draft.options), self.classes(draft.options)
        draft.blocks(Maker(draft.name, self.draw, *counts), sizes, BLOCK)
        return self.spec(draft.options), sizes


@dataclass(frozen=True)
class Maker:
    """Makes one block of a task, as a pure function of its arguments."""

    name: str
    draw: Callable[[Any, np.random.Generator, int], tuple[Array, Array]]
    vocabulary: int
    classes: int

    def __call__(self, options: Any, split: str, block: int, count: int) -> dict[str, Array]:
        """Tokens and labels of ``count`` examples."""
        key = (options.seed, zlib.crc32(self.name.encode()), SPLITS.index(split), block)
        tokens, labels = self.draw(options, generator(*key), count)
        return {
            "inputs": tokens.astype(np.min_scalar_type(self.vocabulary - 1)),
            "targets": labels.astype(np.min_scalar_type(self.classes - 1)),
        }


def estimate(options: SyntheticOptions) -> int:
    """Bytes of the result, from above."""
    return 2 * (options.length + 1) * (options.train + options.validation + options.test)


def distinct(rng: np.random.Generator, count: int, size: int, of: int) -> Array:
    """``size`` different numbers of 0 … of-1 for each of ``count`` examples, in random order."""
    return np.argsort(rng.random((count, of)), axis=1, kind="stable")[:, :size]
