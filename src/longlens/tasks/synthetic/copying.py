"""What stood where: copying out of blanks, one of many positions, and a bit that is kept.

::

    mad-selective-copying   . . c . a . . d . b . #3       -> d    the third symbol that is no blank
    mad-compression         c a d b a c d #4               -> b    the fourth token of all
    flip-flop               w 1 i 0 i 0 r 1 w 0 i 1 r      -> 0    what was written last

The first two are tasks of Poli et al. 2024 (MAD, arXiv 2403.17844): there all symbols are copied in
order, and all tokens are decoded from one vector; here one of them is asked by its number
(published accuracies: see ``recall.py``). The
third is the flip-flop language of Liu et al. 2023 (arXiv 2306.00946): write, read and ignore, each
with a bit; four fifths are "ignore". They report that an LSTM makes no errors, also far from what
it was trained on, and that Transformers keep a long tail of sporadic ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.synthetic.base import Kind, SyntheticOptions, distinct


@dataclass(frozen=True)
class CopyOptions(SyntheticOptions):
    """Options of selective copying.

    Args:
        symbols: different symbols, and so classes.
        tokens: symbols among the blanks.
    """

    symbols: int = 8
    tokens: int = 16

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"tokens": 1, "symbols": 2, "length": self.tokens + 1}


@dataclass(frozen=True)
class CompressionOptions(SyntheticOptions):
    """Options of compression.

    Args:
        length: of an example, in tokens, with the question.
        symbols: different symbols, and so classes.
    """

    length: int = 33
    symbols: int = 8

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"symbols": 2, "length": 2}


@dataclass(frozen=True)
class FlipFlopOptions(SyntheticOptions):
    """Options of the flip-flop language.

    Args:
        ignore: percent of the instructions that are "ignore".
    """

    ignore: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ignore <= 100:
            raise DataError(f"ignore must be in 0 … 100 (percent), got {self.ignore}")

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"length": 3}


def selective(o: CopyOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: 0 blank, symbols, numbers."""
    places = np.sort(distinct(rng, count, o.tokens, o.length - 1), axis=1)
    symbols = rng.integers(0, o.symbols, (count, o.tokens))
    asked = rng.integers(0, o.tokens, (count, 1))
    tokens = np.zeros((count, o.length), np.int64)
    np.put_along_axis(tokens, places, 1 + symbols, 1)
    tokens[:, -1:] = 1 + o.symbols + asked
    return tokens, np.take_along_axis(symbols, asked, 1)[:, 0]


def compression(o: CompressionOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: symbols, numbers."""
    tokens = rng.integers(0, o.symbols, (count, o.length))
    asked = rng.integers(0, o.length - 1, (count, 1))
    tokens[:, -1:] = o.symbols + asked
    return tokens, np.take_along_axis(tokens, asked, 1)[:, 0]


def flip_flop(o: FlipFlopOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: 0 blank (the first token, where the length is even), bits 1 and 2, then w, r and i."""
    steps = (o.length - 1) // 2
    drawn = rng.integers(0, 200, (count, steps))
    kind = np.where(drawn < 2 * o.ignore, 2, drawn % 2)  # 0 write, 1 read, 2 ignore
    kind[:, 0] = 0
    bits = rng.integers(0, 2, (count, steps))
    written = np.maximum.accumulate(np.where(kind == 0, np.arange(steps), 0), axis=1)
    memory = np.take_along_axis(bits, written, 1)
    tokens = np.zeros((count, o.length), np.int64)
    begin = o.length - 1 - 2 * steps
    tokens[:, begin:-1:2] = 3 + kind
    tokens[:, begin + 1 : -1 : 2] = 1 + np.where(kind == 1, memory, bits)
    tokens[:, -1] = 3 + 1
    return tokens, memory[:, -1]


KINDS = {
    "mad-selective-copying": Kind("the n-th symbol among blanks", CopyOptions, selective,
                                  lambda o: 1 + o.symbols + o.tokens, lambda o: o.symbols),
    "mad-compression": Kind("the token at the place that is asked", CompressionOptions, compression,
                            lambda o: o.symbols + o.length - 1, lambda o: o.symbols),
    "flip-flop": Kind("the bit that was written last, among ignored ones", FlipFlopOptions,
                      flip_flop, lambda o: 6, lambda o: 2),
}  # fmt: skip
