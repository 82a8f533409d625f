"""Is expressiveness the obstacle? Large models fitted to train and validation together, per cent.

    longlens run fit [--only 'Transformer*' --only '*Image'] [--budget 30m] [--quick]

The paper (Section 3) observes that large Transformers with positions, trained on LRA's tasks
"including the validation set", get near 100 % of it right, and concludes that attention does not
lack expressiveness but generalises badly. Here a Transformer of 8 × 512 with learned positions, and
LaS in the same model, train on both splits without regularisation; "train and validation" is the
accuracy on validation, which they were trained on, "test" the one on test. No numbers are printed.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.tasks import DATA_NOTES, TASKS
from longlens.runs.cell import Cell

COLUMNS = ("Image", "ListOps", "Text", "Pathfinder", "Pathfinder (own)")
TRAINING: Cell = {
    "depth": 8, "dim": 512, "expansion": 4.0, "norm": "layer", "prenorm": True,
    "optimizer": "adamw", "lr": 3e-4, "weight_decay": 0.0, "batch_size": 64, "epochs": 100.0,
    "train_on": "train+validation",
}  # fmt: skip
MODELS: dict[str, Cell] = {
    "Transformer": {"mixer": "softmax", "bidirectional": True, "positions": "learned"},
    "LaS": {"mixer": "las", "mixer_options": {"window": 5, "bound": 0.001}},
}
READS = {
    "train and validation": "metrics.validation.accuracy",
    "test": "metrics.test.accuracy",
}

EXPERIMENT = Experiment(
    name="fit",
    title="Train and validation fitted together: is expressiveness the obstacle?",
    source="Zimerman & Wolf, ICML 2024, Section 3",
    runs=tuple(
        Run(f"{model}, {task}", "train and validation", merged(TASKS[task], TRAINING, options))
        for task in COLUMNS
        for model, options in MODELS.items()
    ),
    cost="10 runs a seed of 100 epochs",
    notes=(
        *DATA_NOTES,
        "The step is the one with the best accuracy on validation, which was trained on: these "
        "runs measure fitting. The paper prints no numbers (near 100 %) and no sizes; 8 × 512, "
        "8 heads, layer norm before each part, AdamW at 3e-4 without decay are ours. Pairs of "
        "documents (Retrieval) cannot be joined across splits here and are left out.",
    ),
    kind="curve",
    x_label="accuracy on",
    reads=READS,
)
