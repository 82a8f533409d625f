r"""``far-injection``: any classification task, its label combined with a far dependency.

The inner example z, of any length and content, is put between far segments::

    C  S₁  C  z  C  S₂  C            (four segments: C S₁ C z C S₂ C S₃ C S₄ C)

S₁, S₂ are ``width`` times one of the marks 0 … K-1 (K = ``difficulty``, even), all different, in
random order; C is a guard of D - 1 background tokens, drawn once for an example. The far bit b says
whether the first mark is odd. The label is

* ``flip``: b, flipped where the inner class is in the last quarter (of two classes: the second);
* ``pair``: inner class and b together, 2 × inner + b.

So it needs the inner task *and* the order of segments with the whole inner example between them.
Made from a task that local models solve, it tells how much of a model's success is long range: a
model with inner accuracy q that sees the order can reach q, and without it 1/2 (flip) or q/2
(pair). A flip of three classes in four leaves b worth something on its own (75 %), so that models
can learn one part before the other; of two inner classes it is an exclusive or, which gradient
descent finds slowly.

**Theorem.** For r ≤ D the label is independent of ``bag_r(x)``, edges and the inner example
included (of a pair: b is). So in exact arithmetic every model that is a function of that bag
(bounded features that do not know their positions, any symmetric pooling) is right with
probability 1/2 at most, even if it solves the inner task perfectly.

*Proof.* As for ``far-order``: for fixed z and C, windows of width r ≤ D that touch a segment lie
inside C S_i C and are a function of its mark and of C; all other windows do not change with the
order of the marks. So the bag is a function of (z, C), and given these b
is fair, since K is even and the order is uniform, drawn independently of them; b flipped by a
function of z is fair, too. ∎

Padding behind shorter examples only repeats where the right edge is, which does not depend on the
order. Features that know absolute positions are not covered (see the package's docstring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longlens.tasks.arrays import Array, Ints
from longlens.tasks.build import Draft
from longlens.tasks.data import Task
from longlens.tasks.errors import DataError
from longlens.tasks.farfield import segments
from longlens.tasks.farfield.options import LETTERS, InjectionOptions
from longlens.tasks.farfield.segments import background
from longlens.tasks.order import generator, permutation
from longlens.tasks.spec import SPLITS, Spec

BLOCK_BYTES = 8 << 20
SIZES = {"train": 20_000, "validation": 2_000, "test": 5_000}  # of the built-in pattern
PATTERN_LENGTH, PATTERN_CLASSES, PATTERN_WIDTH, PATTERN_NOISE = 64, 4, 4, 0.1
PATTERN_VOCAB = 1 + PATTERN_CLASSES + LETTERS


@dataclass(frozen=True)
class Wrapped:
    """What is drawn around N inner examples."""

    marks: Ints  # (N, K)
    guard: Array  # (N, D - 1), as ids of the whole vocabulary


def draw(options: InjectionOptions, rng: np.random.Generator, count: int, vocab: int) -> Wrapped:
    """Draw guards and orders; ``vocab`` is the inner vocabulary, after which the new ids begin."""
    word = background(rng, (count, options.distance - 1), options.noise, 1)
    letters = np.where(word > 0, word.astype(np.int64) + vocab + options.difficulty, vocab)
    kind = np.min_scalar_type(vocab + 1 + options.difficulty + LETTERS - 1)
    marks = np.argsort(rng.random((count, options.difficulty)), axis=1)
    return Wrapped(marks, letters.astype(kind))


def pattern(rng: np.random.Generator, count: int) -> tuple[Array, Ints]:
    """The built-in inner task: tokens (N, 64) with one of four marks, and which it is (N,).

    >>> tokens, targets = pattern(np.random.default_rng(0), 2)
    >>> [int((row == mark + 1).sum()) for row, mark in zip(tokens, targets)]
    [4, 4]
    """
    tokens = background(rng, (count, PATTERN_LENGTH), PATTERN_NOISE, 1 + PATTERN_CLASSES)
    targets = rng.integers(0, PATTERN_CLASSES, count)
    first = rng.integers(0, PATTERN_LENGTH - PATTERN_WIDTH + 1, count)
    places = first[:, None] + np.arange(PATTERN_WIDTH)
    np.put_along_axis(tokens, places, (1 + targets[:, None]).astype(np.uint8), axis=1)
    return tokens, targets


def combine(options: InjectionOptions, marks: Ints, inner: Ints, inner_classes: int) -> Ints:
    """The label (N,) from the marks' order (N, K) and the inner class (N,).

    >>> combine(InjectionOptions(), np.array([[0, 1], [1, 0]]), np.array([8, 8]), 10).tolist()
    [1, 0]
    >>> combine(InjectionOptions(combine="pair"), np.array([[1, 0]]), np.array([8]), 10).tolist()
    [17]
    """
    far = marks[:, 0] % 2
    if options.combine == "pair":
        return np.asarray(2 * inner + far)
    last_quarter = min(inner_classes - 1, -(-3 * inner_classes // 4))
    return np.asarray(far ^ (inner >= last_quarter))


def classes(options: InjectionOptions, inner_classes: int) -> int:
    """Number of labels."""
    return 2 * inner_classes if options.combine == "pair" else 2


def wrap(options: InjectionOptions, wrapped: Wrapped, row: int, inner: Array, vocab: int) -> Array:
    """One example: the inner tokens (n,) between the first segment and the others."""
    marks = wrapped.marks[row : row + 1]
    guard = wrapped.guard[row : row + 1]
    first = segments.guarded(guard, marks[:, :1], options.width, vocab + 1)[0]
    rest = segments.guarded(guard, marks[:, 1:], options.width, vocab + 1)[0]
    return np.concatenate([first, inner.astype(guard.dtype), rest])


def examples(
    options: InjectionOptions, rng: np.random.Generator, inner: Sequence[Array], targets: Ints,
    kinds: int, vocab: int,
) -> tuple[Wrapped, list[Array], Ints]:  # fmt: skip
    """Wrap inner examples of ``kinds`` classes: what was drawn, N rows of tokens, labels (N,).

    The task's files are written with it, and certificates look at what it gives.
    """
    wrapped = draw(options, rng, len(inner), vocab)
    rows = [wrap(options, wrapped, i, z, vocab) for i, z in enumerate(inner)]
    return wrapped, rows, combine(options, wrapped.marks, targets, kinds)


def orbit(options: InjectionOptions, wrapped: Wrapped, row: int) -> Wrapped:
    """The rotations of example ``row``'s marks, in each of which another one is first."""
    marks = wrapped.marks[row]
    first = np.roll(marks, -int(marks.argmin()))  # the same list whichever member was drawn
    orders = np.stack([np.roll(first, shift) for shift in range(len(marks))])
    return segments.variants(wrapped, row, marks=orders)


class _Make:
    """A block maker that can be sent to another process; opens the inner task where it runs."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.task: Task | None = None

    def __call__(
        self, options: InjectionOptions, split: str, block: int, count: int
    ) -> dict[str, Array]:
        rng = generator(options.seed, SPLITS.index(split), block)
        inner, targets, kinds, extras = self._inner(options, split, block, count, rng)
        vocab = PATTERN_VOCAB if self.task is None else int(self.task.spec.vocab_size or 0)
        wrapped, rows, labels = examples(options, rng, inner, targets, kinds, vocab)
        out: dict[str, Array] = {
            "targets": labels.astype(np.min_scalar_type(2 * kinds)),
            "inner": targets.astype(np.min_scalar_type(kinds - 1)),
            "first": wrapped.marks[:, 0].astype(np.uint8),
            **extras,
        }
        if self.task is None or "inputs" in self.task[split].arrays:
            return out | {"inputs": np.stack(rows)}
        lengths = np.array([len(row) for row in rows], np.int32)
        return out | {"flat": np.concatenate(rows), "lengths": lengths}

    def _inner(
        self, options: InjectionOptions, split: str, block: int, count: int,
        rng: np.random.Generator,
    ) -> tuple[list[Array], Ints, int, dict[str, Array]]:  # fmt: skip
        if self.folder is None:
            tokens, targets = pattern(rng, count)
            return list(tokens), targets, PATTERN_CLASSES, {}
        if self.task is None:
            self.task = Task(self.folder, "size")
        part, spec = self.task[split], self.task.spec
        size = getattr(options, split)
        chosen = np.arange(len(part)) if size is None else permutation(len(part), 0)[:size]
        first = block * block_rows(options, spec)
        index = np.sort(chosen)[first : first + count]
        assert spec.num_classes is not None
        extras = {name: part.extra(name)[index] for name in _plain_extras(self.task)}
        rows = [np.asarray(part.sequence(int(i))) for i in index]
        return rows, part.targets[index].astype(np.int64), spec.num_classes, extras


def _plain_extras(task: Task) -> list[str]:
    """The extras that are one number an example, and whose names are free."""
    return [
        name
        for name in task.spec.extras
        if task["train"].extra(name).ndim == 1 and name not in ("inner", "first")
    ]


def added_length(options: InjectionOptions) -> int:
    """Positions that an example has beyond the inner one."""
    k = options.difficulty
    return (k + 2) * (options.distance - 1) + k * options.width


def block_rows(options: InjectionOptions, inner: Spec | None) -> int:
    """Examples of a block: a few megabytes, whatever D is."""
    longest = (PATTERN_LENGTH if inner is None else inner.max_length) + added_length(options)
    return max(1, min(2000, BLOCK_BYTES // longest))


def open_inner(options: InjectionOptions, root: Path) -> Task | None:
    """Load the inner task and check that it can be injected into; None: the built-in pattern."""
    from longlens.tasks import load  # the registry of all tasks lists this one

    if options.inner == "pattern":
        return None
    task = load(options.inner, root, **dict(options.inner_options))
    spec = task.spec
    if spec.kind != "classification" or spec.inputs != "tokens" or spec.pair:
        raise DataError(
            f"inner must be a classification task on single sequences of tokens; {options.inner} "
            f"is {spec.kind} on {'pairs of ' if spec.pair else ''}{spec.inputs}"
        )
    if spec.readout is not None:
        raise DataError(f"inner must not have a read-out of its own, and {options.inner} has")
    for split in SPLITS:
        size = getattr(options, split)
        if size is not None and size > len(task[split]):
            raise DataError(
                f"{split} must be at most the inner task's {len(task[split])}, got {size}"
            )
    return task


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits."""
    options: InjectionOptions = draft.options
    task = open_inner(options, draft.writer.folder.parent.parent)
    inner = None if task is None else task.spec
    sizes = {
        split: getattr(options, split) or (SIZES[split] if task is None else len(task[split]))
        for split in SPLITS
    }
    if task is not None:
        draft.writer.notes.append(f"inner task: {task.name}, identity {task.identity}")
        draft.writer.made_from(options.inner, dict(options.inner_options), task.identity)
    draft.blocks(_Make(None if task is None else task.folder), sizes, block_rows(options, inner))
    vocab = PATTERN_VOCAB if inner is None else int(inner.vocab_size or 0)
    longest = (PATTERN_LENGTH if inner is None else inner.max_length) + added_length(options)
    kinds = PATTERN_CLASSES if inner is None else int(inner.num_classes or 0)
    extras = ("inner", "first", *(() if task is None else _plain_extras(task)))
    spec = Spec(
        kind="classification",
        inputs="tokens",
        max_length=longest,
        vocab_size=vocab + 1 + options.difficulty + LETTERS,
        pad_id=None if inner is None else inner.pad_id,
        num_classes=classes(options, kinds),
        extras=extras,
        stands_in_for=None if inner is None else inner.stands_in_for,
    )
    return spec, sizes


def estimate(options: InjectionOptions) -> int:
    """Bytes of the result; what the inner task adds is not known before it is opened."""
    sizes = sum(getattr(options, split) or SIZES[split] for split in SPLITS)
    return 2 * sizes * (2000 + added_length(options))
