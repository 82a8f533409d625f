"""Certificates: the claims of the far-field tasks, checked on their generators.

For each orbit (examples that differ in nothing but what decides the label) two things are checked:
that all its members look the same to a bounded model (equal bags of windows of width D, edges
included, or equal last D tokens), and that its labels are as likely as they are overall. Where the
background is blank every orbit is enumerated, and the result is exact. Else orbits are drawn from
the generator: none of n failing bounds the share of failing orbits by 1 - 0.05^(1/n) with 95 %
confidence, and the accuracy of any bounded model by chance + that share × (1 - chance).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError
from longlens.tasks.farfield import injection, segments
from longlens.tasks.farfield.bags import first_difference, same_bags
from longlens.tasks.farfield.build import MEMBERS, READOUT
from longlens.tasks.farfield.options import (
    FarListOpsOptions,
    FarOptions,
    InjectionOptions,
    MatchOptions,
    OrderOptions,
    PointerOptions,
    XorOptions,
)
from longlens.tasks.order import generator

OPTIONS: dict[str, type[Any]] = {
    "far-order": OrderOptions,
    "far-match": MatchOptions,
    "far-xor": XorOptions,
    "far-pointer": PointerOptions,
    "far-listops": FarListOpsOptions,
    "far-injection": InjectionOptions,
}
COVERS = {
    "bag": "features of windows of width r <= D that do not know their absolute position, then any "
    "symmetric pooling, or the first or last feature",
    "read-out": "models that are read out at the last position alone and reach back fewer than D "
    "positions from it; they may know positions",
}
CONFIDENCE = 0.95
Member = tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Certificate:
    """What was checked of a far-field task, and what follows from it."""

    task: str
    options: dict[str, Any]
    kind: Literal["bag", "read-out"]
    covers: str
    range: int
    """D: the largest width of a window (read-out: D - 1 is the longest reach back) covered."""
    length: int
    """Positions of an example (of ``far-injection``: beyond the inner one)."""
    chance: float
    """Accuracy of the best model that sees nothing."""
    method: Literal["exact", "monte carlo"]
    orbits: int
    """How many orbits were checked."""
    failing: int
    """How many did not pass."""
    failing_share_bound: float
    """Upper end of the confidence interval of the share of failing orbits; 0 where exact."""
    accuracy_bound: float
    """Upper bound on the accuracy of every covered model, with ``CONFIDENCE`` (exact: surely)."""
    fails_at: int | None
    """The least width at which an orbit's members can be told apart; shows that D is sharp."""

    @property
    def holds(self) -> bool:
        """Whether every orbit passed."""
        return self.failing == 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"holds": self.holds}


def certificate(task: str, samples: int = 200, **options: Any) -> Certificate:
    """Check the claim of a far-field task on its generator.

    Args:
        task: its name.
        samples: orbits to draw where they cannot be enumerated.
        options: of the task.

    >>> found = certificate("far-order", distance=16, noise=0.0)
    >>> found.holds, found.method, found.accuracy_bound, found.fails_at
    (True, 'exact', 0.5, 17)
    """
    if task not in OPTIONS:
        raise DataError(f"task must be one of {', '.join(OPTIONS)}, got {task!r}")
    if samples < 1:
        raise DataError(f"samples must be 1 or more, got {samples}")
    made = OPTIONS[task](**options)
    kind: Literal["bag", "read-out"] = "read-out" if task in READOUT else "bag"
    orbits, exact = _orbits(task, made, samples)
    checked = failing = 0
    sharp: int | None = None
    chance = None
    for tokens, labels, weights in orbits:
        share = np.bincount(labels, weights)
        chance = share if chance is None else chance
        if kind == "bag":
            alike = same_bags(tokens, made.distance)
        else:
            tail = tokens[:, -made.distance :]
            alike = bool((tail == tail[:1]).all())
        if task == "far-injection" and made.combine == "pair":  # the inner class may be known
            share = np.full(2, share.max())
            chance = np.full(2, 0.5)
        fair = share.shape == chance.shape and np.allclose(share, chance, atol=1e-9)
        if kind == "bag" and sharp is None:
            different = tokens[[0, int(np.argmax(labels != labels[0]))]]
            sharp = first_difference(different, made.distance, 4 * made.distance + 8)
        checked += 1
        failing += not (alike and fair)
    assert chance is not None
    best = float(chance.max())
    if task == "far-listops":  # of many expressions, not of those in the orbits alone
        many = MEMBERS[task].draw(replace(made, distance=1), generator(made.seed, 2**31), 5000)
        best = float(np.bincount(many.values).max() / len(many.values))
    bound = 0.0 if exact and not failing else _upper(failing, checked)
    if kind == "read-out":
        sharp = _reach(task, made) + 1
    return Certificate(
        task=task,
        options=asdict(made),
        kind=kind,
        covers=COVERS[kind],
        range=made.distance,
        length=_length(task, made),
        chance=best,
        method="exact" if exact else "monte carlo",
        orbits=checked,
        failing=failing,
        failing_share_bound=bound,
        accuracy_bound=best + bound * (1 - best),
        fails_at=sharp,
    )


def _upper(failing: int, checked: int) -> float:
    """Upper end of the one-sided Clopper-Pearson interval of a share.

    >>> round(_upper(0, 200), 4), round(_upper(3, 10), 3)
    (0.0149, 0.607)
    """
    if failing == checked:
        return 1.0
    low, high = failing / checked, 1.0
    for _ in range(60):  # the share at which so few failures have probability 5 %
        middle = (low + high) / 2
        term, total = (1 - middle) ** checked, 0.0
        for k in range(failing + 1):
            total += term
            term *= (checked - k) / (k + 1) * middle / (1 - middle)
        low, high = (middle, high) if total > 1 - CONFIDENCE else (low, middle)
    return high


def _length(task: str, options: Any) -> int:
    if task == "far-injection":
        return injection.added_length(options)
    return int(MEMBERS[task].length(options))


def _reach(task: str, options: Any) -> int:
    """How far back from the last position the nearest evidence may be."""
    return int(MEMBERS[task].length(options) - 1 - MEMBERS[task].last_evidence(options))


def _orbits(task: str, options: Any, samples: int) -> tuple[Iterator[Member], bool]:
    if task == "far-injection":
        return _injected(options, samples), False
    member = MEMBERS[task]
    listed = segments.everything(options) if member is segments else None
    if listed is not None:
        return (_member(member, options, drawn, 0) for drawn in listed), True
    rng = generator(options.seed, 2**31)  # not a key of any split's blocks
    drawn = member.draw(options, rng, samples)
    # The read-out tasks' evidence has a last position by construction: nothing to enumerate.
    exact = task in READOUT and options.noise == 0
    return (_member(member, options, drawn, row) for row in range(samples)), exact


def _member(member: Any, options: FarOptions, drawn: Any, row: int) -> Member:
    orbit, weights = member.orbit(options, drawn, row)
    return member.render(options, orbit), member.labels(options, orbit), weights


def _injected(options: InjectionOptions, samples: int) -> Iterator[Member]:
    """Orbits around random inner sequences: the claim is for any inner example whatsoever."""
    vocab, rng = 16, generator(options.seed, 2**31)
    for _ in range(samples):
        inner = rng.integers(0, vocab, int(rng.integers(1, 200)))
        target = rng.integers(0, 4, 1)
        one = injection.draw(options, rng, 1, vocab)
        k = options.difficulty
        orders = np.stack([np.roll(one.marks[0], shift) for shift in range(k)])
        guard = one.guard.repeat(k, axis=0)
        orbit = injection.Wrapped(orders, guard)
        tokens = np.stack([injection.wrap(options, orbit, i, inner, vocab) for i in range(k)])
        labels = injection.combine(options, orders, target.repeat(k), 4)
        yield tokens, labels, np.full(k, 1 / k)
