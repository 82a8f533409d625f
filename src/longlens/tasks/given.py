"""What a file gives: examples as they are, labels as they are written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError

LABELS = ("label", "labels", "y", "target", "targets", "class")
IDS = ("id", "idx", "__index_level_0__")  # the last one is the index of a frame of pandas
COUNTS = ("", "unnamed: 0", "unnamed: 0.1", "index")
EXACT = 2.0**53  # below it a float64 holds every whole number


@dataclass
class Given:
    """Examples (length,) or (length, channels), or texts; labels and split, where there are any."""

    examples: Sequence[Any] | Array
    labels: Sequence[Any] | None = None
    split: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    names: list[str] | None = None  # of classes, where labels are their numbers
    label: str | None = None  # the column that the labels were in: other parts have them there, too
    columns: list[str] | None = None  # names of those that the inputs were in: the same for them


def are_whole(numbers: Array) -> bool:
    """Whether numbers are whole, and integers can hold them: NaN and infinity are not.

    >>> are_whole(np.array([1.0, 2.0])), are_whole(np.array([1.0, np.inf]))
    (True, False)
    """
    return bool(((numbers == np.floor(numbers)) & (np.abs(numbers) < EXACT)).all())


def as_number(cell: Any) -> int | float | None:
    """The number that a cell or a label is, a whole one exactly; None where it is none.

    >>> as_number("1000000000000000001"), as_number("1.0"), as_number("1_1")
    (1000000000000000001, 1.0, None)
    """
    if isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell):
        return None  # Python reads 1_1 as 11
    if isinstance(cell, int):
        return cell
    try:
        number = float(cell)
        whole = isinstance(cell, str) and cell.strip().lstrip("+-").isdecimal()
        return int(cell) if whole and math.isfinite(number) else number
    except (TypeError, ValueError):
        return None


def tells_rows_apart(name: str, values: Iterable[Any], wanted: Sequence[str] | None) -> bool:
    """Whether a column names or numbers the examples and says nothing of them.

    Numbers of rows need not be in order: pandas writes those that rows had before they were
    shuffled or chosen, and R counts from 1.

    Args:
        name: of the column, in small letters.
        values: of the column; text is a name.
        wanted: the input columns of the training file, which decides for all parts; None: this
            is the training file.

    >>> tells_rows_apart("index", [3, 1, 2], None), tells_rows_apart("index", [3, 1, 3], None)
    (True, False)
    """
    if wanted is not None:
        return name in (*IDS, *COUNTS) and name not in wanted
    if name not in (*IDS, *COUNTS):
        return False
    values = list(values)
    if name in IDS:
        return not isinstance(values[0], list)
    numbers = [None if isinstance(value, str) else as_number(value) for value in values]
    whole = all(number is not None and number == number // 1 for number in numbers)
    return whole and len(set(numbers)) == len(numbers)


def first_of(names: Iterable[str], wanted: Iterable[str]) -> str | None:
    """The first of the wanted names that is there.

    >>> first_of(["a", "y", "class"], LABELS)
    'y'
    """
    known = set(names)
    return next((name for name in wanted if name in known), None)


def places(path: Path | str, found: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Where in another part the input columns of the training file are, which need its names.

    Args:
        path: of the other part, for messages.
        found: names of its input columns.
        wanted: those of the training file, in its order; None: there is none.

    >>> places("test.csv", ["c", "a"], ["a", "c"])
    [1, 0]
    """
    if wanted is None:
        return list(range(len(found)))
    missing, extra = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    if missing or extra:
        problems = [
            f"{what} {', '.join(map(repr, names[:8]))}{' …' if len(names) > 8 else ''}"
            for what, names in (("lacks", [*missing]), ("has besides", [*extra]))
            if names
        ]
        raise DataError(
            f"{path}: input columns must be those of the training file; it {' and '.join(problems)}"
        )
    ours = sorted(range(len(found)), key=found.__getitem__)
    theirs = sorted(range(len(wanted)), key=wanted.__getitem__)
    return [place for _, place in sorted(zip(theirs, ours, strict=True))]
