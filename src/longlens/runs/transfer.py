"""A trained model on other test data than its own: longer examples, other options of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from longlens import tasks
from longlens.runs.jobs import judged
from longlens.tasks.batches import Batches
from longlens.training.distributed import Ranks
from longlens.training.engine import Engine
from longlens.training.evaluate import evaluate
from longlens.training.options import TrainOptions


class Elsewhere(NamedTuple):
    """Test data under one name of ``transfer_options``, and the largest batch that they come in."""

    batches: Batches
    rows: int


def load_transfer(options: TrainOptions, ranks: Ranks, own: Batches | None) -> dict[str, Elsewhere]:
    """The test data of every name in ``options.transfer_options``, made or loaded now.

    They are loaded before training, so that data that are not there cost no run. Batches hold no
    more positions than those of the run's own test split.
    """
    if own is None:
        return {}
    rows = options.evaluate_batch or options.batch_size
    found = {}
    for name, given in options.transfer_options.items():
        task = tasks.load(
            options.task, options.root, **{**options.task_options, **given.get("task_options", {})}
        )
        common: dict[str, Any] = dict(
            length=given.get("length", options.length), limit=given.get("limit"), shuffle=False,
            buckets=options.buckets, multiple=options.multiple, rank=ranks.rank,
            world_size=ranks.world_size, device=ranks.device,
        )  # fmt: skip
        split = judged(options, task["test"])
        probe = Batches(split, ranks.world_size, **common)
        share = int(own.lengths.max()) / int(probe.lengths.max())
        fewer = max(1, int(rows * min(1.0, share)) // ranks.world_size) * ranks.world_size
        found[name] = Elsewhere(Batches(split, fewer, **common), fewer // ranks.world_size)
    return found


def transfer_tests(engine: Engine, loaded: Mapping[str, Elsewhere]) -> dict[str, dict[str, Any]]:
    """Loss and metric of the trained model on each of them, and how many examples these are."""
    found = {}
    for name, (batches, rows) in loaded.items():
        metrics = evaluate(engine, batches.epoch(0), rows, views=engine.options.views)
        found[name] = {**metrics, "examples": len(batches.members)}
    return found
