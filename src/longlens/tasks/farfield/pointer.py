"""``far-pointer``: follow a pointer through tables that are D or more positions apart.

::

    s | gap | a:c d:b c:a b:d | gap | b:a a:d d:c c:b | gap | read-out        hops = 2
                  π₁                        π₂                    label π₂(π₁(s))

A table is a random permutation of n symbols, written as n pairs (key, value) in random order; all
tables use the same tokens. A gap has D - 1 background tokens (the last one D, with the read-out).

**Theorem.** A model that is read out at the last position alone and reaches back fewer than D
positions from there is at chance (1/n), whatever it knows about positions. *Proof.* The last D
tokens are background, drawn independently of start and tables; for fixed tables the label is a
bijection of the uniformly drawn start. ∎ For the same reason it stays at chance as long as it does
not reach the start, which stands first. Every hop (from the start to the first table, and from each
table to the next) is over D or more positions, so no shorter detour exists. What is *not* proven:
that the hops must be made one after another, or that pooled models without positions fail (the
pairs of a table can be recognised by windows of width two; which table they belong to cannot).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Bytes, Floats, Ints
from longlens.tasks.farfield.options import LETTERS, PointerOptions, Sizes
from longlens.tasks.farfield.segments import background, variants


@dataclass(frozen=True)
class Drawn:
    """What is drawn for N examples with h tables of n symbols."""

    start: Ints  # (N,)
    tables: Ints  # (N, h, n) where each symbol points
    written: Ints  # (N, h, n) the order in which a table's keys are written
    around: Bytes  # (N, L) the background


def sizes(options: PointerOptions) -> Sizes:
    """Ids are 0 blank, n keys, n values, then the letters."""
    n, stride = options.difficulty, options.distance - 1 + 2 * options.difficulty
    return Sizes(1 + options.hops * stride + options.distance, 1 + 2 * n + LETTERS, classes=n)


def draw(options: PointerOptions, rng: np.random.Generator, count: int) -> Drawn:
    """Draw ``count`` examples."""
    shape = (count, options.hops, options.difficulty)
    return Drawn(
        start=rng.integers(0, options.difficulty, count),
        tables=np.argsort(rng.random(shape), axis=2),
        written=np.argsort(rng.random(shape), axis=2),
        around=background(
            rng, (count, sizes(options).length), options.noise, 1 + 2 * options.difficulty
        ),
    )


def labels(options: PointerOptions, drawn: Drawn) -> Ints:
    """Where the pointers lead (N,)."""
    at = drawn.start
    for hop in range(options.hops):
        at = np.take_along_axis(drawn.tables[:, hop], at[:, None], axis=1)[:, 0]
    return at


def render(options: PointerOptions, drawn: Drawn) -> Bytes:
    """Lay examples out: tokens (N, L).

    >>> small = PointerOptions(distance=2, noise=0.0, difficulty=2, hops=1)
    >>> render(small, draw(small, np.random.default_rng(0), 1)).tolist()
    [[4, 0, 1, 4, 2, 3, 0, 0]]
    """
    n = options.difficulty
    out = drawn.around.copy()
    out[:, 0] = 1 + n + drawn.start
    for hop in range(options.hops):
        first = 1 + hop * (options.distance - 1 + 2 * n) + options.distance - 1
        keys = drawn.written[:, hop]
        out[:, first : first + 2 * n : 2] = 1 + keys
        out[:, first + 1 : first + 2 * n : 2] = (
            1 + n + np.take_along_axis(drawn.tables[:, hop], keys, axis=1)
        )
    return out


def orbit(options: PointerOptions, drawn: Drawn, row: int) -> tuple[Drawn, Floats]:
    """The examples with every start, before the same tables and the same background."""
    n = options.difficulty
    return variants(drawn, row, start=np.arange(n)), np.full(n, 1 / n)
