"""Does ListOps begin better with lists and small trees than with whole expressions? On a CPU.

    longlens run curriculum [--seeds 3] [--workers 2] [--quick]

Softmax attention, four layers of 96, causal, rotary positions, the root's label alone. "grown"
spends its first steps on lists of digits, then on trees of two levels (and three in the longer
expressions), whose deeper operators are replaced by their values: short inputs that hold what
decides most expressions. Its steps are more and cheaper, so that both rows take about as long.
Expressions of 50 to 200 tokens are made by LRA's rules; those of 6 to 40 tokens have three levels
of operators with 2 or 3 arguments. Columns are the accuracy on test, and that by the operator at
the root. Nothing is published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.scratchpad import BASE
from longlens.experiments.catalog.subtrees import by_operator
from longlens.runs.cell import Cell

LONG: Cell = {
    "task_options": {"min_length": 50, "max_length": 200, "max_depth": 10, "max_args": 10},
    "mixer": "softmax", "protocol": "augment", "batch_size": 32, "buckets": 8,
}  # fmt: skip
SMALL: Cell = {
    "task_options": {"min_length": 6, "max_length": 40, "max_depth": 4, "max_args": 3},
    "mixer": "softmax", "protocol": "augment", "batch_size": 128, "evaluate_every": 1000,
}  # fmt: skip
ROWS: dict[str, Cell] = {
    "50 to 200 tokens, whole": LONG | {"steps": 1400},
    "50 to 200 tokens, grown": LONG | {"collapse_depth": 3, "collapse_steps": 2400, "steps": 3000},
    "6 to 40 tokens, whole": SMALL | {"steps": 6500},
    "6 to 40 tokens, grown": SMALL
    | {"collapse_depth": 2, "collapse_steps": 10_000, "steps": 13_000},
}

EXPERIMENT = Experiment(
    name="curriculum",
    title="Small ListOps, whole or grown from lists and small trees",
    source="ours",
    runs=tuple(Run(row, "ListOps", merged(BASE, changes)) for row, changes in ROWS.items()),
    cost="4 runs a seed, on a CPU core some seven minutes (50 to 200 tokens) and twenty each",
    notes=(
        "The values that shorten the inputs of 'grown' are not given by ListOps' labels; they are "
        "no targets. Validation and test are whole.",
    ),
    reads=by_operator("ListOps"),
)
