"""Which heads does LaS need? Accuracy with one head switched off, by its decay rate, per cent.

    longlens run heads [--only '*Image'] [--seeds 3] [--budget 8m] [--quick]

Table 9's model is trained once; then every head is switched off in turn, in all layers at once.
Head 1 does not decay at all, head 8 decays the fastest; the column "none" has all of them. With
geometric rates the heads' reaches differ more. Records also hold every head of every single layer,
and the rates. Nothing is published: the question is one that readers of the paper asked.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run
from longlens.experiments.catalog.readings import MULTI_SCALE
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.runs.cell import Cell

TASKS = ("Image", "ListOps", "Text", "Pathfinder (own)")
MODELS: dict[str, Cell] = {"LaS": {}, "LaS geometric": MULTI_SCALE}
HEADS = tuple(map(str, range(1, 9)))
READS = {
    "none": "metrics.test.accuracy",
    **{head: f"ablations.heads.{head}" for head in HEADS},
}

EXPERIMENT = Experiment(
    name="heads",
    title="Importance of heads: accuracy of LaS with one of them switched off",
    source="ours",
    runs=tuple(
        Run(f"{model}, {task}", "none", attention(task, "las", ablate="heads", **changes))
        for task in TASKS
        for model, changes in MODELS.items()
    ),
    cost="8 runs a seed, and up to 56 evaluations of the test split after each",
    notes=(
        *NOTES,
        "A head that is switched off adds nothing to its layer's output, in all layers at once; "
        "nothing is trained again. Head 1 has the slowest decay (none), head 8 the fastest. "
        "Geometric rates reach 0.03 in head 8, half of that in each one before it.",
    ),
    kind="curve",
    x_label="head switched off",
    reads=READS,
)
