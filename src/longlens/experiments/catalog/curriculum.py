"""Does ListOps begin better with lists and small trees than with whole expressions? On a CPU.

    longlens run curriculum [--seeds 3] [--workers 2] [--quick]

Expressions of 50 to 200 tokens, made by LRA's rules. Softmax attention, four layers of 96, causal,
rotary positions, the root's label alone. "grown" spends its first steps on lists of digits, then on
trees of two levels, then of three, whose deeper operators are replaced by their values: short
inputs that hold what decides most expressions. Its steps are more and cheaper, so that both rows
take about as long. Columns are the accuracy on test, and that by the operator at the root. Nothing
is published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.scratchpad import BASE
from longlens.experiments.catalog.subtrees import by_operator
from longlens.runs.cell import Cell

COMMON: Cell = {
    "task_options": {"min_length": 50, "max_length": 200, "max_depth": 10, "max_args": 10},
    "mixer": "softmax", "protocol": "augment", "batch_size": 32, "evaluate_every": 500,
    "buckets": 8,
}  # fmt: skip
ROWS: dict[str, Cell] = {
    "whole expressions": {"steps": 1400},
    "grown": {"collapse_depth": 3, "collapse_steps": 2400, "steps": 3000},
}

EXPERIMENT = Experiment(
    name="curriculum",
    title="Short ListOps, whole or grown from lists and small trees",
    source="ours",
    runs=tuple(
        Run(row, "short ListOps", merged(BASE, COMMON, changes)) for row, changes in ROWS.items()
    ),
    cost="2 runs a seed, on a CPU core some ten minutes each",
    notes=(
        "The values that shorten the inputs of 'grown' are not given by ListOps' labels; they are "
        "no targets. Validation and test are whole.",
    ),
    reads=by_operator("short ListOps"),
)
