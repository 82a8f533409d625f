"""Training on several data sets at once, judged on one of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from longlens.files import digest
from longlens.tasks.build import make_options
from longlens.tasks.data import Rows, Split, Task
from longlens.tasks.errors import DataError
from longlens.tasks.manifest import Verify
from longlens.tasks.pathfinder.parameters import CONTOUR_LENGTH
from longlens.tasks.registry import find_task
from longlens.tasks.spec import Spec

EASIER = ("listops", "pathfinder", "pathx")  # tasks with easier sets
SHORTEST = 20  # below it the easiest ListOps set would have next to no expressions to draw from


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the examples of all ``splits``, one after another, as one split; nothing is copied.

    The splits must have the same kind of examples; pairs and next-token streams are refused.

    >>> import tempfile, longlens.tasks as tasks
    >>> options = dict(root=tempfile.mkdtemp(), length=16, train=10, validation=1, test=1)
    >>> splits = [tasks.load("reverse", seed=seed, **options)["train"] for seed in (0, 1)]
    >>> len(join_splits(splits))
    20
    """
    if not splits:
        raise DataError("splits must hold one split or more, got none")
    first = splits[0]
    if first.spec.pair or first.spec.kind == "next_token":
        raise DataError("splits of pairs or of a stream cannot be joined")
    longest = max(split.spec.max_length for split in splits)
    for split in splits[1:]:
        if _kind(split.spec) != _kind(first.spec) or set(split.arrays) != set(first.arrays):
            raise DataError(
                f"splits of one kind can be joined, got {_kind(first.spec)} and {_kind(split.spec)}"
            )
    if "flat" not in first.arrays and any(s.spec.max_length != longest for s in splits):
        raise DataError("splits of fixed length can be joined only where the lengths are equal")
    arrays = {
        name: Rows([part for split in splits for part in split.arrays[name].parts])
        for name in first.arrays
    }
    return Split(first.name, replace(first.spec, max_length=longest), arrays, None)


def _kind(spec: Spec) -> dict[str, object]:
    """What must agree: all but the length and what the data stand in for."""
    kept = spec.to_json()
    del kept["max_length"], kept["stands_in_for"]
    return kept


def mixed_identity(parts: Sequence[str]) -> str:
    """The identity of several data sets together, the one that is judged on first."""
    return digest({"mixed": list(parts)})


class MixedTask(Task):
    """``main`` with the training examples of ``others`` added; validation and test stay its own.

    ``identity`` depends on all of them, so a record of a mixed run never looks like one of ``main``
    alone.

    >>> import tempfile, longlens.tasks as tasks
    >>> options = dict(root=tempfile.mkdtemp(), length=16, train=10, validation=1, test=1)
    >>> main, other = (tasks.load("reverse", seed=seed, **options) for seed in (0, 1))
    >>> mixed = MixedTask(main, [other])
    >>> len(mixed["train"]), len(mixed["test"]), mixed.identity != main.identity
    (20, 1, True)
    """

    def __init__(self, main: Task, others: Sequence[Task]) -> None:
        self.__dict__.update(main.__dict__)  # the files were verified when they were opened
        self.parts = (main, *others)
        train = join_splits([task["train"] for task in self.parts])
        self.splits = {**main.splits, "train": train}
        self.spec = replace(main.spec, max_length=train.spec.max_length)

    @property
    def identity(self) -> str:
        """The hash that names these data in records."""
        return mixed_identity([task.identity for task in self.parts])

    @property
    def examples(self) -> dict[str, int]:
        """How many examples each split has."""
        return {**super().examples, "train": len(self.splits["train"])}

    def __repr__(self) -> str:
        return f"MixedTask({', '.join(map(repr, self.parts))})"


def with_easier_sets(
    task: Task, root: str | Path | None = None, *, verify: Verify = "full", workers: int = 1
) -> MixedTask:
    """A task with the training examples of its easier sets added.

    Pathfinder gets easy and intermediate images beside hard ones; ListOps, of more than 500 tokens,
    expressions of 50 to 200 and of 200 to 500 (for another ``min_length`` the same shares of it).

    Args:
        task: one of ``EASIER``.
        root: the cache; the easier sets have the same options otherwise and are generated where
            they are not there (LRA's own images must have been prepared).
        verify: see :func:`longlens.tasks.manifest.verify_files`.
        workers: processes for the generator.
    """
    from longlens.tasks import load

    others = [
        load(task.name, root, verify=verify, workers=workers, **{**task.options, **changes})
        for changes in easier_options(task.name, **task.options)
    ]
    return MixedTask(task, others)


def easier_options(name: str, **options: Any) -> list[dict[str, Any]]:
    """What sets the easier sets apart from the task ``name`` made with ``options``.

    >>> easier_options("listops")
    [{'min_length': 50, 'max_length': 200}, {'min_length': 200, 'max_length': 500}]
    """
    if name not in EASIER:
        raise DataError(f"{name} has no easier sets; {', '.join(EASIER)} have")
    task_options = make_options(find_task(name), options)
    if name == "listops":
        shortest = task_options.min_length
        if shortest < SHORTEST:
            raise DataError(
                f"min_length must be {SHORTEST} or more for easier sets of listops, got {shortest}"
            )
        ends = (shortest // 10, 2 * shortest // 5, shortest)
        return [{"min_length": low, "max_length": high} for low, high in pairwise(ends)]
    kinds = list(CONTOUR_LENGTH)
    return [{"difficulty": kind} for kind in kinds[: kinds.index(task_options.difficulty)]]
