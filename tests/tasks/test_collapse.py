"""Collapsed expressions: the same values, nothing deeper than said; stages that resume anywhere."""

from itertools import islice

import numpy as np
import pytest

from longlens import tasks
from longlens.tasks.batches import Batches
from longlens.tasks.collapse import collapse_split
from longlens.tasks.decode import listops_value
from longlens.tasks.errors import DataError
from longlens.tasks.listops import CLOSE, OPERATOR
from longlens.training.job import Job


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    sizes = dict(train=300, validation=1, test=1, min_length=20, max_length=300)
    return tasks.load("listops", tmp_path_factory.mktemp("data"), **sizes)["train"]


def deepest(tokens):
    opens = (tokens >= OPERATOR) & (tokens < CLOSE)
    return int(np.cumsum(opens.astype(int) - (tokens == CLOSE)).max())


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_values_stay_and_nothing_is_deeper(split, depth):
    collapsed = collapse_split(split, depth)
    for before, after in zip(split, collapsed, strict=True):
        (tokens,), (short,) = before.inputs, after.inputs
        assert listops_value(short)[0] == after.target == before.target
        assert deepest(short) == min(depth, deepest(tokens))
        if deepest(tokens) <= depth:
            assert (short == tokens).all()
    assert collapsed.spec.max_length == max(len(e.inputs[0]) for e in collapsed)


def test_deeper_than_all_changes_nothing(split):
    same = collapse_split(split, 10)
    assert (same.arrays["flat"].whole() == split.arrays["flat"].whole()).all()
    assert (same.lengths == split.lengths).all()


def test_only_expressions_are_collapsed(tmp_path, split):
    other = tasks.load("reverse", tmp_path, length=16, train=4, validation=1, test=1)["train"]
    with pytest.raises(DataError, match="listops"):
        collapse_split(other, 1)
    with pytest.raises(DataError, match="depth must be 1 or more, got 0"):
        collapse_split(split, 0)


def test_stages_come_one_after_the_other_and_begin_anywhere(split):
    train = Batches(split, 64, drop_last=True)
    stages = [Batches(collapse_split(split, depth), 64, drop_last=True) for depth in (1, 2)]
    job = Job(None, None, train, train, stages=stages, stage_steps=7)
    whole = list(islice(job.batches(0), 25))
    depths = [max(deepest(row.numpy()) for row in batch.inputs) for batch in whole]
    assert depths[:7] == [1] * 7 and depths[7:14] == [2] * 7 and min(depths[14:]) > 2
    for position in (0, 3, 7, 11, 14, 20):
        batch = next(job.batches(position))
        assert (batch.inputs == whole[position].inputs).all()
