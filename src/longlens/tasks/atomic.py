"""Atomic tasks after Gupta et al. 2022 (*Diagonal Linear RNNs*, Section 3.1): the failure study.

Regression on sequences of independent standard normal values x₁ … x_n, scored by R²::

    cumsum   x1 x2 x3 …              ->  y_i = (x1 + … + x_i) / √i
    cummax   x1 x2 x3 …              ->  y_i = max(x1 … x_i)
    shift    x1 x2 x3 …              ->  y_i = (x_i, x_{i-s}, x_{i-2s} …), zeros before the start
    reverse  x1 … x_n | blanks       ->  x_n … x1 on the blanks
    sort     x1 … x_n | blanks       ->  x in rising order on the blanks
    select   x1 … x_n | blanks       ->  the m marked values, in order, on the m blanks

The first three have one channel and a target at every position. The others have a second channel,
which is 1 on the blanks (``reverse``, ``sort``) or on the marked values (``select``), and targets
on the blanks only, so that causal models can do them. The papers state neither lengths nor sizes of
the sets for their tables; here they are options.

``NAME-above`` is the last target alone, as two classes (is it above its median?), read out at the
last position: audits and probes ask for classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from longlens.tasks.arrays import Array
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least
from longlens.tasks.order import generator
from longlens.tasks.spec import SPLITS, Spec

NAMES = ("select", "cumsum", "cummax", "shift", "reverse", "sort")
BLOCK = 2000
SHIFTS = 8
ABOVE = "-above"  # ends the names of tasks that ask for a class


@dataclass(frozen=True)
class AtomicOptions:
    """Options of an atomic task.

    Args:
        length: all positions, blanks included.
        train: examples to make.
        validation: examples to make.
        test: examples to make.
        seed: of everything that is drawn.
    """

    length: int = 512
    train: int = 10_000
    validation: int = 1_000
    test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, train=1, validation=1, test=1, seed=0)
        if self.length < 16 or self.length % 2:
            raise DataError(f"length must be even and 16 or more, got {self.length}")


@dataclass(frozen=True)
class SelectOptions(AtomicOptions):
    """Options of ``select``.

    Args:
        marked: how many values are marked, and so returned.
    """

    marked: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.marked <= self.length // 2:
            raise DataError(f"marked must be in 1 … {self.length // 2}, got {self.marked}")


def make_block(
    name: str, options: AtomicOptions, split: str, block: int, count: int
) -> dict[str, Array]:
    """Make one block of the task ``name``, a pure function of the arguments."""
    plain = name.removesuffix(ABOVE)
    key = (options.seed, NAMES.index(plain), SPLITS.index(split), block)
    inputs, targets = examples(plain, options, generator(*key), count)
    if plain != name:
        above = targets[:, -1, -1] > median(plain, options)
        return {"inputs": inputs, "targets": above.astype(np.uint8)}
    return {"inputs": inputs, "targets": targets}


def median(name: str, options: AtomicOptions) -> float:
    """The median of the last target of the task ``name``.

    >>> median("shift", AtomicOptions()), round(median("cummax", AtomicOptions(length=16)), 3)
    (0.0, 1.724)
    """
    if name not in ("cummax", "sort"):
        return 0.0
    values = options.length if name == "cummax" else options.length // 2
    return float(NormalDist().inv_cdf(0.5 ** (1 / values)))  # of the largest of so many


def examples(
    name: str, options: AtomicOptions, rng: np.random.Generator, count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Make ``count`` examples: inputs (count, L, C) and targets (count, T, D) of the last T.

    >>> inputs, targets = examples("sort", AtomicOptions(length=16), generator(0), 2)
    >>> inputs.shape, targets.shape, bool((np.diff(targets[..., 0]) >= 0).all())
    ((2, 16, 2), (2, 8, 1), True)
    """
    if name not in NAMES:
        raise DataError(f"name must be one of {list(NAMES)}, got {name!r}")
    length = options.length
    if name in ("cumsum", "cummax", "shift"):
        x = rng.standard_normal((count, length), np.float32)
        if name == "cumsum":
            total = np.cumsum(x, axis=1, dtype=np.float64)
            y = (total / np.sqrt(np.arange(1, length + 1)))[..., None]
        elif name == "cummax":
            y = np.maximum.accumulate(x, axis=1)[..., None]
        else:
            y = np.zeros((count, length, SHIFTS))
            for number in range(SHIFTS):
                by = number * length // SHIFTS
                y[:, by:, number] = x[:, : length - by]
        return x[..., None], y.astype(np.float32)
    blanks = options.marked if isinstance(options, SelectOptions) else length // 2
    x = rng.standard_normal((count, length - blanks), np.float32)
    inputs = np.zeros((count, length, 2), np.float32)
    inputs[:, : length - blanks, 0] = x
    if name == "select":
        marked = np.argsort(rng.random(x.shape), axis=1)[:, :blanks]
        marked.sort(axis=1)
        np.put_along_axis(inputs[..., 1], marked, 1.0, axis=1)
        return inputs, np.take_along_axis(x, marked, axis=1)[..., None]
    inputs[:, length - blanks :, 1] = 1.0
    ordered = np.sort(x, axis=1) if name == "sort" else x[:, ::-1]
    return inputs, np.ascontiguousarray(ordered[..., None])


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits of the task ``draft.name``."""
    options: AtomicOptions = draft.options
    sizes = {split: getattr(options, split) for split in SPLITS}
    draft.blocks(partial(make_block, draft.name), sizes, BLOCK)
    return spec(draft.name, options), sizes


def spec(name: str, options: AtomicOptions) -> Spec:
    """The shape of the task ``name``."""
    inputs, targets = examples(name.removesuffix(ABOVE), options, generator(0), 1)
    if name.endswith(ABOVE):
        return Spec(
            kind="classification", inputs="floats", max_length=options.length, num_classes=2,
            channels=inputs.shape[2], class_names=("below", "above"), readout="last",
        )  # fmt: skip
    return Spec(
        kind="regression",
        inputs="floats",
        max_length=options.length,
        channels=inputs.shape[2],
        target_length=targets.shape[1],
        target_dim=targets.shape[2],
    )


def estimate(options: AtomicOptions) -> int:
    """Bytes of the result, from above."""
    return 4 * options.length * (SHIFTS + 1) * (options.train + options.validation + options.test)
