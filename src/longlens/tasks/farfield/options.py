"""Options of the far-field tasks. D is ``distance`` throughout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from longlens.tasks.errors import DataError, check_least

LETTERS = 8  # distractor tokens


class Sizes(NamedTuple):
    """Positions of an example, number of tokens and number of labels."""

    length: int
    vocabulary: int
    classes: int


@dataclass(frozen=True)
class FarOptions:
    """Options that all far-field tasks have.

    Args:
        distance: D; no window of this width or less tells anything about the label.
        noise: share of the background that is random letters; the rest is blank.
        train: examples to make.
        validation: examples to make.
        test: examples to make.
        seed: of everything that is drawn.
    """

    distance: int = 64
    noise: float = 0.1
    train: int = 20_000
    validation: int = 2_000
    test: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, distance=1, train=1, validation=1, test=1, seed=0)
        if not 0 <= self.noise <= 1:
            raise DataError(f"noise must be in 0 … 1, got {self.noise}")


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise DataError(f"{name} must be in {low} … {high}, got {value}")


@dataclass(frozen=True)
class OrderOptions(FarOptions):
    """Options of ``far-order``.

    Args:
        difficulty: how many segments there are, and so classes; 2 … 16.
        width: tokens of a segment.
        slack: positions by which an example's segments move; None: a quarter of D.
    """

    difficulty: int = 2
    width: int = 4
    slack: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("difficulty", self.difficulty, 2, 16)
        _check_range("width", self.width, 1, 1 << 20)
        _check_range("slack", self.room, 0, 1 << 24)

    @property
    def room(self) -> int:
        """The slack in positions."""
        return self.distance // 4 if self.slack is None else self.slack


@dataclass(frozen=True)
class MatchOptions(OrderOptions):
    """Options of ``far-match``.

    Args:
        difficulty: from how many kinds the segments are drawn; 2 … 16.
    """


@dataclass(frozen=True)
class XorOptions(FarOptions):
    """Options of ``far-xor``.

    Args:
        distance: D; how far before the last position, where it is read out, the last bit may be.
        difficulty: how many bits there are; 1 … 16.
        span: positions over which the bits are spread; None: D, or 4 for each bit if more.
    """

    difficulty: int = 2
    span: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("difficulty", self.difficulty, 1, 16)
        _check_range("span", self.room, self.difficulty, 1 << 24)

    @property
    def room(self) -> int:
        """The span in positions."""
        return max(self.distance, 4 * self.difficulty) if self.span is None else self.span


@dataclass(frozen=True)
class PointerOptions(FarOptions):
    """Options of ``far-pointer``.

    Args:
        distance: D; length of every hop, and of the way from the last table to the read-out.
        difficulty: symbols of a table, and so classes; 2 … 32.
        hops: how many tables are looked up, one after another.
    """

    difficulty: int = 4
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("difficulty", self.difficulty, 2, 32)
        _check_range("hops", self.hops, 1, 64)


@dataclass(frozen=True)
class FarListOpsOptions(FarOptions):
    """Options of ``far-listops``.

    Args:
        distance: D; how far each token is from the next, and the last one from the read-out.
        difficulty: depth of an expression at most (2: an operator on digits alone); 2 … 6.
        tokens: length of an expression at most, brackets included; 6 … 200.
    """

    difficulty: int = 3
    tokens: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("difficulty", self.difficulty, 2, 6)
        _check_range("tokens", self.tokens, 6, 200)


@dataclass(frozen=True)
class InjectionOptions:
    """Options of ``far-injection``.

    Args:
        inner: a classification task on tokens that is prepared, imported or generated; "pattern":
            a local task made here (which of four marks is there, in 64 positions?).
        inner_options: the inner task's own options.
        distance: D; no window of this width or less tells anything about the label.
        noise: share of the guards that is random letters; the rest is blank.
        train: examples to make; None: all of the inner task's (pattern: 20,000).
        validation: examples to make; None: all (pattern: 2,000).
        test: examples to make; None: all (pattern: 5,000).
        seed: of everything that is drawn here.
        difficulty: how many far segments there are; even, 2 … 16.
        width: tokens of a segment.
        combine: "flip" (two classes: the far bit, flipped for the last quarter of the inner
            classes) or "pair" (inner class and far bit together, twice as many classes).
    """

    inner: str = "pattern"
    inner_options: Mapping[str, Any] = field(default_factory=dict)
    distance: int = 64
    noise: float = 0.1
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    seed: int = 0
    difficulty: int = 2
    width: int = 4
    combine: Literal["flip", "pair"] = "flip"

    def __post_init__(self) -> None:
        FarOptions(self.distance, self.noise, self.train or 1, self.validation or 1,
                   self.test or 1, self.seed)  # fmt: skip
        for name in ("train", "validation", "test"):
            if getattr(self, name) == 0:
                raise DataError(f"{name} must be 1 or more, got 0")
        _check_range("difficulty", self.difficulty, 2, 16)
        _check_range("width", self.width, 1, 1 << 20)
        if self.combine not in ("flip", "pair"):
            raise DataError(f"combine must be 'flip' or 'pair', got {self.combine!r}")
        if self.difficulty % 2:
            raise DataError(f"difficulty must be even, got {self.difficulty}")
        if self.inner == "pattern" and self.inner_options:
            raise DataError("inner_options belong to an inner task; 'pattern' has none")
        if self.inner == "far-injection":
            raise DataError("inner must be another task than far-injection")
