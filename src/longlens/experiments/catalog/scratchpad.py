"""Which part of LaS is in the way of sums? Small ListOps trees, on a CPU.

    longlens run scratchpad [--seeds 3] [--workers 2] [--quick]

Expressions of 10 to 60 tokens, three levels of operators with 2 to 5 arguments. Four layers of 96,
causal, rotary positions, read out at the last token. On a scratchpad the value of every
subexpression stands behind it, given in training and the model's own afterwards; further rows have
the same values as targets alone, and the root's label alone, the last two for five times as long:
on whole trees, and with copies in which operators chosen at random are replaced by their values.
Columns are the accuracy on test, and that by the operator at the root. Nothing is published.
"""

from __future__ import annotations

from typing import Any

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.subtrees import by_operator
from longlens.runs.cell import Cell

BASE: Cell = {
    "task": "listops", "dim": 96, "depth": 4, "optimizer": "muon", "lr": 2e-3, "warmup": 0.1,
    "task_options": {"min_length": 10, "max_length": 60, "max_depth": 4, "max_args": 5},
    "ema": 0.99, "batch_size": 64, "evaluate_batch": 500, "evaluate_every": 500, "steps": 3000,
    "positions": "rotary", "bidirectional": False, "pooling": "last", "buckets": 4, "multiple": 16,
    "protocol": "scratchpad+augment", "mixer_options": {"num_heads": 2},
}  # fmt: skip


def _row(mixer: str, options: Cell | None = None, **changes: Any) -> Cell:
    return merged(BASE, {"mixer": mixer, "mixer_options": options or {}}, changes)


ROWS: dict[str, Cell] = {
    "softmax": _row("softmax"),
    "L": _row("l", {"bound": 0.001}),
    "S": _row("s", {"window": 5}),
    "LaS": _row("las", {"window": 5, "bound": 0.001}),
    "softmax, values as targets": _row("softmax", protocol="values+augment"),
    "softmax, root label alone": _row("softmax", protocol="augment"),
    "LaS, root label alone": _row("las", {"window": 5, "bound": 0.001}, protocol="augment"),
    "softmax, root label alone, 15,000 steps": _row(
        "softmax", protocol="augment", steps=15_000, evaluate_every=1500
    ),
    "softmax, collapsed copies too, 15,000 steps": _row(
        "softmax", protocol="augment", steps=15_000, evaluate_every=1500,
        collapse=4, collapse_steps=2000,
    ),
}  # fmt: skip

EXPERIMENT = Experiment(
    name="scratchpad",
    title="Small ListOps trees on a scratchpad",
    source="ours",
    runs=tuple(Run(row, "small ListOps", cell) for row, cell in ROWS.items()),
    cost="9 runs a seed, on a CPU core some six minutes each, the last two half an hour",
    notes=(
        "P is 5 and B is 0.001. Arguments are shuffled in training. The first five rows use the "
        "value of every subexpression as a label in training, which LRA does not give; 'collapsed "
        "copies' use these values to shorten inputs.",
    ),
    reads=by_operator("small ListOps"),
)
