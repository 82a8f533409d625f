"""`longlens bench train`: the training loop beside a hand-written minimal one, as a ratio."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F

from longlens import tasks
from longlens.cli.measure import Work, side_by_side
from longlens.runs.build import make_model
from longlens.runs.jobs import make_job
from longlens.tasks import Task
from longlens.training.distributed import Ranks
from longlens.training.loop import Trainer
from longlens.training.options import TrainOptions
from longlens.training.provenance import provenance

Steps = Callable[[int], float]
"""Does so many steps; returns the sum of their losses."""


def train(
    mixer: str = "las",
    dim: int = 64,
    depth: int = 2,
    length: int = 512,
    batch_size: int = 16,
    device: str = "cpu",
    steps: int = 5,
    seconds: float = 20.0,
) -> int:
    """Measure what `longlens train` costs beyond the model: its steps against a minimal loop's.

    Both train the same model on the same ListOps batches, in turns of a few steps.

    Args:
        mixer: a key of `longlens layers`.
        dim: width of the model.
        depth: number of blocks.
        length: examples are cut to this many positions.
        batch_size: examples of a step.
        device: cpu or cuda.
        steps: steps of a turn.
        seconds: time to spend.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = tasks.load("listops", folder, train=2000, validation=64, test=64)
        options = TrainOptions(
            mixer=mixer, dim=dim, depth=depth, length=length, batch_size=batch_size, device=device,
            dtype="float32", compile=False, steps=10**6, progress=False, runs=folder,
        )  # fmt: skip
        loops = {
            "minimal loop": _minimal(options, task),
            "longlens train": _trainer(options, task, Path(folder)),
        }
        timed: dict[str, Work] = {name: partial(loop, steps) for name, loop in loops.items()}
        times = side_by_side(timed, torch.device(device), seconds)
    origin = provenance(device)
    print(f"{origin['hardware']}, torch {origin['torch']}, commit {origin['commit']}")
    for name, milliseconds in times.items():
        rate = steps * batch_size * length / milliseconds * 1e3
        print(f"{name:<16}{milliseconds / steps:>9.2f} ms a step{rate:>14,.0f} tokens/s")
    ratio = times["minimal loop"] / times["longlens train"]
    print(f"{'ratio':<16}{ratio:>9.3f} of the minimal loop's speed")
    return 0


def _minimal(options: TrainOptions, task: Task) -> Steps:
    """The loop that one would write by hand."""
    ranks = Ranks(torch.device(options.device))
    model = make_model(options, task.spec, "supervised", ranks.device)
    batches = make_job(options, task, model, ranks).train
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)

    source = (batch for epoch in count() for batch in batches.epoch(epoch))

    def run(steps: int) -> float:
        total = 0.0
        for _ in range(steps):
            batch = next(source)
            loss = F.cross_entropy(model(batch.inputs, batch.mask), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            total += float(loss.detach())
        return total

    return run


def _trainer(options: TrainOptions, task: Task, folder: Path) -> Steps:
    """The same steps by :class:`Trainer`, with what it adds up for the curve."""
    ranks = Ranks(torch.device(options.device))
    model = make_model(options, task.spec, "supervised", ranks.device)
    job = make_job(options, task, model, ranks)
    trainer = Trainer(job, options, ranks, folder / "run", None, {}, time.perf_counter())
    trainer.begin()

    def run(steps: int) -> float:
        for _ in range(steps):
            trainer.step()
        return float(trainer.engine.sums[0])

    return run
