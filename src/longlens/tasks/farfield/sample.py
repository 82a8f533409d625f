"""What certificates look at: examples as the far-field tasks make them, with their orbits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array, Floats, Ints
from longlens.tasks.farfield import injection, segments
from longlens.tasks.farfield.build import MEMBERS, READOUT, examples
from longlens.tasks.farfield.options import InjectionOptions
from longlens.tasks.order import generator

MEMBERS_AT_MOST = 200  # an orbit of far-listops has as many members as there are examples
INNER = 64, 16, 4  # length, vocabulary and classes of what stands for an inner task
Member = tuple[Array, Ints, Floats]
"""An orbit: its examples (n, L), their labels (n,) and their probabilities (n,)."""


@dataclass(frozen=True)
class Sample:
    """Examples as the generator makes them."""

    drawn: Any
    tokens: Array  # (N, L)
    labels: Ints  # (N,)
    orbit: Callable[[int], Member]
    """Of an example: all its variants, their labels and their probabilities."""
    fixed: dict[str, Array]
    """What an orbit keeps, as columns (N, C)."""


def draw_sample(task: str, options: Any, count: int) -> Sample:
    """Draw examples as the task's files are made, from a seed that no split has."""
    rng = generator(options.seed, 2**31)  # not a key of any split's blocks
    if task == "far-injection":
        return _injected(options, rng, count)
    member = MEMBERS[task]
    drawn, tokens, labels = examples(task, options, rng, count)
    few = _first(drawn, MEMBERS_AT_MOST)

    def orbit(row: int) -> Member:
        variants, weights = member.orbit(options, few if row < MEMBERS_AT_MOST else drawn, row)
        return member.render(options, variants), member.labels(options, variants), weights

    return Sample(drawn, tokens, labels, orbit, _fixed(drawn, member.orbit(options, few, 0)[0]))


def _injected(options: InjectionOptions, rng: np.random.Generator, count: int) -> Sample:
    """Around the built-in pattern, or around random tokens: the claim is for any inner example."""
    length, vocab, kinds = INNER
    if options.inner == "pattern":
        inner, targets = injection.pattern(rng, count)
        vocab, kinds = injection.PATTERN_VOCAB, injection.PATTERN_CLASSES
    else:
        inner = rng.integers(0, vocab, (count, length))
        targets = rng.integers(0, kinds, count)
    drawn, rows, labels = injection.examples(options, rng, list(inner), targets, kinds, vocab)

    def far(values: Ints) -> Ints:  # of a pair the inner class may be known, the far bit not
        return values % 2 if options.combine == "pair" else values

    def orbit(row: int) -> Member:
        variants = injection.orbit(options, drawn, row)
        size = len(variants.marks)
        tokens = [injection.wrap(options, variants, i, inner[row], vocab) for i in range(size)]
        values = injection.combine(options, variants.marks, targets[row].repeat(size), kinds)
        return np.stack(tokens), far(values), np.full(size, 1 / size)

    fixed = _fixed(drawn, injection.orbit(options, drawn, 0))
    return Sample(drawn, np.stack(rows), far(labels), orbit, fixed)


def _first(drawn: Any, count: int) -> Any:
    """The first examples of what was drawn."""
    return replace(drawn, **{f.name: getattr(drawn, f.name)[:count] for f in fields(drawn)})


def _fixed(drawn: Any, orbit: Any) -> dict[str, Array]:
    """The parts of what was drawn that are the same throughout an orbit, as columns."""
    columns = {}
    for part in fields(drawn):
        variants, values = getattr(orbit, part.name), getattr(drawn, part.name)
        if values.size and (variants == variants[:1]).all():
            columns[part.name] = values.reshape(len(values), -1)
    return columns


def list_orbits(task: str, options: Any) -> Iterator[Member] | None:
    """Every orbit of a task, where there are few; None: where there are many."""
    drawn = segments.everything(options) if MEMBERS.get(task) is segments else None
    if drawn is None:
        return None
    orbits = (segments.orbit(options, one, 0) for one in drawn)
    return ((segments.render(options, v), segments.labels(options, v), w) for v, w in orbits)


def length_of(task: str, options: Any) -> int:
    """Positions of an example; of ``far-injection`` beyond the inner one."""
    if task == "far-injection":
        return injection.added_length(options)
    return int(MEMBERS[task].sizes(options).length)


def positions_seen(task: str, options: Any) -> int:
    """Positions of an example that bounded models see between them."""
    return int(options.distance) if task in READOUT else length_of(task, options)
