"""Bits at a distance: how far they are and how many of them matter are two options.

::

    bits  0 1 1 0 1 0 0 1 0 1 1 0 0 1 0 |      read out here
              └─┬─┘                     |
              tokens = 3, the first of them distance = 12 positions back; label: their majority, 1

Any model that reaches ``distance`` positions back from the last one has all that it needs, and no
model that reaches back fewer than distance - tokens + 1 has anything (the bits are independent).
With ``rule="parity"`` every one of the bits is needed at once: no model that misses one of them is
better than chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.synthetic.base import Kind, SyntheticOptions


@dataclass(frozen=True)
class LagOptions(SyntheticOptions):
    """Options of the lag task.

    Args:
        distance: positions from the last one back to the first bit that matters.
        tokens: how many bits matter, one beside the other.
        rule: "majority" (of an odd number) or "parity".
    """

    distance: int = 64
    tokens: int = 1
    rule: Literal["majority", "parity"] = "majority"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in ("majority", "parity"):
            raise DataError(f"rule must be majority or parity, got {self.rule!r}")
        if self.rule == "majority" and self.tokens % 2 == 0:
            raise DataError(f"tokens must be odd for a majority, got {self.tokens}")

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"tokens": 1, "distance": self.tokens - 1, "length": self.distance + 1}


def lag(o: LagOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Bits, and what the ones at the distance have in common.

    >>> from longlens.tasks.order import generator
    >>> bits, labels = lag(LagOptions(length=9, distance=8, tokens=1), generator(0), 50)
    >>> bool((bits[:, 0] == labels).all())
    True
    """
    bits = rng.integers(0, 2, (count, o.length))
    begin = o.length - 1 - o.distance
    total = bits[:, begin : begin + o.tokens].sum(1)
    return bits, total % 2 if o.rule == "parity" else (2 * total > o.tokens).astype(np.int64)


KINDS = {
    "lag": Kind("majority or parity of bits at a distance", LagOptions, lag, lambda o: 2,
                lambda o: 2),
}  # fmt: skip
