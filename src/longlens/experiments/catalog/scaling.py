"""Five and ten times the training data: who profits? Generated tasks, per cent.

    longlens run scaling [--only '*ListOps'] [--budget 8m] [--quick]

The locality study asks whether unrestricted convolutions (gMLP) and Transformers with augmentation
plateau with more data, and whether state-space models scale differently. ListOps and our Pathfinder
are generated, so there can be more: 96,000, 480,000 and 960,000 expressions, 160,000, 800,000 and
1,600,000 images for training. Nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.recipes import s4
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.experiments.catalog.techniques import gmlp, transformer
from longlens.runs.cell import Cell

TIMES = (1, 5, 10)
EXAMPLES = {"ListOps": 96_000, "Pathfinder (own)": 160_000}  # of the training split
SIZES = {"ListOps": ("train", 96_000), "Pathfinder (own)": ("images", 200_000)}
# The study's recipes with its augmentation, without easier sets: one distribution.
AUGMENTED: Cell = {"technique": True, "mix_easier": False}
MODELS: dict[str, Callable[[str], Cell]] = {
    "gMLP, augmented": partial(gmlp, **AUGMENTED),
    "Transformer, rotary, augmented": partial(transformer, positions="rotary", **AUGMENTED),
    "LaS": lambda column: attention(column, "las"),
    "S4": s4,
}


def _cell(model: str, column: str, times: int) -> Cell:
    cell = MODELS[model](column)
    steps = round(cell.pop("epochs") * EXAMPLES[column] / cell["batch_size"])
    name, size = SIZES[column]
    more = {} if times == 1 else {"task_options": {name: times * size}}
    return merged(cell, {"steps": steps}, more)


EXPERIMENT = Experiment(
    name="scaling",
    title="Five and ten times the training data, on generated tasks",
    source="ours; asked by the locality study, arXiv 2501.14850",
    runs=tuple(
        Run(f"{model}, {task}", str(times), _cell(model, task, times))
        for task in EXAMPLES
        for model in MODELS
        for times in TIMES
    ),
    cost="24 runs a seed; the same number of steps whatever the amount of data",
    notes=(
        *NOTES[:1],
        "gMLP and the rotary Transformer train by the locality study's recipes with its "
        "augmentation but without easier sets, LaS by Table 9, S4 by its repository's.",
        "Steps are those of the single amount, so with ten times the data each example is seen a "
        "tenth as often. ListOps keeps its validation and test sizes; Pathfinder is split "
        "80/10/10, so its test set grows, too.",
        "The larger sets are generated when they are first needed; longlens data prepare "
        "pathfinder --set images=2000000 takes ten times as long as Pathfinder itself.",
    ),
    kind="curve",
    x_label="times the training data",
)
