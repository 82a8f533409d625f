"""Which examples are trained on, selected by and tested: as given, else stratified by class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from longlens.tasks.arrays import Array, Ints
from longlens.tasks.errors import DataError
from longlens.tasks.order import permutation
from longlens.tasks.spec import SPLITS

WORDS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
         "val": "validation", "dev": "validation", "test": "test", "testing": "test",
         "0": "train", "1": "validation", "2": "test"}  # fmt: skip


def stratified(classes: Array, seed: int) -> Ints:
    """A random order, every beginning of which has all classes in their shares.

    >>> order = stratified(np.array([0] * 6 + [1] * 3), 0)
    >>> [sorted(np.array([0] * 6 + [1] * 3)[order][:n].tolist()) for n in (3, 6)]
    [[0, 0, 1], [0, 0, 0, 0, 1, 1]]
    """
    order = permutation(len(classes), seed)
    place = np.empty(len(classes))
    for each in np.unique(classes):
        members = order[classes[order] == each]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return np.asarray(order[np.argsort(place[order], kind="stable")])


def _classes_first(order: Ints, classes: Array, least: int) -> Ints:
    """An order that begins with one of every class of which it has ``least``.

    Where all of them are among its first examples anyway, as they are unless classes are of very
    unequal sizes, these stay the same.

    >>> classes = np.array([0] * 6 + [1] * 3)
    >>> _classes_first(np.array([0, 1, 2, 3, 6, 7, 4, 8, 5]), classes, 3)
    array([0, 6, 1, 2, 3, 7, 4, 8, 5])
    """
    _, places, counts = np.unique(classes[order], return_index=True, return_counts=True)
    first = np.zeros(len(order), bool)
    first[places[counts >= least]] = True
    return np.concatenate([order[first], order[~first]])


def split_examples(
    count: int,
    classes: Array | None,
    given: Array | None,
    validation: float,
    test: float,
    seed: int,
) -> dict[str, Ints]:
    """The examples of each split.

    Args:
        count: of examples.
        classes: (N,); None: targets are numbers, and examples are drawn as they come.
        given: (N,) words (train, validation, test) or 0, 1, 2; None: all are drawn. Where nothing
            is given for validation, its share of train is held out.
        validation: share held out; more where classes are many and examples few.
        test: the same for test, if none is given.
        seed: of what is drawn.
    """
    parts: dict[str, Ints] = {}
    if given is None:
        order = stratified(classes, seed) if classes is not None else permutation(count, seed)
        held = [max(1, int(count * validation)), max(1, int(count * test))]
        # Room for one of every class in both, where that leaves half to train on: a part with some
        # of the classes, or one example, chooses and tests nothing.
        kinds = 0 if classes is None else len(np.unique(classes))
        enough = [max(few, kinds) for few in held]
        if 2 * sum(enough) <= count:
            held = enough
        if count - sum(held) < 1:
            raise DataError(f"{count} examples are too few to split into three")
        for split, few, parts_left in zip(("validation", "test"), held, (3, 2), strict=True):
            if classes is not None:
                order = _classes_first(order, classes, parts_left)
            parts[split], order = order[:few], order[few:]
        return parts | {"train": order}
    named = _named(given, count)
    parts = {split: np.flatnonzero(named == split) for split in SPLITS}
    for split in ("train", "test"):
        if not len(parts[split]):
            raise DataError(f"split has no example for {split}")
    if not len(parts["validation"]):
        known = parts["train"]
        order = known[
            stratified(classes[known], seed)
            if classes is not None
            else permutation(len(known), seed)
        ]
        few = max(1, int(len(known) * validation))
        if len(known) - few < 1:
            raise DataError(f"{len(known)} training examples are too few to hold out validation")
        parts["validation"], parts["train"] = order[:few], order[few:]
    return parts


def _named(given: Array, count: int) -> npt.NDArray[np.str_]:
    if given.shape != (count,):
        raise DataError(
            f"split must have a value for each of the {count} examples, got {given.shape}"
        )
    words = [str(value).strip().lower() for value in given.tolist()]
    if unknown := sorted(set(words) - set(WORDS)):
        raise DataError(f"split must be train, validation or test (0, 1, 2), got {unknown[0]!r}")
    return np.array([WORDS[word] for word in words])
