"""Certificates: the claims of the far-field tasks, checked on the generators that run.

Examples are drawn as the task's files are made, and four things are checked of them.

1. **Orbits** (examples that differ in nothing but what decides the label): all members look the
   same to a bounded model (equal bags of windows of width D, edges included, or equal last D
   tokens), and every label is as likely as the task says. Where the background is blank every
   orbit is enumerated, and this part is exact. Else none of n drawn orbits failing bounds the
   share of failing ones by 1 - 0.05^(1/n) with 95 % confidence.
2. **Agreement**: every drawn example is a member of its own orbit, with that member's label, and
   the members are drawn as often as their probabilities say.
3. **Balance**: the labels of all draws are as frequent as the task says.
4. **Leaks**: windows of drawn examples (or their last D tokens), and all that an orbit keeps fixed,
   are compared between labels; see ``leaks.py`` for the test and its power.

Nothing failing, the accuracy of any covered model is at most chance + (share of failing orbits) ×
(1 - chance), in exact arithmetic, *if* the order is drawn independently of the orbit. That last
premise is what 2 to 4 try to refute; no sample proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from longlens.tasks.arrays import Array, Floats, Ints
from longlens.tasks.errors import DataError
from longlens.tasks.farfield.bags import first_difference, same_bags
from longlens.tasks.farfield.build import MEMBERS, READOUT
from longlens.tasks.farfield.leaks import (
    Group,
    find_leaks,
    place_features,
    unlikely,
    window_features,
)
from longlens.tasks.farfield.options import (
    FarListOpsOptions,
    InjectionOptions,
    MatchOptions,
    OrderOptions,
    PointerOptions,
    XorOptions,
)
from longlens.tasks.farfield.sample import (
    Sample,
    draw_sample,
    length_of,
    list_orbits,
    positions_seen,
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
    "bag": "in exact arithmetic: features of windows of width r <= D that do not know their "
    "absolute position, then any symmetric pooling, or the first or last feature",
    "read-out": "models that are read out at the last position alone and reach back fewer than D "
    "positions from it; they may know positions",
}
CONFIDENCE = 0.95
VALUES = 20_000  # draws whose values give the chance of far-listops
TOKENS = 1 << 21  # that bounded models see of all draws: 200 to 4,000 examples
Kind = Literal["bag", "read-out"]


@dataclass(frozen=True)
class Certificate:
    """What was checked of a far-field task, and what follows from it."""

    task: str
    options: dict[str, Any]
    kind: Kind
    covers: str
    range: int
    """D: the largest width of a window (read-out: D - 1 is the longest reach back) covered."""
    length: int
    """Positions of an example (of ``far-injection``: beyond the inner one)."""
    chance: float
    """Accuracy of the best model that sees nothing."""
    method: Literal["exact", "monte carlo"]
    """Of the orbits; that they are drawn from evenly is always a test of samples."""
    orbits: int
    """How many orbits were checked."""
    failing: int
    """How many did not pass."""
    failing_share_bound: float
    """Upper end of the confidence interval of the share of failing orbits; 0 where exact."""
    draws: int
    """Examples that were drawn from the generator itself."""
    compared: int
    """Features of them whose frequency was compared between labels."""
    detectable: float
    """A feature of half of the draws is found out with 95 % if it gives a label this share."""
    problems: tuple[str, ...]
    """Whatever did not pass, in words."""
    accuracy_bound: float
    """Upper bound on the accuracy of every covered model, with ``CONFIDENCE``; 1: no bound."""
    fails_at: int | None
    """The least width at which an orbit's members can be told apart; shows that D is sharp."""

    @property
    def holds(self) -> bool:
        """Whether everything passed."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"problems": list(self.problems), "holds": self.holds}


def certificate(
    task: str, samples: int = 200, draws: int | None = None, **options: Any
) -> Certificate:
    """Check the claim of a far-field task on its generator.

    Args:
        task: its name.
        samples: orbits to draw where they cannot be enumerated.
        draws: examples to draw; None: 200 to 4,000, as the length allows.
        options: of the task.

    >>> proof = certificate("far-order", distance=16, noise=0.0)
    >>> proof.holds, proof.method, proof.accuracy_bound, proof.fails_at
    (True, 'exact', 0.5, 17)
    """
    if task not in OPTIONS:
        raise DataError(f"task must be one of {', '.join(OPTIONS)}, got {task!r}")
    for name, value in (("samples", samples), ("draws", draws)):
        if value is not None and value < 1:
            raise DataError(f"{name} must be 1 or more, got {value}")
    task_options = OPTIONS[task](**options)
    kind: Kind = "read-out" if task in READOUT else "bag"
    draws = draws or int(np.clip(TOKENS // positions_seen(task, task_options), 200, 4000))
    sample = draw_sample(task, task_options, max(draws, samples))
    chance = _chance(task, task_options)
    drawn = _check_drawn(task, task_options, kind, sample, samples, chance)
    listed = list_orbits(task, task_options)
    failing, checked = drawn.failing, samples
    for tokens, labels, weights in listed or ():
        failing += not _passes(task, task_options, kind, tokens, labels, weights, chance)
        checked += 1
    leaks = find_leaks(_features(sample, task_options.distance, kind), np.bincount(sample.labels))
    refuting = [*drawn.problems, *_imbalance(task, sample, chance)]
    refuting += [f"{leak}, of {len(sample.labels)} draws" for leak in leaks.worst]
    problems = list(refuting)
    if failing:
        what = "members of an orbit can be told apart, or their labels are not equally likely"
        problems.append(f"{failing} of {checked} orbits: {what}")
    exact = listed is not None or (kind == "read-out" and task_options.noise == 0)
    bound = 0.0 if exact and not failing else _upper(failing, checked)
    best = float(chance.max())
    return Certificate(
        task=task,
        options=asdict(task_options),
        kind=kind,
        covers=COVERS[kind],
        range=task_options.distance,
        length=length_of(task, task_options),
        chance=best,
        method="exact" if exact else "monte carlo",
        orbits=checked,
        failing=failing,
        failing_share_bound=bound,
        draws=len(sample.labels),
        compared=leaks.compared,
        detectable=leaks.detectable,
        problems=tuple(problems),
        accuracy_bound=1.0 if refuting else best + bound * (1 - best),
        fails_at=drawn.fails_at,
    )


@dataclass(frozen=True)
class _Checked:
    """What the orbits of drawn examples show."""

    failing: int
    fails_at: int | None
    problems: list[str]


def _check_drawn(
    task: str, options: Any, kind: Kind, sample: Sample, samples: int, chance: Floats
) -> _Checked:
    """Check orbits, and whether what is drawn is what they list, as often as they say."""
    failing = strange = 0
    taken, due = np.zeros(1, np.int64), np.ones(1)
    apart: list[int] = []
    for row in range(samples):
        tokens, labels, weights = sample.orbit(row)
        failing += not _passes(task, options, kind, tokens, labels, weights, chance)
        if kind == "read-out" or row == 0:  # the places of bits are random, guards are not
            apart += _told_apart(tokens, labels, options.distance, kind)
        if row == 0:
            taken, due = np.zeros(len(weights), np.int64), weights
        member = np.flatnonzero((tokens == sample.tokens[row]).all(1))
        if len(member) == 0 or labels[member[0]] != sample.labels[row]:
            strange += 1
        else:
            taken[member[0]] += 1
    problems = []
    if strange:
        what = "no member of their orbit, or have another label"
        problems.append(f"{strange} of {samples} draws are {what}")
    if task != "far-listops" and taken.sum() and unlikely(taken, due):
        problems.append(f"the members of an orbit are drawn {taken.tolist()} times, not evenly")
    return _Checked(failing, min(apart, default=None), problems)


def _chance(task: str, options: Any) -> Floats:
    """The labels' probabilities: equal, but those of ``far-listops``' values, which are counted."""
    if task == "far-listops":
        many = MEMBERS[task].draw(
            replace(options, distance=1), generator(options.seed, 2**31), VALUES
        )
        return np.asarray(np.bincount(many.values, minlength=10) / len(many.values))
    kinds = 2 if task == "far-injection" else MEMBERS[task].sizes(options).classes
    return np.full(kinds, 1 / kinds)


def _passes(
    task: str, options: Any, kind: Kind, tokens: Array, labels: Ints, weights: Floats,
    chance: Floats,
) -> bool:  # fmt: skip
    """Whether a bounded model cannot tell the members of an orbit apart, and has to guess."""
    if kind == "bag":
        alike = same_bags(tokens, options.distance)
    else:
        tail = tokens[:, -options.distance :]
        alike = bool((tail == tail[:1]).all())
    share = np.bincount(labels, weights, minlength=len(chance))
    fair = share.shape == chance.shape and np.allclose(share, chance, atol=1e-9)
    return alike and (fair or task == "far-listops")  # its values have any probabilities


def _told_apart(tokens: Array, labels: Ints, distance: int, kind: Kind) -> list[int]:
    """The least width (read-out: reach and one) at which an orbit's members look different."""
    if kind == "read-out":
        places = np.flatnonzero((tokens != tokens[:1]).any(0))
        return [int(tokens.shape[1] - places[-1])] if len(places) else []
    different = tokens[[0, int(np.argmax(labels != labels[0]))]]
    width = first_difference(different, distance, 4 * distance + 8)
    return [] if width is None else [width]


def _imbalance(task: str, sample: Sample, chance: Floats) -> Iterator[str]:
    counts = np.bincount(sample.labels, minlength=len(chance))
    if task != "far-listops" and (len(counts) != len(chance) or unlikely(counts, chance)):
        yield f"the labels of {counts.sum()} draws are not balanced: {counts.tolist()}"


def _features(sample: Sample, distance: int, kind: Kind) -> Iterator[Group]:
    """All that must not depend on the label: what bounded models see, what an orbit keeps."""
    labels, kinds = sample.labels, int(sample.labels.max()) + 1
    seen = sample.tokens if kind == "bag" else sample.tokens[:, -distance:]
    yield from window_features(seen, labels, kinds, distance)
    if kind == "read-out":
        yield from place_features("a token behind the evidence", seen, labels, kinds)
    for name, columns in sample.fixed.items():
        yield from place_features(f"a value of {name!r}", columns, labels, kinds)


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
