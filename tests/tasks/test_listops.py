"""ListOps: the generator against an independent evaluator and against its definition."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from longlens.tasks import DataError, listops, load
from longlens.tasks.decode import _reduce, listops_value
from longlens.tasks.listops import CLOSE, DIGIT, OPERATOR, ListOpsOptions, make_block

SMALL = ListOpsOptions(min_length=8, max_length=60, max_depth=5, max_args=5)


def sequences(block):
    return np.split(block["flat"], np.cumsum(block["lengths"])[:-1])


def parse(tokens):
    """Nested lists: a digit, or [operator, argument …]."""
    stack = [[]]
    for token in tokens.tolist():
        if token < OPERATOR:
            stack[-1].append(token - DIGIT)
        elif token < CLOSE:
            stack.append([token - OPERATOR])
        else:
            done = stack.pop()
            stack[-1].append(done)
    assert len(stack) == 1 and len(stack[0]) == 1
    return stack[0][0]


def possible(tree, depth, limit):
    """All values that the tree may have when operators at ``limit`` or deeper are unknown."""
    if isinstance(tree, int):
        return {tree}
    if depth >= limit:
        return set(range(10))
    choices = [possible(part, depth + 1, limit) for part in tree[1:]]
    if np.prod([len(c) for c in choices], dtype=float) > 2e4:
        return None
    return {_reduce(tree[0], list(values)) for values in itertools.product(*choices)}


@pytest.mark.parametrize("options", [SMALL, ListOpsOptions()])
def test_labels_are_what_a_stack_machine_computes(options):
    block = make_block(options, "train", 0, 60)
    for tokens, target, operator, depth in zip(
        sequences(block), block["targets"], block["operator"], block["depth"], strict=True
    ):
        value, lines = listops_value(tokens)
        assert value == target
        assert tokens[0] == OPERATOR + operator
        assert max((len(line) - len(line.lstrip())) // 2 for line in lines) + 1 == depth
        assert options.min_length < len(tokens) < options.max_length
        assert len(lines) + (tokens == CLOSE).sum() == len(tokens)


def test_trees_obey_the_published_constants():
    options = ListOpsOptions()
    arguments, operators, nodes = [], 0, 0

    def walk(tree, depth):
        nonlocal operators, nodes
        if depth > 1 and depth < options.max_depth:
            nodes += 1
            operators += not isinstance(tree, int)
        if isinstance(tree, int):
            return
        assert depth < options.max_depth
        arguments.append(len(tree) - 1)
        for part in tree[1:]:
            walk(part, depth + 1)

    for tokens in sequences(make_block(options, "train", 1, 150)):
        walk(parse(tokens), 1)
    assert min(arguments) == 2 and max(arguments) == 10
    # kept trees are long ones, so a node is an operator a little more often than 1/4
    assert 0.24 < operators / nodes < 0.31


def test_class_balance_is_the_known_one():
    targets = make_block(ListOpsOptions(), "train", 2, 2000)["targets"]
    share = np.bincount(targets, minlength=10) / len(targets)
    assert 0.14 < share[0] < 0.20 and 0.14 < share[9] < 0.20
    assert (share[1:9] > 0.05).all() and (share[1:9] < 0.12).all()


def test_decided_is_the_depth_to_which_a_tree_must_be_read():
    tiny = ListOpsOptions(min_length=8, max_length=24, max_depth=4, max_args=3)
    block = make_block(tiny, "train", 0, 80)
    checked = 0
    for tokens, decided in zip(sequences(block), block["decided"], strict=True):
        tree = parse(tokens)
        known = [possible(tree, 1, limit) for limit in range(1, 6)]
        if all(values is not None for values in known):
            first = next(i + 1 for i, values in enumerate(known) if len(values) == 1)
            assert first == decided
            checked += 1
    assert checked > 40


def test_a_block_depends_on_its_key_alone():
    a = make_block(SMALL, "train", 3, 20)
    for key, value in make_block(SMALL, "train", 3, 20).items():
        assert np.array_equal(a[key], value)
    assert not np.array_equal(a["targets"], make_block(SMALL, "train", 4, 20)["targets"])
    assert not np.array_equal(a["targets"], make_block(SMALL, "test", 3, 20)["targets"])


def test_no_example_occurs_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(listops, "BLOCK", 40)
    sizes = {"train": 100, "validation": 40, "test": 40}  # of about 400 trees that exist
    task = load("listops", tmp_path, min_length=3, max_length=6, max_depth=2, max_args=3, **sizes)
    seen = [task[s].sequence(i).tobytes() for s in sizes for i in range(len(task[s]))]
    assert len(set(seen)) == len(seen) == 180
    monkeypatch.setattr(listops, "_GIVE_UP", 20)
    with pytest.raises(DataError, match="no further example"):
        load("listops", tmp_path, min_length=3, max_length=5, max_depth=2, max_args=2, train=450)


def test_workers_do_not_change_the_data(tmp_path):
    sizes = {"train": 4500, "validation": 10, "test": 10, "min_length": 10, "max_length": 40}
    one = load("listops", tmp_path / "one", workers=1, **sizes)
    two = load("listops", tmp_path / "two", workers=2, **sizes)
    assert one.identity == two.identity


@pytest.mark.parametrize(
    ("option", "value"), [("seed", -1), ("train", 0), ("max_depth", 1), ("max_length", 501)]
)
def test_wrong_options_are_named(tmp_path, option, value):
    with pytest.raises(DataError, match=option):
        load("listops", tmp_path, **{option: value})


@pytest.mark.slow
def test_speed():
    started = time.process_time()
    make_block(ListOpsOptions(), "train", 0, 4000)
    assert 4000 / (time.process_time() - started) > 1500
