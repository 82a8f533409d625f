"""Atomic tasks: targets recomputed position by position from the inputs."""

from __future__ import annotations

import numpy as np
import pytest

from longlens.tasks import DataError, load
from longlens.tasks.atomic import NAMES, SHIFTS, AtomicOptions, SelectOptions, examples
from longlens.tasks.order import generator


def expected(name, x, length):
    """The target of one example (L, C), written as the definition reads."""
    values = x[:, 0].astype(float)
    if name == "cumsum":
        return [[sum(values[: i + 1]) / np.sqrt(i + 1)] for i in range(length)]
    if name == "cummax":
        return [[max(values[: i + 1])] for i in range(length)]
    if name == "shift":
        step = length // SHIFTS
        return [
            [values[i - k * step] if i >= k * step else 0 for k in range(SHIFTS)]
            for i in range(length)
        ]
    if name == "select":
        return [[value] for value, mark in x if mark == 1]
    given = [value for value, blank in x if blank == 0]
    return [[value] for value in (sorted(given) if name == "sort" else given[::-1])]


@pytest.mark.parametrize("name", NAMES)
def test_targets_follow_the_definition(name):
    options = SelectOptions(length=32, marked=5) if name == "select" else AtomicOptions(length=32)
    inputs, targets = examples(name, options, generator(1), 7)
    for x, y in zip(inputs, targets, strict=True):
        np.testing.assert_allclose(y, expected(name, x, 32), rtol=1e-5, atol=1e-6)
    assert inputs.dtype == targets.dtype == np.float32
    assert 0.8 < inputs[..., 0][inputs[..., 0] != 0].std() < 1.2


@pytest.mark.parametrize("name", NAMES)
def test_the_task_end_to_end(tmp_path, name):
    task = load(name, tmp_path, length=64, train=5, validation=2, test=2)
    example = task["train"][0]
    assert example.inputs[0].shape == (64, task.spec.channels)
    assert example.target.shape == (task.spec.target_length, task.spec.target_dim)
    assert not np.array_equal(task["train"][0].inputs[0], task["test"][0].inputs[0])


def test_wrong_options_are_named(tmp_path):
    for options in ({"length": 15}, {"train": 0}, {"seed": -1}):
        with pytest.raises(DataError, match=next(iter(options))):
            load("cumsum", tmp_path, **options)
    with pytest.raises(DataError, match="marked"):
        load("select", tmp_path, length=16, marked=9)
    with pytest.raises(DataError, match="name must be"):
        examples("cumprod", AtomicOptions(), generator(0), 1)
