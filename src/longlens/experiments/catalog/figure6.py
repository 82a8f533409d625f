"""Figure 6: accuracy against the amount of training data, of LaS and of plain attention.

    longlens run figure6 [--only 'LaS*'] [--budget 8m] [--quick]

The paper prints a plot without numbers, on Image, Text, ListOps and Pathfinder: accuracy rises with
the data on all of them, more for LaS than for other transformers. The amounts are not stated.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.experiments.catalog.tasks import DATA_NOTES

EXAMPLES = {"Image": 45_000, "Text": 22_500, "ListOps": 96_000, "Pathfinder": 160_000,
            "Pathfinder (own)": 160_000}  # of the training split  # fmt: skip
SHARES = (5, 10, 25, 50, 100)
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "LaS": ("las", ("window", "bound")),
    "Softmax": ("softmax", ()),
}


def _run(model: str, task: str, share: int) -> Run:
    cell = attention(task, *MODELS[model])
    if share < 100:
        cell = merged(cell, {"limit": EXAMPLES[task] * share // 100})
    return Run(f"{model}, {task}", str(share), cell)


EXPERIMENT = Experiment(
    name="figure6",
    title="Accuracy against the amount of training data",
    source="Zimerman & Wolf, ICML 2024, Figure 6",
    runs=tuple(
        _run(model, task, share) for task in EXAMPLES for model in MODELS for share in SHARES
    ),
    cost="50 runs a seed, the smaller ones in proportion; published: up to two V100-days a run",
    notes=(
        *NOTES,
        *DATA_NOTES,
        "No numbers are printed in the paper, nor the amounts.",
        "Epochs are the same for every amount, so less data also means fewer steps; with --budget "
        "every run takes the same time instead.",
    ),
    kind="curve",
    x_label="share of the training examples, per cent",
    published_seeds=3,
)
