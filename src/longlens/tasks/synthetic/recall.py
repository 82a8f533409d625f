"""Recall of what was said before: key-value pairs, then a key, and its value is the label.

::

    mqar               k3 v1 k7 v4 k1 v1 . . k7 . . k1 . . k3        -> v1   every key is asked once
    mad-recall         k1 v4 k3 v2 k1 v4 k2 v2 k3                    -> v2   a key of before
    mad-noisy-recall   k1 v4 n5 k3 v2 n1 n2 k1 v4 k3                 -> v2   with noise between
    mad-fuzzy-recall   k1 k2 v4 v4 k3 v2 v1 v1 k1 k2                 -> v4   of one to three tokens
    mad-memorization   k5 k3 k8 k1 k8                                -> the same value of k8 always
    induction          a d b * c a a d b *                           -> c    what followed the mark

``mqar`` is multi-query associative recall (Arora et al. 2023, *Zoology*, arXiv 2312.04927), where
attention solves every setting and gated convolutions need a width that grows with the length.
Positions between queries are blank here: random tokens there, an option of the original, may write
a key beside another value. The four named mad are those of Poli et al. 2024 (arXiv 2403.17844),
whose easiest settings have 128 tokens, 16 of vocabulary, 12,800 training examples and a fifth of
noise; in ``mad-memorization`` the pairs are the same in all examples and stand in none of them.
``induction`` follows Gu and Dao 2023 (*Mamba*, arXiv 2312.00752), who train on 256 tokens of 16 and
report 100 % for Mamba there.

Published accuracies (%), over all questions of a sequence, so not quite this one. MAD at its
baselines: github.com/HassanJbara/lin-attn-bench; induction: github.com/berlino/seq_icl.

=====================  ===========  =====  ========  ======
task                   Transformer  Mamba  DeltaNet  others
=====================  ===========  =====  ========  ======
mad-recall             90.5         99.3   99.9
mad-noisy-recall       89.7         99.7   99.9
mad-fuzzy-recall       56.5         12.3   39.3
mad-memorization       78.8         89.6   39.4
mad-selective-copying  99.8         88.7   99.7
mad-compression        43.2         49.1   39.6
induction              97.2         —      —         H3 100.0, S4D 8.8, LSTM 4.8, random 5.0
=====================  ===========  =====  ========  ======
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.order import generator
from longlens.tasks.synthetic.base import Kind, SyntheticOptions, distinct


@dataclass(frozen=True)
class RecallOptions(SyntheticOptions):
    """Options of recall.

    Args:
        length: of an example, in tokens.
        keys: different keys.
        values: different values, and so classes.
    """

    length: int = 128
    keys: int = 8
    values: int = 8

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"length": 3, "keys": 2, "values": 2}


@dataclass(frozen=True)
class MQAROptions(RecallOptions):
    """Options of multi-query associative recall.

    Args:
        length: of an example, in tokens.
        keys: different keys that pairs are drawn from.
        pairs: in an example.
    """

    length: int = 256
    keys: int = 32
    pairs: int = 16

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"pairs": 1, "keys": self.pairs, "values": 2, "length": 3 * self.pairs}


@dataclass(frozen=True)
class NoisyOptions(RecallOptions):
    """Options of noisy recall.

    Args:
        noise: percent of the tokens that are noise.
        noises: different tokens of noise.
    """

    noise: int = 20
    noises: int = 8

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return super().least() | {"noise": 0, "noises": 1}


@dataclass(frozen=True)
class FuzzyOptions(RecallOptions):
    """Options of fuzzy recall.

    Args:
        keys: different tokens of keys; an example has half as many keys.
        values: different tokens of values, and so classes.
    """

    def least(self) -> dict[str, int]:
        """The least value of each option."""
        return {"length": 9, "keys": 2, "values": 2}


@dataclass(frozen=True)
class MemorizationOptions(RecallOptions):
    """Options of memorization.

    Args:
        keys: different keys; each has one value, the same in all examples.
    """

    length: int = 32
    keys: int = 64


def mqar(o: MQAROptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: 0 blank, keys, values."""
    keys = 1 + distinct(rng, count, o.pairs, o.keys)
    values = rng.integers(0, o.values, (count, o.pairs))
    order = distinct(rng, count, o.pairs, o.pairs)
    asked = np.take_along_axis(keys, order, 1)
    begin = 2 * o.pairs
    places = begin + distinct(rng, count, o.pairs - 1, o.length - 1 - begin)
    tokens = np.zeros((count, o.length), np.int64)
    tokens[:, 0:begin:2], tokens[:, 1:begin:2] = keys, 1 + o.keys + values
    np.put_along_axis(tokens, places, asked[:, :-1], 1)
    tokens[:, -1] = asked[:, -1]
    return tokens, np.take_along_axis(values, order[:, -1:], 1)[:, 0]


def recall(o: RecallOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: 0 blank (the first token, where the length is even), keys, values, noise."""
    free = o.length - 1
    noise = free * o.noise // 100 if isinstance(o, NoisyOptions) else 0
    pairs = max(1, (free - noise) // 2)
    noise = free - 2 * pairs if noise else 0
    table = rng.integers(0, o.values, (count, o.keys))
    keys = rng.integers(0, o.keys, (count, pairs))
    values = np.take_along_axis(table, keys, 1)
    tokens = np.zeros((count, o.length), np.int64)
    is_pair = distinct(rng, count, pairs + noise, pairs + noise) < pairs
    starts = np.cumsum(1 + is_pair, 1) - 1 - is_pair + (free - 2 * pairs - noise)
    first = starts[is_pair].reshape(count, pairs)
    np.put_along_axis(tokens, first, 1 + keys, 1)
    np.put_along_axis(tokens, first + 1, 1 + o.keys + values, 1)
    if isinstance(o, NoisyOptions) and noise:
        drawn = rng.integers(0, o.noises, (count, noise))
        places = starts[~is_pair].reshape(count, noise)
        np.put_along_axis(tokens, places, 1 + o.keys + o.values + drawn, 1)
    asked = np.take_along_axis(keys, rng.integers(0, pairs, (count, 1)), 1)
    tokens[:, -1:] = 1 + asked
    return tokens, np.take_along_axis(table, asked, 1)[:, 0]


def fuzzy(o: FuzzyOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Keys and values are one to three tokens long; asked is the first token of the value."""
    tokens, labels = np.zeros((count, o.length), np.int64), np.zeros(count, np.int64)
    for row in range(count):
        table: dict[tuple[int, ...], list[int]] = {}
        while len(table) < o.keys // 2:
            key = tuple((1 + rng.integers(0, o.keys, rng.integers(1, 4))).tolist())
            table.setdefault(key, rng.integers(0, o.values, rng.integers(1, 4)).tolist())
        keys, line, seen = list(table), list[int](), []
        while len(line) + 9 <= o.length:  # a pair and a question still fit
            key = keys[rng.integers(0, len(keys))]
            line += [*key, *(1 + o.keys + value for value in table[key])]
            seen.append(key)
        asked = seen[rng.integers(0, len(seen))]
        line += asked
        tokens[row, o.length - len(line) :] = line
        labels[row] = table[asked][0]
    return tokens, labels


def memorization(
    o: MemorizationOptions, rng: np.random.Generator, count: int
) -> tuple[Array, Array]:
    """Ids: keys alone; the table of values depends on the seed, and on nothing else."""
    tokens = rng.integers(0, o.keys, (count, o.length))
    return tokens, generator(o.seed, 1).integers(0, o.values, o.keys)[tokens[:, -1]]


def induction(o: RecallOptions, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Ids: 0 the mark, then the symbols; the mark comes once before, and last."""
    tokens = rng.integers(1, 1 + o.values, (count, o.length))
    place = rng.integers(0, o.length - 2, (count, 1))
    label = np.take_along_axis(tokens, place + 1, 1)[:, 0] - 1
    np.put_along_axis(tokens, place, 0, 1)
    tokens[:, -1] = 0
    return tokens, label


@dataclass(frozen=True)
class InductionOptions(RecallOptions):
    """Options of induction.

    Args:
        length: of an example, in tokens.
        keys: not used: there is one mark.
        values: different symbols, and so classes.
    """

    length: int = 256
    values: int = 16


def _values(o: RecallOptions) -> int:
    return o.values


KINDS = {
    "mqar": Kind("the value of the key that is asked last, of many pairs", MQAROptions, mqar,
                 lambda o: 1 + o.keys + o.values, _values),
    "induction": Kind("what followed the mark when it came before", InductionOptions, induction,
                      lambda o: 1 + o.values, _values),
    "mad-recall": Kind("the value of a key of before", RecallOptions, recall,
                       lambda o: 1 + o.keys + o.values, _values),
    "mad-noisy-recall": Kind("the same, with noise between the pairs", NoisyOptions, recall,
                             lambda o: 1 + o.keys + o.values + o.noises, _values),
    "mad-fuzzy-recall": Kind("the same, keys and values of several tokens", FuzzyOptions, fuzzy,
                             lambda o: 1 + o.keys + o.values, _values),
    "mad-memorization": Kind("the value of the last key, by a table that never changes",
                             MemorizationOptions, memorization, lambda o: o.keys, _values),
}  # fmt: skip
