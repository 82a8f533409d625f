"""What do new digits in training, and several views in the test, add? Small ListOps, on a CPU.

    longlens run augmented [--seeds 3] [--workers 2] [--quick]

Expressions of 10 to 60 tokens, of which few are there to learn from, so that models learn them by
heart. Softmax attention, four layers of 96, causal, rotary positions, the root's label alone.
Training shuffles the arguments of every operator; rows "redrawn" also draw digits anew, such that
every operator keeps its value. Columns are the accuracy on test where probabilities are averaged
over this many views: the expression, and copies that are changed as in training. Nothing is
published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.scratchpad import BASE
from longlens.runs.cell import Cell

SIZES = (5_000, 20_000)
COMMON: Cell = {"mixer": "softmax", "protocol": "augment", "steps": 4000, "views": 16}
KINDS: dict[str, Cell] = {"": {}, ", redrawn": {"augment_options": {"redraw": True}}}
VIEWS = (1, 2, 4, 8, 16)

EXPERIMENT = Experiment(
    name="augmented",
    title="Small ListOps from few expressions: new digits, and views",
    source="ours",
    runs=tuple(
        Run(
            f"{size:,} expressions{kind}",
            "1",
            merged(BASE, COMMON, {"task_options": {"train": size}}, changes),
        )
        for size in SIZES
        for kind, changes in KINDS.items()
    ),
    cost="4 runs a seed, on a CPU core some five minutes each",
    notes=(
        "The step is chosen by the accuracy of one view on 2,000 expressions of validation; test "
        "has 2,000 as well.",
    ),
    kind="curve",
    x_label="views",
    reads={str(n): f"metrics.test.accuracy_by_views.{n}.accuracy" for n in VIEWS},
)
