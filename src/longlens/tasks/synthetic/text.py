"""Byte by byte: a needle in words that mean nothing, and variables that stand for each other.

::

    needle      kev ratolu key wxyz is 7. ba solim … fulo key wxyz?        -> 7
    variables   ro c=4; dilu a=c; mok v=1; … q=a; sabe q?                  -> 4    two hops

Both are byte-level forms of tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654), which asks large
language models for numbers in essays and for chains of assignments; its accuracies belong to such
models and compare with nothing here. Names are drawn anew in every example, so nothing can be
learned by heart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.synthetic.base import Kind, SyntheticOptions

CONSONANTS, VOWELS = b"bdfklmnrstv", b"aeiou"
LETTERS = b"abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class NeedleOptions(SyntheticOptions):
    """Options of the needle.

    Args:
        length: of an example, in bytes.
        needles: sentences with a key; one of them is asked.
    """

    length: int = 512
    needles: int = 4

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"needles": 1, "length": 10 + 17 * self.needles}


@dataclass(frozen=True)
class VariablesOptions(SyntheticOptions):
    """Options of variable tracking.

    Args:
        length: of an example, in bytes.
        chains: of assignments, each of which begins with a digit; one is asked.
        hops: from the variable that is asked to the one that has the digit.
    """

    length: int = 512
    chains: int = 3
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chains * (self.hops + 1) > len(LETTERS):
            raise DataError(
                f"chains × (hops + 1) must be {len(LETTERS)} or less, got {self.chains} and "
                f"{self.hops}"
            )

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"chains": 1, "hops": 0, "length": 8 + 6 * self.chains * (self.hops + 1)}


def _filler(rng: np.random.Generator, size: int) -> bytes:
    """Words without meaning, of ``size`` bytes in all."""
    words = bytearray()
    while len(words) < size:
        for _ in range(int(rng.integers(1, 4))):
            words.append(CONSONANTS[rng.integers(0, len(CONSONANTS))])
            words.append(VOWELS[rng.integers(0, len(VOWELS))])
        words += b" "
    return bytes(words[:size])


def scatter(rng: np.random.Generator, size: int, sentences: list[bytes], question: bytes) -> bytes:
    """Sentences in their order, at random places of words, and a question that ends the text."""
    room = size - sum(map(len, sentences)) - len(question)
    words = _filler(rng, room)
    cuts = np.sort(rng.integers(0, room + 1, len(sentences))).tolist()
    parts = [words[a:b] for a, b in zip([0, *cuts], [*cuts, room], strict=True)]
    return b"".join(a + b for a, b in zip(parts, [*sentences, question], strict=True))


def needle(o: NeedleOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Bytes, and the digit of the key that is asked."""
    tokens, labels = np.zeros((count, o.length), np.int64), np.zeros(count, np.int64)
    for row in range(count):
        names: dict[bytes, int] = {}
        while len(names) < o.needles:
            name = bytes(LETTERS[n] for n in rng.integers(0, 26, 4))
            names.setdefault(name, int(rng.integers(0, 10)))
        asked = list(names)[rng.integers(0, len(names))]
        sentences = [b" key %s is %d. " % pair for pair in names.items()]
        line = scatter(rng, o.length, sentences, b" key %s?" % asked)
        tokens[row], labels[row] = np.frombuffer(line, np.uint8), names[asked]
    return tokens, labels


def variables(o: VariablesOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Bytes, and the digit that the variable that is asked stands for."""
    tokens, labels = np.zeros((count, o.length), np.int64), np.zeros(count, np.int64)
    each = o.hops + 1
    for row in range(count):
        names = [LETTERS[n : n + 1] for n in rng.permutation(26)[: o.chains * each]]
        digits = rng.integers(0, 10, o.chains)
        chain_of = rng.permutation(np.repeat(np.arange(o.chains), each))
        done, sentences = [0] * o.chains, []
        for chain in chain_of.tolist():
            place = chain * each + done[chain]
            value = names[place - 1] if done[chain] else b"%d" % digits[chain]
            sentences.append(b" %s=%s; " % (names[place], value))
            done[chain] += 1
        asked = int(rng.integers(0, o.chains))
        line = scatter(rng, o.length, sentences, b" %s?" % names[asked * each + o.hops])
        tokens[row], labels[row] = np.frombuffer(line, np.uint8), digits[asked]
    return tokens, labels


KINDS = {
    "needle": Kind("the digit of a key that a text mentions once, byte by byte", NeedleOptions,
                   needle, lambda o: 256, lambda o: 10, "bytes"),
    "variables": Kind("the digit that a variable stands for, through others, byte by byte",
                      VariablesOptions, variables, lambda o: 256, lambda o: 10, "bytes"),
}  # fmt: skip
