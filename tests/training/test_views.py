"""Tests that average over an example and augmented copies of it."""

from dataclasses import replace

import pytest
import torch

from longlens import tasks
from longlens.runs import train_run
from longlens.runs.build import make_model
from longlens.runs.jobs import make_job
from longlens.runs.run import run_folder
from longlens.training import rehearse
from longlens.training.augment import ShuffleArguments
from longlens.training.distributed import Ranks
from longlens.training.engine import Engine
from longlens.training.evaluate import evaluate
from longlens.training.randomness import key
from longlens.weights import load_tensors


def weights(options):
    return load_tensors(run_folder(options) / "model.safetensors")


def engine_of(options):
    task = tasks.load("listops", options.root, **options.task_options)
    ranks = Ranks(torch.device("cpu"))
    model = make_model(options, task.spec, "supervised", ranks.device)
    return Engine(make_job(options, task, model, ranks), options, ranks)


def test_views_average_the_probabilities_of_shuffled_copies(run_options):
    plain = run_options(protocol="augment", length=None, name="plain")
    options = replace(plain, views=3, name="views")
    record = train_run(options)
    for split in ("validation", "test"):
        metrics = record.metrics[split]
        by_views = metrics["accuracy_by_views"]
        assert list(by_views) == ["1", "2", "3"] and by_views["3"]["count"] == 12
        assert by_views["3"]["accuracy"] == metrics["accuracy"]
        # one view is what selected the step, and what a run without views says
        assert by_views["1"]["accuracy"] == train_run(plain).metrics[split]["accuracy"]
    assert weights(options).keys() == weights(plain).keys()
    assert all(torch.equal(t, weights(plain)[name]) for name, t in weights(options).items())
    assert "accuracy_by_views" not in train_run(plain).metrics["test"]


def test_views_are_the_example_and_shuffled_copies_of_it(run_options):
    engine = engine_of(run_options(protocol="augment", length=None, views=3))
    job = engine.job
    table = torch.randn(16, 10, generator=torch.Generator().manual_seed(0))
    engine.forward = lambda inputs, mask: table[inputs[:, 1:9]].sum(1)  # reads the order
    right, loss = 0, 0.0
    for number, batch in enumerate(job.test.epoch(0)):
        generator = torch.Generator().manual_seed(key("evaluate", number, 0))
        views = [batch.inputs]
        views += [ShuffleArguments()(batch.inputs, None, generator) for _ in range(2)]
        shares = torch.stack([engine.forward(v, None).softmax(-1) for v in views]).mean(0)
        right += int((shares.argmax(-1) == batch.targets).sum())
        loss -= float(shares.gather(1, batch.targets[:, None]).log().sum())
    found = evaluate(engine, job.test.epoch(0), 6, views=3)
    assert found["accuracy"] == right / 12 and found["loss"] == pytest.approx(loss / 12)
    assert found["loss"] != pytest.approx(evaluate(engine, job.test.epoch(0), 6)["loss"])


def test_a_budget_counts_the_views_of_the_last_evaluation(run_options):
    timings = []
    for views in (1, 16):
        engine = engine_of(run_options(protocol="augment", length=None, views=views))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rehearse, "_time_evaluation", lambda engine, split, rows: 1.0)
            patch.setattr(rehearse, "batch_of_each_length", lambda batches: {})
            timings.append(rehearse.time_steps(engine, None, 6).final)
    assert timings == [1.0, 32.0]  # test alone; validation and test in 16 views each


def test_outputs_that_the_next_call_writes_over_are_kept(run_options):
    """As those of a CUDA graph are."""
    engine = engine_of(run_options(protocol="augment", length=None, views=3))
    table = torch.randn(16, 10, generator=torch.Generator().manual_seed(0))
    forward, buffers = (lambda inputs, mask: table[inputs[:, 1:9]].sum(1)), {}

    def into_a_buffer(inputs, mask):
        return buffers.setdefault(len(inputs), torch.empty(len(inputs), 10)).copy_(
            forward(inputs, mask)
        )

    engine.forward = forward
    right = evaluate(engine, engine.job.test.epoch(0), 6, views=3)
    engine.forward = into_a_buffer
    assert evaluate(engine, engine.job.test.epoch(0), 6, views=3) == right
