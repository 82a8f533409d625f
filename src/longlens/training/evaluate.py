"""Evaluation: loss and metric over a whole split, every example exactly once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.tasks.batches import Batch
from longlens.training.engine import Engine
from longlens.training.examples import Examples, fill_rows
from longlens.training.faults import TrainingError, out_of_memory
from longlens.training.objective import SUMS, correct
from longlens.training.randomness import key

MOST_VALUES = 64  # of an extra that results are split by


def evaluate(
    engine: Engine,
    batches: Iterable[Batch],
    rows: int,
    groups: bool = False,
    each: Callable[[int], None] | None = None,
    views: int = 1,
) -> dict[str, Any]:
    """Loss and metric over a split.

    Args:
        engine: holds the model.
        batches: of the split, this rank's share of them.
        rows: of a full batch on this rank; the last batch is filled up to it.
        groups: also give a classification's accuracy by every value of every extra, from 0 to 63.
        each: called before every batch with its number; what it raises ends the evaluation.
        views: of a classification whose training augments: average the probabilities over each
            example and ``views - 1`` augmented copies of it.

    Returns:
        for example ``{"loss": 0.7, "accuracy": 0.8, "accuracy_by_operator": {"0": {…}}}``; with
        more than one view also the accuracy after 1, 2, 4 … of them.
    """
    objective, prepare, ranks = engine.job.objective, engine.job.prepare, engine.ranks
    total = torch.zeros(SUMS, dtype=torch.float64, device=engine.device)
    tables: dict[str, Tensor] = {}
    by_views: dict[int, Tensor] = {}
    training = engine.module.training
    engine.module.eval()
    try:
        with torch.no_grad():
            for number, batch in enumerate(batches):
                if each is not None:
                    each(number)
                generator = torch.Generator(engine.device)
                generator.manual_seed(key("evaluate", number, ranks.rank))
                examples = prepare(batch, generator, training=False)
                outputs = _outputs(engine, examples, rows * prepare.rows_per_example)
                if views > 1:  # a tensor of its own: the next call may write over the outputs
                    outputs = outputs.float().log_softmax(-1)
                for seen in range(2, views + 1):
                    _count_views(by_views, seen - 1, outputs, batch)
                    copy = prepare(batch, generator, training=False, augmented=True)
                    outputs = add_view(outputs, _outputs(engine, copy, rows), seen)
                if views > 1:
                    _count_views(by_views, views, outputs, batch, last=True)
                total += objective.sums(outputs, examples.targets, examples.where)
                if groups and objective.kind == "classification":
                    _add_groups(tables, outputs, batch)
    finally:
        engine.module.train(training)
    metrics: dict[str, Any] = objective.metrics(ranks.add(total).cpu())
    if by_views:
        metrics[f"{objective.metric}_by_views"] = {
            str(seen): {objective.metric: right / n, "count": int(n)}
            for seen, table in by_views.items()
            for right, n in [ranks.add(table).cpu().tolist()]
        }
    for name, table in tables.items():
        right, count = ranks.add(table).cpu().tolist()
        metrics[f"{objective.metric}_by_{name}"] = {
            str(value): {objective.metric: right[value] / n, "count": int(n)}
            for value, n in enumerate(count)
            if n
        }
    return metrics


def _outputs(engine: Engine, examples: Examples, rows: int) -> Tensor:
    """The model's outputs; a batch that is not full is filled up first, so that shapes are few."""
    inputs, mask = fill_rows(examples.inputs, rows), examples.mask
    mask = None if mask is None else fill_rows(mask, rows)
    try:
        outputs: Tensor = engine.forward(inputs, mask)
        return outputs[: len(examples.inputs)]
    except RuntimeError as error:
        if out_of_memory(error):
            raise TrainingError(
                f"out of memory in evaluation with {rows} sequences of {inputs.shape[-1]} "
                "positions; use a smaller --evaluate_batch"
            ) from error
        raise


def add_view(before: Tensor, outputs: Tensor, seen: int) -> Tensor:
    """The log of class probabilities (B, C), averaged over ``seen`` views of which one is new.

    Args:
        before: log-probabilities of the first view, or what this function returned for the last.
        outputs: logits of the new one.
        seen: how many views there are with it.

    >>> one, other = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> add_view(one, other, 2).exp()
    tensor([[0.7000, 0.3000]])
    """
    old = before + math.log((seen - 1) / seen)
    return torch.logaddexp(old, outputs.float().log_softmax(-1) - math.log(seen))


def _count_views(
    tables: dict[int, Tensor], seen: int, outputs: Tensor, batch: Batch, last: bool = False
) -> None:
    """Add up what is right after a power of two of views, and after the last."""
    if last or seen & (seen - 1) == 0:
        right = correct(outputs, batch.targets).double()
        table = tables.setdefault(seen, right.new_zeros(2))
        table += torch.stack([right.sum(), torch.ones_like(right).sum()])


def _add_groups(tables: dict[str, Tensor], outputs: Tensor, batch: Batch) -> None:
    right = correct(outputs, batch.targets).double()
    for name, values in batch.extras.items():
        if values.dim() > 1:  # an array for each example (an image's colours) is no group
            continue
        inside = (values >= 0) & (values < MOST_VALUES)  # others are in no group
        chosen = F.one_hot(values.where(inside, 0), MOST_VALUES).double() * inside[:, None]
        table = tables.setdefault(name, chosen.new_zeros(2, MOST_VALUES))
        table += torch.stack([right @ chosen, chosen.sum(0)])
