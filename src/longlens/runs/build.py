"""The model that a run's options ask for, once they are known to make sense for the task."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longlens.config import ModelConfig, ModelOptions
from longlens.layers.registry import cannot_build
from longlens.models.backbone import sees_ahead
from longlens.models.build import Model, build_model
from longlens.models.count import parameter_count
from longlens.runs.ablate import check_ablation
from longlens.tasks import Spec, load
from longlens.tasks.identity import expected_spec
from longlens.tasks.imported import imported_folder
from longlens.tasks.listops import CLOSE
from longlens.tasks.mix import easier_options
from longlens.tasks.registry import find_task
from longlens.tasks.scratchpad import WRITTEN, most_written
from longlens.training import augment
from longlens.training.options import TrainOptions
from longlens.training.randomness import key, seed_everything
from longlens.weights import load_tensors

WINDOW = 512  # of a next-token task, unless the options say otherwise
HEADS = {"masked": "denoising", "causal": "language"}  # of pretraining


def model_config(options: TrainOptions, spec: Spec, kind: str = "supervised") -> ModelConfig:
    """The model that ``options`` ask for, with the input and the head that the task needs.

    Args:
        options: what to build.
        spec: of the task.
        kind: "supervised", or for pretraining "masked" or "causal".

    >>> spec = Spec(kind="classification", inputs="tokens", max_length=64, vocab_size=16,
    ...             num_classes=10)
    >>> config = model_config(TrainOptions(dim=32, protocol="denoise"), spec)
    >>> config.dim, config.head, config.num_outputs, config.vocab_size  # one more: "hidden"
    (32, 'classification', 10, 17)
    """
    hides = "denoise" in options.protocols or "pretrain" in options.protocols
    if hides and spec.inputs != "tokens":
        raise ValueError(f"protocol {options.protocol!r} hides tokens, but the task's inputs are "
                         f"{spec.inputs}")  # fmt: skip
    values: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(ModelOptions)}
    if spec.kind == "next_token":
        if hides:
            raise ValueError(f"protocol {options.protocol!r} is for tasks with labels; "
                             "a next-token task is its own pretraining")  # fmt: skip
        values |= {"head": "language", "max_length": options.length or WINDOW}
    else:
        longest = min(options.length or spec.max_length, spec.max_length)
        if "scratchpad" in options.protocols:
            longest = most_written(longest)
        if spec.pad_id is not None:  # batches are padded to the next multiple
            longest = -(-longest // options.multiple) * options.multiple
        values["max_length"] = longest
    if spec.readout is not None and kind == "supervised" and options.pooling != spec.readout:
        raise ValueError(
            f"{options.task} is read out at one position: pooling must be {spec.readout!r} "
            f"(--pooling {spec.readout}), got {options.pooling!r}"
        )
    if spec.kind == "classification":
        head = "matching" if spec.pair else "classification"
        values |= {"head": head, "num_outputs": spec.num_classes}
    elif spec.kind == "regression":
        values |= {"head": "regression", "num_outputs": spec.target_dim, "pooling": "none"}
    if kind in HEADS:
        values["head"] = HEADS[kind]
    elif {"denoise", "values", "scratchpad"} & set(options.protocols):
        values["second_head"] = True
    if spec.vocab_size is not None:
        values["vocab_size"] = spec.vocab_size + hides  # the last one stands for a hidden token
    if "values" in options.protocols:
        values["vocab_size"] = CLOSE + 10  # a closing bracket of each value
    if "scratchpad" in options.protocols:
        values["vocab_size"] = WRITTEN + 10
    if spec.encoding == "pixels":
        values["numbers"] = options.pixels == "numbers" or (options.pixels == "auto" and not hides)
        if values["numbers"] and hides:
            raise ValueError(f"protocol {options.protocol!r} hides tokens: pixels must be tokens")
    elif options.pixels == "numbers":
        raise ValueError(f"pixels=numbers is for images, but {options.task} has none")
    if spec.channels is not None:
        values["input_dim"] = spec.channels
    return ModelConfig(**values)


def check_task(options: TrainOptions, spec: Spec) -> None:
    """Raise ValueError where options ask for what the task does not have."""
    if "augment" in options.protocols and options.task not in augment.AUGMENTED:
        raise ValueError(
            f"protocol {options.protocol!r}: nothing is known to augment {options.task}"
        )
    if "augment" in options.protocols:
        augment.check_options(options.task, options.augment_options)
    elif options.augment_options:
        raise ValueError(
            f"augment_options={options.augment_options} are of the protocol augment, got "
            f"{options.protocol!r}"
        )
    for name, given in (("collapse", options.collapse), ("collapse_depth", options.collapse_depth)):
        if given and options.task != "listops":
            raise ValueError(f"{name}={given} is for listops, not for {options.task}")
        if given and options.steps is not None and options.steps <= options.collapse_steps:
            raise ValueError(
                f"steps must be more than collapse_steps={options.collapse_steps}, which are on "
                f"collapsed expressions alone, got {options.steps}"
            )
        if given and options.limit is not None:
            raise ValueError(f"limit does not hold for what {name} adds; use task_options.train")
    if options.collapse_depth is not None and options.collapse_steps < options.collapse_depth:
        raise ValueError(
            f"collapse_steps must be at least collapse_depth={options.collapse_depth}, one for "
            f"each level, got {options.collapse_steps}"
        )
    if {"values", "scratchpad"} & set(options.protocols) and options.task != "listops":
        raise ValueError(f"protocol {options.protocol!r}: {options.task} has no values of subtrees")
    if options.mix_easier:
        easier_options(options.task, **options.task_options)
    if options.train_on != "train" and (spec.pair or spec.kind == "next_token"):
        raise ValueError(f"train_on={options.train_on}: splits of {options.task} cannot be joined")
    if options.length is not None and spec.kind == "regression":
        raise ValueError(f"length would cut the targets of {options.task} off; use task_options")


def build_on_meta(options: TrainOptions, spec: Spec | None = None) -> Model:
    """Check that options can be run: their model, built without memory and without data.

    Args:
        options: what to build.
        spec: of the task; None: as its options say. (Of an imported task, the data say it.)

    Raises:
        ValueError: they cannot be run; the message names what is wrong.

    >>> model = build_on_meta(TrainOptions(task="wikitext103", mixer="las", dim=768))
    >>> next(model.parameters()).shape, next(model.parameters()).is_meta
    (torch.Size([267735, 768]), True)
    """
    spec = spec or spec_of(options)
    check_task(options, spec)
    config = model_config(options, spec)
    if not any(isinstance(value, list) for value in options.mixer_options.values()):
        config = replace(config, depth=1)  # blocks are alike: one stands for all
    try:
        with torch.device("meta"):
            model = build_model(config)
    except ValueError:
        raise
    except Exception as error:  # whatever a mixer says to options of the wrong type
        raise cannot_build(options.mixer, options.mixer_options, error) from None
    if "scratchpad" in options.protocols and any(map(sees_ahead, model.backbone.mixers())):
        raise ValueError(
            f"protocol {options.protocol!r} needs a mixer that never sees ahead: it would read the "
            f"values that it is to predict, got mixer={options.mixer!r} with bidirectional="
            f"{options.bidirectional}"
        )
    check_ablation(options, model)
    return model


def describe_model(options: TrainOptions, spec: Spec | None = None) -> str:
    """Task and model of a run in two lines; says what is known without the data.

    >>> print(describe_model(TrainOptions(dim=32)))
    task    listops: classification into 10 classes, length 1,999
    model   las, 4 blocks of width 32, 35,082 parameters
    """
    spec = spec or spec_of(options)
    config = model_config(options, spec)
    with torch.device("meta"):
        parameters = parameter_count(build_model(config))
    kind = spec.kind.replace("_", " ")
    classes = f" into {spec.num_classes:,} classes" if spec.num_classes else ""
    length = min(config.max_length, spec.max_length or config.max_length)  # that is padded
    return (
        f"task    {options.task}: {kind}{classes}, length {length:,}\n"
        f"model   {options.mixer}, {options.depth} blocks of width {options.dim}, "
        f"{parameters:,} parameters"
    )


def spec_of(options: TrainOptions) -> Spec:
    """The shape of a run's task, as its options say, or else its data: of an imported task, or
    one that is made from another (``far-injection``).
    """
    imported = imported_folder(options.root, options.task) is not None
    if imported or find_task(options.task).spec is None:
        return load(options.task, options.root, verify="size", **options.task_options).spec
    return expected_spec(options.task, **options.task_options)


def make_model(
    options: TrainOptions, spec: Spec, kind: str, device: torch.device, weights: Path | None = None
) -> Model:
    """The model with its initial weights, which depend on the seed alone.

    Args:
        options: what to build.
        spec: of the task.
        kind: "supervised", "masked" or "causal".
        device: where to put it.
        weights: a pretrained model's file; its encoding and backbone are taken over.
    """
    seed_everything(key(options.seed, "weights"), torch.device("cpu"))
    model = build_model(model_config(options, spec, kind))
    if weights is not None:
        _take_body(model, weights)
    return model.to(device).train()


def _take_body(model: nn.Module, path: Path) -> None:
    """Copy encoding and backbone; only a CLS vector, which pretraining lacks, may stay as it is."""
    tensors = load_tensors(path)
    body = {n: t for n, t in tensors.items() if n.startswith(("encoding.", "backbone."))}
    try:
        missing, foreign = model.load_state_dict(body, strict=False)
    except RuntimeError as error:  # other shapes
        raise ValueError(f"{path} is of another model: {error}") from None
    left = [n for n in missing if n.startswith(("encoding.", "backbone.")) and n != "encoding.cls"]
    if left or foreign:
        raise ValueError(f"{path} is of another model: missing {left}, foreign {foreign}")
