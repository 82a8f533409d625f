"""``far-listops``: short ListOps expressions whose tokens stand D positions apart.

::

    [MAX · · · 2 · · · [MIN · · · 4 · · · 7 · · · ] · · · ] · · · read-out        label 4

Every token of the expression (operators, digits, brackets) is D positions before the next one, with
background between them; the expression is read out at the last position, D or more behind it. The
grammar is that of ``listops``, with at most ``difficulty`` levels and ``tokens`` tokens.

**Proven.** A model that is read out at the last position alone and reaches back fewer than D
positions sees background alone, which is drawn independently of the expression: it can do no better
than the most frequent value (0 or 9, about 12 %; the certificate counts it). Also, no window of
width D or less holds two tokens of the expression.

**Not proven**, and not true: that *pooled* features of width one are at chance. The bag of single
tokens holds all digits and operators; MIN, MAX, MED and SM do not depend on the order of their
arguments, so of a flat expression it holds all there is, and of a nested one much. With
``difficulty=2`` a pooled model of receptive field one can be perfect. That is why the read-out is
part of the task (``Spec.readout``); under mean pooling use ``far-order`` or ``far-injection``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks import listops
from longlens.tasks.arrays import Bytes, Floats, Ints
from longlens.tasks.farfield.options import LETTERS, FarListOpsOptions, Sizes
from longlens.tasks.farfield.segments import background, variants


@dataclass(frozen=True)
class Drawn:
    """What is drawn for N examples."""

    written: Bytes  # (N, tokens) the expressions, then zeros
    values: Ints  # (N,)
    around: Bytes  # (N, L) the background


def sizes(options: FarListOpsOptions) -> Sizes:
    """Ids are 0 blank, those of ``listops``, then the letters."""
    return Sizes(options.tokens * options.distance + 1, listops.VOCAB + LETTERS, classes=10)


def draw(options: FarListOpsOptions, rng: np.random.Generator, count: int) -> Drawn:
    """Draw ``count`` examples; the expressions differ within each 500 of them."""
    written = np.zeros((count, options.tokens), np.uint8)
    values = []
    for first in range(0, count, 500):
        grammar = listops.ListOpsOptions(
            min_length=3,
            max_length=options.tokens + 1,
            max_depth=options.difficulty,
            seed=int(rng.integers(1 << 62)),
        )
        block = listops.make_block(grammar, "train", 0, min(500, count - first))
        rows = np.repeat(np.arange(len(block["lengths"])), block["lengths"])
        starts = np.cumsum(block["lengths"]) - block["lengths"]
        written[first + rows, np.arange(len(rows)) - starts[rows]] = block["flat"]
        values.append(block["targets"].astype(np.int64))
    around = background(rng, (count, sizes(options).length), options.noise, listops.VOCAB)
    return Drawn(written, np.concatenate(values), around)


def labels(options: FarListOpsOptions, drawn: Drawn) -> Ints:
    """The expressions' values (N,)."""
    return drawn.values


def render(options: FarListOpsOptions, drawn: Drawn) -> Bytes:
    """Lay examples out: tokens (N, L).

    >>> small = FarListOpsOptions(distance=3, noise=0.0, difficulty=2, tokens=6)
    >>> render(small, draw(small, np.random.default_rng(0), 1)).shape
    (1, 19)
    """
    out = drawn.around.copy()
    there = out[:, : options.tokens * options.distance : options.distance]
    there[...] = np.where(drawn.written > 0, drawn.written, there)
    return out


def orbit(options: FarListOpsOptions, drawn: Drawn, row: int) -> tuple[Drawn, Floats]:
    """All drawn expressions before the background of example ``row``."""
    count = len(drawn.values)
    expressions = variants(drawn, row, written=drawn.written, values=drawn.values)
    return expressions, np.full(count, 1 / count)
