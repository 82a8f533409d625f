"""Collapsed copies: the same values, every step from flat lists to whole trees, drawn by a seed."""

from itertools import islice

import numpy as np
import pytest
import torch

from longlens import tasks
from longlens.runs import train_run
from longlens.runs.build import build_on_meta, make_model
from longlens.runs.jobs import make_job
from longlens.runs.run import run_folder
from longlens.tasks.collapse import collapse, collapsed_copies, evaluate, levels
from longlens.tasks.decode import listops_value
from longlens.tasks.errors import DataError
from longlens.tasks.listops import CLOSE, OPERATOR
from longlens.training import rehearse
from longlens.training.budget import Timing
from longlens.training.distributed import Ranks
from longlens.training.faults import TrainingError
from longlens.training.job import State
from longlens.training.log import read_curves
from longlens.training.options import TrainOptions

SIZES = dict(train=300, validation=20, test=1, min_length=20, max_length=300)
COPIES = 3


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tasks.load("listops", tmp_path_factory.mktemp("data"), **SIZES)


@pytest.fixture(scope="module")
def split(task):
    return task["train"]


def operators(tokens):
    return int(((tokens >= OPERATOR) & (tokens < CLOSE)).sum())


def test_operators_are_found_with_their_values(split):
    for example in split:
        tokens = example.inputs[0]
        starts, ends, values = evaluate(tokens)
        assert len(starts) == operators(tokens)
        for start, end, value in zip(starts, ends, values, strict=True):
            assert listops_value(tokens[start : end + 1])[0] == value


def test_any_operators_can_be_replaced_also_inside_each_other(split):
    rng = np.random.default_rng(0)
    for example in split:
        tokens = example.inputs[0]
        found = evaluate(tokens)
        chosen = (rng.random(len(found[0])) < 0.5) & (found[0] > 0)
        kept, short = collapse(tokens, *(array[chosen] for array in found))
        assert listops_value(short)[0] == example.target
        assert len(short) == kept.sum()
        assert operators(short) <= operators(tokens) - chosen.sum()


def test_copies_have_their_labels_and_range_from_lists_to_whole_trees(split):
    copies = collapsed_copies(split, COPIES)
    assert len(copies) == COPIES * len(split)
    left = []
    for number, copy in enumerate(copies):
        whole = split[number % len(split)]
        assert listops_value(copy.inputs[0])[0] == copy.target == whole.target
        assert copy.extras == whole.extras
        assert copy.inputs[0][0] == whole.inputs[0][0]  # the root stays
        left.append((operators(copy.inputs[0]) - 1) / max(1, operators(whole.inputs[0]) - 1))
    shares = np.histogram(left, [0, 1e-9, 0.5, 1 - 1e-9, 1])[0] / len(left)
    assert (shares > 0.05).all()  # flat, most gone, most there, whole
    assert copies.spec.max_length == max(len(copy.inputs[0]) for copy in copies)


def test_every_operator_but_the_root_can_go(split):
    for example in collapsed_copies(split, depth=1):
        assert operators(example.inputs[0]) == 1
        assert listops_value(example.inputs[0])[0] == example.target


@pytest.mark.parametrize("depth", [2, 3, 9])
def test_operators_down_to_a_depth_stay(split, depth):
    for short, whole in zip(collapsed_copies(split, depth=depth), split, strict=True):
        tokens = whole.inputs[0]
        level = levels(tokens)
        starts, _, _ = evaluate(tokens)
        assert operators(short.inputs[0]) == (level[starts] <= depth).sum()
        assert levels(short.inputs[0]).max() == min(depth, level.max())
        assert listops_value(short.inputs[0])[0] == short.target == whole.target


def test_copies_depend_on_the_seed_alone(split):
    first, again, other = (collapsed_copies(split, 1, seed).lengths for seed in (4, 4, 5))
    assert (first == again).all() and (first != other).any()
    two = collapsed_copies(split, 2, 4)
    assert (two.lengths[: len(split)] == first).all() and (two.lengths[len(split) :] != first).any()


def test_only_expressions_are_collapsed(tmp_path, split):
    other = tasks.load("reverse", tmp_path, length=16, train=4, validation=1, test=1)["train"]
    with pytest.raises(DataError, match="listops"):
        collapsed_copies(other, 1)
    with pytest.raises(DataError, match="copies must be 1 or more, got 0"):
        collapsed_copies(split, 0)


def test_a_run_trains_on_lists_then_on_copies_and_is_judged_on_whole_trees(task):
    options = TrainOptions(
        task_options=SIZES, collapse=COPIES, collapse_steps=9, dim=8, depth=1, batch_size=50
    )
    ranks = Ranks(torch.device("cpu"))
    model = make_model(options, task.spec, "supervised", ranks.device)
    job = make_job(options, task, model, ranks)
    assert job.epoch_steps == (1 + COPIES) * 300 // 50
    assert (job.validation.lengths == task["validation"].lengths).all()
    batches = list(islice(job.batches(0), 40))
    most = [max(operators(row.numpy()) for row in batch.inputs) for batch in batches]
    assert most[:9] == [1] * 9 and max(most[9:]) > 10
    for position in (0, 3, 7, 9, 20):  # a run that was stopped goes on with the same batches
        assert (next(job.batches(position)).inputs == batches[position].inputs).all()
    whole = make_job(options, task, model, ranks, kind="masked")
    assert whole.epoch_steps == 300 // 50 and not whole.first


def test_a_run_may_begin_with_lists_and_trees_of_two_levels_and_go_on_with_whole_ones(task):
    options = TrainOptions(
        task_options=SIZES, collapse_depth=2, collapse_steps=6, dim=8, depth=1, batch_size=50
    )
    ranks = Ranks(torch.device("cpu"))
    job = make_job(options, task, make_model(options, task.spec, "supervised", ranks.device), ranks)
    assert job.epoch_steps == 300 // 50  # no copies
    batches = list(islice(job.batches(0), 12))
    deepest = [levels(batch.inputs.numpy().ravel()).max() for batch in batches]
    assert deepest[:6] == [1] * 3 + [2] * 3 and min(deepest[6:]) > 2
    for position in range(9):  # a run that was stopped goes on with the same batches
        assert (next(job.batches(position)).inputs == batches[position].inputs).all()


@pytest.mark.parametrize("protocol", ["values", "values+augment"])
def test_values_are_targets_at_closing_brackets_and_no_inputs(task, protocol):
    options = TrainOptions(
        task_options=SIZES, protocol=protocol, collapse=1, dim=8, depth=1, batch_size=50
    )
    ranks = Ranks(torch.device("cpu"))
    model = make_model(options, task.spec, "supervised", ranks.device)
    job = make_job(options, task, model, ranks)
    for position in (0, options.collapse_steps):  # lists, then copies and whole trees
        batch = next(job.batches(position))
        examples = job.prepare(batch, torch.Generator().manual_seed(0), training=True)
        assert int(examples.inputs.max()) == CLOSE
        assert (examples.hidden == (examples.inputs == CLOSE)).all()
        for row, targets, label in zip(
            examples.inputs.numpy(), examples.original.numpy(), examples.targets, strict=True
        ):
            tokens = row[row > 0].astype(np.uint8)
            _, ends, values = evaluate(tokens)
            assert (targets[ends] - CLOSE == values).all() and values[0] == label
    batch = next(job.validation.epoch(0))
    assert job.prepare(batch, torch.Generator(), training=False).hidden is None
    assert int(batch.inputs.max()) == CLOSE


def test_what_cannot_be_collapsed_is_refused():
    with pytest.raises(ValueError, match="collapse=1 is for listops, not for text"):
        build_on_meta(TrainOptions(task="text", collapse=1))
    with pytest.raises(ValueError, match="text has no values of subtrees"):
        build_on_meta(TrainOptions(task="text", protocol="values"))
    with pytest.raises(ValueError, match="each a second loss"):
        TrainOptions(protocol="denoise+values")
    for given in ({"collapse": 1}, {"collapse_depth": 2}):
        with pytest.raises(ValueError, match=r"limit .* task_options.train"):
            build_on_meta(TrainOptions(**given, limit=10))
        with pytest.raises(ValueError, match=r"steps must be more than collapse_steps=2000"):
            build_on_meta(TrainOptions(**given, steps=2000))
    with pytest.raises(ValueError, match="collapse_depth=2 is for listops, not for text"):
        build_on_meta(TrainOptions(task="text", collapse_depth=2))
    with pytest.raises(ValueError, match="collapse_depth"):
        TrainOptions(collapse_depth=0)
    with pytest.raises(ValueError, match="at least collapse_depth=3, one for each level, got 2"):
        build_on_meta(TrainOptions(collapse_depth=3, collapse_steps=2))


TINY = dict(train=64, validation=16, test=16, min_length=8, max_length=32)


@pytest.fixture
def tiny(tmp_path):
    def options(**changes):
        values = dict(task_options=TINY, collapse=1, collapse_steps=3, dim=8, depth=1,
                      batch_size=32, log_every=1, device="cpu", progress=False,
                      runs=str(tmp_path / "runs"), root=str(tmp_path))  # fmt: skip
        return TrainOptions(**(values | changes))

    return options


def job_of(options):
    task, ranks = tasks.load("listops", options.root, **TINY), Ranks(torch.device("cpu"))
    model = make_model(options, task.spec, "supervised", ranks.device)
    return make_job(options, task, model, ranks)


def test_a_batch_larger_than_the_lists_is_refused_instead_of_looked_for_without_end(tiny):
    with pytest.raises(ValueError, match=r"batch_size must be at most the 64 examples .* got 100"):
        job_of(tiny(batch_size=100))
    assert job_of(tiny(batch_size=100, collapse_steps=0)).epoch_steps == 1  # 128 with copies


def test_epochs_are_passes_over_the_training_split_after_the_lists(tiny):
    options = tiny(epochs=1.0)
    record = train_run(options)
    assert record.steps == 3 + 128 // 32  # lists, then every expression and its copy
    lines = [line for line in read_curves(run_folder(options)) if line["split"] == "train"]
    assert [line["epoch"] for line in lines] == [0, 0, 0, 0.25, 0.5, 0.75, 1]


def test_a_loss_that_rises_where_the_trees_begin_is_no_collapse(tiny, monkeypatch):
    watched = []
    monkeypatch.setattr(State, "watch", lambda state, loss: watched.append(state.step))
    train_run(tiny(steps=6, log_every=1))
    assert watched == [4, 5, 6]  # three steps on lists come before


def test_a_budget_for_lists_alone_is_refused(tiny, monkeypatch):
    slow = Timing(step=10.0, evaluation=1.0, final=1.0)
    monkeypatch.setattr(rehearse, "time_steps", lambda *_: slow)
    with pytest.raises(TrainingError, match=r"budget=30s has room for 2 steps.* collapse_steps=3"):
        train_run(tiny(budget="30s"))
