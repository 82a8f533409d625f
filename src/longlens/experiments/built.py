"""Can a cell be run at all? Its model is built without memory and without data, in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from longlens.models.build import Model, build_model
from longlens.runs.ablate import check_ablation
from longlens.runs.build import model_config
from longlens.runs.cell import Cell
from longlens.tasks import Spec, load
from longlens.tasks.expected import expected_spec
from longlens.tasks.imported import imported_folder
from longlens.tasks.mix import easier_options
from longlens.training.augment import AUGMENTED
from longlens.training.options import TrainOptions


def build_on_meta(cell: Cell) -> Model:
    """Check a cell's options and its task, and build its model, with one block, on the meta device.

    Raises:
        ValueError: it cannot be run; the message names what is wrong.

    >>> model = build_on_meta({"task": "wikitext103", "mixer": "las", "dim": 768})
    >>> next(model.parameters()).shape, next(model.parameters()).is_meta
    (torch.Size([267735, 768]), True)
    """
    options = TrainOptions(**cell)
    spec = _spec(options)
    if "augment" in options.protocols and options.task not in AUGMENTED:
        raise ValueError(
            f"protocol {options.protocol!r}: nothing is known to augment {options.task}"
        )
    if options.mix_easier:
        easier_options(options.task, **options.task_options)
    if options.train_on != "train" and (spec.pair or spec.kind == "next_token"):
        raise ValueError(f"train_on={options.train_on}: splits of {options.task} cannot be joined")
    if options.length is not None and spec.kind == "regression":
        raise ValueError(f"length would cut the targets of {options.task} off; use task_options")
    config = replace(model_config(options, spec), depth=1)  # blocks are alike: one stands for all
    with torch.device("meta"):
        model = build_model(config)
    check_ablation(options, model)
    return model


def _spec(options: TrainOptions) -> Spec:
    """The task's spec; of a task that the user imported, the data themselves say it."""
    if imported_folder(options.root, options.task) is not None:
        return load(options.task, options.root, verify="size", **options.task_options).spec
    return expected_spec(options.task, **options.task_options)
