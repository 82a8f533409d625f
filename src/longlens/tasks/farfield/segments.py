r"""``far-order`` and ``far-match``: segments between equal guards, whose order alone is the label.

An example is ::

    E₀  C  S₁  C  S₂  C  E₁          (three segments: C S₁ C S₂ C S₃ C)

S₁, S₂ are segments (``width`` times one mark), C the *guard*, a word of D - 1 background tokens
that is drawn once for an example and stands on both sides of every segment, and E₀, E₁ background
of random extent that moves everything. All examples have one length.

* ``far-order``: the marks 0 … K-1 in random order; the label is the mark that comes first.
* ``far-match``: three segments of which two are alike, a a b in some order; the label says
  whether the first two match (a a b) or not (a b a, b a a).

**Theorem.** For r ≤ D the label is independent of ``bag_r(x)``, edges included. So in exact
arithmetic no model that is a function of that bag (see the package's docstring) beats chance.

*Proof.* Fix background, guard and which marks occur; let x and x' differ in the marks' order alone.
A window of width r ≤ D that holds a token of S_i holds at most r - 1 ≤ D - 1 positions on either
side of it, all inside C S_i C: no edge, no other segment. So the windows that touch a segment are a
function of its mark and of C alone, and the multiset of them over all segments is the same for x
and x'. All other windows hold no segment's token and are the same in x and x' place by place. So
``bag_r(x) = bag_r(x')``: the bag is a function of the orbit (E₀, E₁, C, the multiset of marks). The
generator draws the order after, and independently of, the orbit, in such a way that every label has
the same probability: uniformly over all K! orders (each mark is first in (K-1)! of them), or the
label first and then an order that has it. Hence P(label | bag) = P(label). ∎

The range is sharp: a window of width D + 1 holds the end of S₁ and the beginning of S₂. A model
that knows absolute positions is not covered (see the package's docstring).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import TypeVar

import numpy as np

from longlens.tasks.arrays import Array, Bytes, Floats, Ints
from longlens.tasks.farfield.options import LETTERS, MatchOptions, OrderOptions, Sizes

T = TypeVar("T")  # of what was drawn
BLANK = 0
ARRANGEMENTS = ((0, 0, 1), (0, 1, 0), (1, 0, 0))  # of far-match: which of its two marks is where


def background(
    rng: np.random.Generator, shape: tuple[int, ...], noise: float, first_letter: int
) -> Bytes:
    """Blanks, of which a share ``noise`` are replaced by one of the letters, at random.

    >>> background(np.random.default_rng(0), (4,), 0.0, 3).tolist()
    [0, 0, 0, 0]
    """
    if noise == 0:
        return np.zeros(shape, np.uint8)
    letters = rng.integers(first_letter, first_letter + LETTERS, shape, dtype=np.uint8)
    if noise < 1:
        letters[rng.random(shape, np.float32) >= noise] = BLANK
    return letters


def variants(drawn: T, row: int, **changed: Array) -> T:
    """Example ``row`` of what was drawn, once for each value of the ``changed`` fields."""
    times = len(next(iter(changed.values())))
    parts = {name: part[row : row + 1].repeat(times, axis=0) for name, part in vars(drawn).items()}
    return type(drawn)(**parts | changed)


@dataclass(frozen=True)
class Drawn:
    """What is drawn for N examples: all but ``marks`` is the same throughout an orbit."""

    marks: Ints  # (N, K) the mark of each segment, in order of position
    before: Ints  # (N,) length of E₀
    outer: Bytes  # (N, slack) E₀ and E₁, one after the other
    guard: Bytes  # (N, D - 1)


def sites(options: OrderOptions) -> int:
    """Number of segments of an example."""
    return 3 if isinstance(options, MatchOptions) else options.difficulty


def sizes(options: OrderOptions) -> Sizes:
    """Ids are 0 blank, 1 … K the marks, then the letters.

    >>> sizes(OrderOptions(distance=512)).length
    1669
    """
    count = sites(options)
    length = options.room + (count + 1) * (options.distance - 1) + count * options.width
    classes = 2 if isinstance(options, MatchOptions) else options.difficulty
    return Sizes(length, 1 + options.difficulty + LETTERS, classes)


def draw(options: OrderOptions, rng: np.random.Generator, count: int) -> Drawn:
    """Draw ``count`` examples; the order of the marks last, independently of everything else."""
    first_letter = 1 + options.difficulty
    guard = background(rng, (count, options.distance - 1), options.noise, first_letter)
    outer = background(rng, (count, options.room), options.noise, first_letter)
    before = rng.integers(0, options.room + 1, count)
    marks = np.argsort(rng.random((count, options.difficulty)), axis=1)
    if isinstance(options, MatchOptions):
        different = rng.random(count) < 0.5
        which = np.where(different, rng.integers(1, 3, count), 0)
        marks = np.take_along_axis(marks, np.array(ARRANGEMENTS)[which], axis=1)
    return Drawn(marks, before, outer, guard)


def labels(options: OrderOptions, drawn: Drawn) -> Ints:
    """The label of each example (N,)."""
    if isinstance(options, MatchOptions):
        return np.asarray(drawn.marks[:, 0] == drawn.marks[:, 1], np.int64)
    return drawn.marks[:, 0]


def guarded(guard: Bytes, marks: Ints, width: int, first_mark: int = 1) -> Bytes:
    """C S₁ C S₂ C … C: guard (N, G), marks (N, K) -> (N, (K + 1) G + K width)."""
    segments = (marks + first_mark).astype(guard.dtype)[:, :, None].repeat(width, axis=2)
    pairs = [part for site in range(marks.shape[1]) for part in (guard, segments[:, site])]
    return np.concatenate([*pairs, guard], axis=1)


def render(options: OrderOptions, drawn: Drawn) -> Bytes:
    """Lay examples out: tokens (N, L).

    >>> small = OrderOptions(distance=3, noise=0.0, width=1, slack=1)
    >>> render(small, draw(small, np.random.default_rng(1), 2)).tolist()
    [[0, 0, 2, 0, 0, 1, 0, 0, 0], [0, 0, 0, 2, 0, 0, 1, 0, 0]]
    """
    core = guarded(drawn.guard, drawn.marks, options.width)
    out = np.empty((len(core), core.shape[1] + drawn.outer.shape[1]), np.uint8)
    for row, start in enumerate(drawn.before.tolist()):
        stop = start + core.shape[1]
        out[row, :start] = drawn.outer[row, :start]
        out[row, start:stop] = core[row]
        out[row, stop:] = drawn.outer[row, start:]
    return out


def orbit(options: OrderOptions, drawn: Drawn, row: int) -> tuple[Drawn, Floats]:
    """All examples that share example ``row``'s orbit, and the probability of each in it.

    Of more than four marks only the rotations are listed: they form orbits of their own, within
    which every mark is first once.
    """
    marks = drawn.marks[row]
    if isinstance(options, MatchOptions):
        values, counts = np.unique(marks, return_counts=True)
        pair = values[np.argsort(-counts)]
        orders, weights = pair[np.array(ARRANGEMENTS)], np.array([0.5, 0.25, 0.25])
    else:
        first = np.roll(marks, -int(marks.argmin()))  # the same list whichever member was drawn
        many = len(marks) > 4
        turned = (np.roll(first, k) for k in range(len(marks)))
        orders = np.array(list(turned if many else permutations(sorted(marks))))
        weights = np.full(len(orders), 1 / len(orders))

    return variants(drawn, row, marks=orders), weights


def everything(options: OrderOptions) -> Iterator[Drawn] | None:
    """One example of every orbit, where the background is blank; None: too many to enumerate."""
    if options.noise > 0 or sites(options) > 4:
        return None
    if isinstance(options, MatchOptions):
        numbers = range(options.difficulty)
        kinds: list[tuple[int, ...]] = [(a, a, b) for a in numbers for b in numbers if a != b]
    else:
        kinds = [tuple(range(options.difficulty))]

    def each() -> Iterator[Drawn]:
        for start in range(options.room + 1):
            for marks in kinds:
                yield Drawn(
                    np.array([marks]),
                    np.array([start]),
                    np.zeros((1, options.room), np.uint8),
                    np.zeros((1, options.distance - 1), np.uint8),
                )

    return each() if (options.room + 1) * len(kinds) <= 5000 else None
