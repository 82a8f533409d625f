"""What a file gives: examples as they are, labels as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array

LABELS = ("label", "labels", "y", "target", "targets", "class")
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


def are_whole(numbers: Array) -> bool:
    """Whether numbers are whole, and integers can hold them: NaN and infinity are not.

    >>> are_whole(np.array([1.0, 2.0])), are_whole(np.array([1.0, np.inf]))
    (True, False)
    """
    return bool(((numbers == np.floor(numbers)) & (np.abs(numbers) < EXACT)).all())


def first_of(names: Iterable[str], wanted: Iterable[str]) -> str | None:
    """The first of the wanted names that is there.

    >>> first_of(["a", "y", "class"], LABELS)
    'y'
    """
    known = set(names)
    return next((name for name in wanted if name in known), None)
