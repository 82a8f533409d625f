"""Synthetic tasks: every label is found again, by reading the example as its drawing says."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from longlens.tasks import DataError, load
from longlens.tasks.order import generator
from longlens.tasks.synthetic import SYNTHETIC
from longlens.tasks.synthetic.copying import CompressionOptions, CopyOptions, FlipFlopOptions
from longlens.tasks.synthetic.lag import LagOptions
from longlens.tasks.synthetic.recall import (
    FuzzyOptions,
    InductionOptions,
    MemorizationOptions,
    MQAROptions,
    NoisyOptions,
    RecallOptions,
)
from longlens.tasks.synthetic.text import NeedleOptions, VariablesOptions


def pairs(tokens, o):
    """What follows each key, of tokens that are keys, then values, then others."""
    found = {}
    for key, value in pairwise(tokens):
        if 1 <= key <= o.keys < value <= o.keys + o.values:
            found.setdefault(key, set()).add(value - 1 - o.keys)
    return found


def mqar(tokens, o):
    assert sorted(tokens[2 * o.pairs :][tokens[2 * o.pairs :] > 0]) == sorted(
        tokens[: 2 * o.pairs : 2]
    )
    (value,) = pairs(tokens[: 2 * o.pairs], o)[tokens[-1]]
    return value


def recall(tokens, o):
    if isinstance(o, NoisyOptions):
        share = (tokens > o.keys + o.values).mean()
        assert abs(share - o.noise / 100) < 0.05
        tokens = tokens[tokens <= o.keys + o.values]
    (value,) = pairs(tokens, o)[tokens[-1]]
    return value


def fuzzy(tokens, o):
    words = [f"k{t} " if t <= o.keys else f"v{t - 1 - o.keys} " for t in tokens[tokens > 0]]
    runs = re.findall(r"((?:k\d+ )+)((?:v\d+ )+)", "".join(words))
    last = "".join(f"k{t} " for t in tokens[np.flatnonzero(tokens > o.keys)[-1] + 1 :])
    values = {value for key, value in runs if key == last}
    assert len(values) == 1
    return int(re.match(r"v(\d+)", values.pop())[1])


def selective(tokens, o):
    symbols = tokens[:-1][tokens[:-1] > 0]
    assert len(symbols) == o.tokens
    return symbols[tokens[-1] - 1 - o.symbols] - 1


def flip_flop(tokens, o):
    memory = None
    steps = tokens[len(tokens) % 2 == 0 :]
    for kind, bit in zip(steps[:-1:2], steps[1::2], strict=True):
        memory = bit if kind == 3 else memory
        assert kind != 4 or bit == memory  # what is read is what was written
    assert steps[-1] == 4
    return memory - 1


def needle(tokens, o):
    text = bytes(tokens.tolist()).decode()
    name = re.search(r" key (\w{4})\?$", text)[1]
    (digit,) = re.findall(rf" key {name} is (\d)\. ", text)
    assert text.count(" is ") == o.needles
    return int(digit)


def variables(tokens, o):
    text = bytes(tokens.tolist()).decode()
    stands_for = dict(re.findall(r" (\w)=(\w); ", text))
    assert len(stands_for) == o.chains * (o.hops + 1)
    value, hops = text[-2], 0
    while not value.isdigit():
        value, hops = stands_for[value], hops + 1
    assert hops == o.hops + 1
    return int(value)


def lag(tokens, o):
    begin = len(tokens) - 1 - o.distance
    chosen = tokens[begin : begin + o.tokens].tolist()
    return sum(chosen) % 2 if o.rule == "parity" else int(np.median(chosen))


CASES = [
    ("mqar", MQAROptions(length=40, pairs=6, keys=9, values=4), mqar),
    ("mqar", MQAROptions(length=6, pairs=2, keys=2, values=2), mqar),
    ("mad-recall", RecallOptions(length=20, keys=5, values=3), recall),
    ("mad-recall", RecallOptions(length=21), recall),
    ("mad-noisy-recall", NoisyOptions(length=61), recall),
    ("mad-noisy-recall", NoisyOptions(length=60, noise=40), recall),
    ("mad-fuzzy-recall", FuzzyOptions(length=50), fuzzy),
    ("mad-fuzzy-recall", FuzzyOptions(length=9, keys=4), fuzzy),
    ("mad-selective-copying", CopyOptions(length=30, tokens=7), selective),
    ("mad-compression", CompressionOptions(length=9), lambda t, o: t[t[-1] - o.symbols]),
    ("flip-flop", FlipFlopOptions(length=31), flip_flop),
    ("flip-flop", FlipFlopOptions(length=30, ignore=20), flip_flop),
    ("induction", InductionOptions(length=12),
     lambda t, o: t[np.flatnonzero(t == 0)[0] + 1] - 1 if (t == 0).sum() == 2 else None),
    ("needle", NeedleOptions(length=120), needle),
    ("variables", VariablesOptions(length=100), variables),
    ("variables", VariablesOptions(length=40, chains=2, hops=0), variables),
    ("lag", LagOptions(length=30, distance=12, tokens=3), lag),
    ("lag", LagOptions(length=30, distance=29, tokens=4, rule="parity"), lag),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "answer"), CASES)
def test_labels_are_what_the_example_says(name, options, answer):
    kind = SYNTHETIC[name]
    tokens, labels = kind.draw(options, generator(3), 300)
    assert tokens.shape == (300, options.length)
    assert [answer(row, options) for row in tokens] == labels.tolist()
    spec = kind.spec(options)
    assert tokens.min() >= 0 and tokens.max() < spec.vocab_size
    counts = np.bincount(labels, minlength=spec.num_classes)
    assert (counts > 0).all() and counts.max() < 2.2 * 300 / spec.num_classes


def test_memorization_has_one_table_for_all_examples_of_a_seed():
    kind, o = SYNTHETIC["mad-memorization"], MemorizationOptions(length=5, keys=9)
    tables = []
    for key in (1, 2):
        tokens, labels = kind.draw(o, generator(key), 400)
        tables.append(dict(zip(tokens[:, -1].tolist(), labels.tolist(), strict=True)))
    assert tables[0] == tables[1] and len(tables[0]) == 9


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_task_end_to_end(tmp_path, name):
    task = load(name, tmp_path, train=12, validation=4, test=4)
    assert (task.spec.kind, task.spec.readout) == ("classification", "last")
    assert len(task["train"].sequence(0)) == task.spec.max_length
    assert not np.array_equal(task["train"].sequence(0), task["test"].sequence(0))


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("mqar", dict(pairs=40), "keys must be 40 or more, got 32"),
        ("mqar", dict(pairs=16, length=40), "length must be 48 or more"),
        ("lag", dict(distance=256), "length must be 257 or more, got 256"),
        ("lag", dict(tokens=2), "tokens must be odd"),
        ("lag", dict(rule="sum"), "rule"),
        ("flip-flop", dict(ignore=101), "ignore must be in 0 … 100"),
        ("variables", dict(hops=20), "chains × "),
        ("needle", dict(length=20), "length must be 78 or more"),
    ],
)
def test_wrong_options_are_named(tmp_path, name, options, problem):
    with pytest.raises(DataError, match=problem):
        load(name, tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("mqar", dict(keys=600, values=600, pairs=4)), ("induction", dict(values=400)),
     ("mad-compression", dict(length=300, train=2003))],
)  # fmt: skip
def test_many_classes_and_tokens_fit(tmp_path, name, options):
    """Nothing wraps around, and all blocks of a split are of one kind."""
    sizes = dict(train=200, validation=50, test=50) | options
    task = load(name, tmp_path, **sizes)
    kind = SYNTHETIC[name]
    made = kind.options(**sizes)
    drawn, labels = kind.draw(made, generator(0), 500)
    assert drawn.max() > 255 or labels.max() > 255
    assert task["train"].targets.max() > 255 or name == "mad-compression"
    for split in ("train", "test"):
        assert task[split].targets.max() < kind.classes(made)
