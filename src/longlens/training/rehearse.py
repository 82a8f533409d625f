"""Before the first step: how many rows are computed at once, and how many steps there will be.

What has to be measured for that, memory and time, takes real steps on real batches and undoes them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch

from longlens.tasks.batches import Batch, Batches
from longlens.training import budget
from longlens.training.budget import Timing
from longlens.training.engine import Engine
from longlens.training.evaluate import evaluate
from longlens.training.examples import Examples
from longlens.training.faults import TrainingError, largest_that_fits, out_of_memory
from longlens.training.job import Job
from longlens.training.options import TrainOptions
from longlens.training.scratchpad import USUAL_PASSES

MakeExamples = Callable[[Batch], Examples]


def choose_micro_batch(engine: Engine, examples: MakeExamples) -> int:
    """Rows that a rank computes at once: as the options say, or the most that fit."""
    options, job = engine.options, engine.job
    share = options.batch_size // engine.ranks.world_size * job.prepare.rows_per_example
    if options.micro_batch == "auto":
        return rows_that_fit(engine, examples, share)
    return min(int(options.micro_batch or share), share)


def choose_steps(
    engine: Engine, examples: MakeExamples, epoch: int, evaluation_rows: int, started: float
) -> tuple[int, dict[str, Any] | None]:
    """The number of steps, and for a budget what was measured to find it.

    Epochs are passes over the training split, after the job's first steps.

    Args:
        engine: with its micro-batch set.
        examples: makes a step's examples of a batch.
        epoch: steps of an epoch.
        evaluation_rows: of an evaluation batch.
        started: ``time.perf_counter()`` when the data were there.

    Raises:
        TrainingError: a budget has no room for more than the job's first steps.
    """
    options, first = engine.options, engine.job.first_steps
    if options.steps is not None:
        return options.steps, None
    if options.budget is None:
        return first + max(1, math.ceil((options.epochs or 10.0) * epoch)), None
    timing = time_steps(engine, examples, evaluation_rows)
    spent = time.perf_counter() - started
    steps = budget.steps_that_fit(
        budget.seconds(options.budget),
        spent,
        timing,
        options.evaluate_every,
        epoch,
        evaluation_work(engine.job, options),
    )
    steps = int(engine.ranks.same(steps))
    if first and steps <= first:
        raise TrainingError(
            f"budget={options.budget} has room for {steps} steps, not for more than the "
            f"collapse_steps={first} on collapsed expressions; give a longer --budget or fewer "
            "--collapse_steps"
        )
    return steps, {"spent": spent, "timing": asdict(timing)}


def evaluation_work(job: Job, options: TrainOptions) -> float:
    """Steps that are as much work as an evaluation, by the number of examples."""
    passes = USUAL_PASSES if job.prepare.scratchpad else 1
    return budget.FORWARD * passes * len(job.validation.members) / options.batch_size


def rows_that_fit(engine: Engine, examples: MakeExamples, share: int) -> int:
    """The largest of share, share/2, share/4 … rows that can be computed at once, on every rank."""
    batches = batch_of_each_length(engine.job.train)
    longest = batches[max(batches)][0]

    def attempt(rows: int) -> None:
        engine.micro_batch = rows
        engine.device_step(examples(longest))
        _wait(engine)

    with engine.rehearsal():
        try:
            rows = largest_that_fits(share, attempt)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory even with one sequence of {max(batches)} positions at once; use "
                "--dtype bfloat16, or a smaller --length, --dim or --depth"
            ) from error
    return -int(engine.ranks.largest(torch.tensor(-rows, device=engine.device)))


def time_steps(engine: Engine, examples: MakeExamples, evaluation_rows: int) -> Timing:
    """Time a step of every padded length, weighted by how often it occurs, and evaluation."""
    batches = batch_of_each_length(engine.job.train)
    number = sum(count for _, count in batches.values())
    expected = 0.0
    with engine.rehearsal():
        for batch, count in batches.values():
            for _ in range(6 if engine.device.type == "cuda" else 1):  # compile and capture
                engine.update(examples(batch))
            _wait(engine)
            began, done = time.perf_counter(), 0
            while done < 2 or (time.perf_counter() - began < 0.5 and done < 20):
                engine.update(examples(batch))
                done += 1
            _wait(engine)  # once, as in training: the host prepares a step while another runs
            expected += count / number * (time.perf_counter() - began) / done
    passes = [
        _time_evaluation(engine, split, evaluation_rows)
        for split in (engine.job.validation, engine.job.test)
        if split is not None
    ]
    views = engine.options.views
    final = sum(passes[1:]) if views == 1 else views * sum(passes)  # of both splits anew
    return Timing(expected, evaluation=passes[0], final=final if passes[1:] else 0.0)


def batch_of_each_length(batches: Batches) -> dict[int, tuple[Batch, int]]:
    """A batch of each padded length, and how often it occurs among the first of epoch 0."""
    by_length: dict[int, tuple[Batch, int]] = {}
    for batch in islice(batches.epoch(0), 30 * max(1, len(batches.shapes))):
        length = batch.inputs.shape[1 if batch.inputs.is_floating_point() else -1]
        first, count = by_length.get(length, (batch, 0))
        by_length[length] = (first, count + 1)
    return by_length


def _time_evaluation(engine: Engine, batches: Batches, rows: int) -> float:
    """Seconds of a pass over a split, from its first batches, of which the second pass counts."""
    few = list(islice(batches.epoch(0), 3))
    for _ in range(2):
        began = time.perf_counter()
        evaluate(engine, few, rows)
        _wait(engine)
    return (time.perf_counter() - began) / len(few) * len(batches)


def _wait(engine: Engine) -> None:
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
