"""``far-xor``: the parity of a few bits, read out at one position D or more behind the last bit.

::

    . . 1 . . . . 0 . . | . . . . . . . . .        label 1 xor 0 = 1
    the bits' span        D positions    ^ read out here, at the last position

Two bits by default (``difficulty``), at random places of the first ``span`` positions.

**Theorem.** A model that is read out at the last position alone and reaches back fewer than D
positions from there is at chance (1/2), whatever it knows about positions. *Proof.* The last bit's
position is at most ``span`` - 1 and the last position is ``span`` + D - 1, so the D last tokens are
background, which is drawn independently of the bits; the parity of independent fair bits is fair. ∎

With mean pooling this would be no far-field task: a feature of width one counts the ones, and a
perceptron takes the count's parity. So the task insists on the read-out (``Spec.readout``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from longlens.tasks.arrays import Bytes, Floats, Ints
from longlens.tasks.farfield.options import LETTERS, Sizes, XorOptions
from longlens.tasks.farfield.segments import background, variants

ZERO = 1  # the token of a bit 0; a bit 1 is the next


@dataclass(frozen=True)
class Drawn:
    """What is drawn for N examples."""

    bits: Ints  # (N, K)
    places: Ints  # (N, K) rising
    around: Bytes  # (N, L) the background


def sizes(options: XorOptions) -> Sizes:
    """Ids are 0 blank, 1 and 2 the bits, then the letters."""
    return Sizes(options.room + options.distance, vocabulary=3 + LETTERS, classes=2)


def draw(options: XorOptions, rng: np.random.Generator, count: int) -> Drawn:
    """Draw ``count`` examples."""
    around = background(rng, (count, sizes(options).length), options.noise, ZERO + 2)
    # Distinct places: sorted draws with repetition from a shorter range, spread by 0, 1, 2 …
    free = options.room - options.difficulty + 1
    places = np.sort(rng.integers(0, free, (count, options.difficulty)), axis=1)
    places += np.arange(options.difficulty)
    return Drawn(rng.integers(0, 2, (count, options.difficulty)), places, around)


def labels(options: XorOptions, drawn: Drawn) -> Ints:
    """The parity of the bits (N,)."""
    return np.asarray(drawn.bits.sum(axis=1) % 2)


def render(options: XorOptions, drawn: Drawn) -> Bytes:
    """Lay examples out: tokens (N, L).

    >>> small = XorOptions(distance=3, noise=0.0, span=2)
    >>> render(small, draw(small, np.random.default_rng(0), 1)).tolist()
    [[2, 2, 0, 0, 0]]
    """
    out = drawn.around.copy()
    np.put_along_axis(out, drawn.places, (drawn.bits + ZERO).astype(np.uint8), axis=1)
    return out


def orbit(options: XorOptions, drawn: Drawn, row: int) -> tuple[Drawn, Floats]:
    """The examples with all values of the bits, at the same places before the same background."""
    bits = np.array(list(product((0, 1), repeat=options.difficulty)))
    return variants(drawn, row, bits=bits), np.full(len(bits), 1 / len(bits))
