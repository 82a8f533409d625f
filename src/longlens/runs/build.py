"""Building what the loop trains: the model for a task, its batches, its objective, its protocol."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longlens.config import ModelConfig, ModelOptions
from longlens.layers.base import optim_hints
from longlens.layers.registry import cannot_build
from longlens.models.backbone import sees_ahead
from longlens.models.build import Model, build_model
from longlens.models.count import parameter_count
from longlens.runs.ablate import check_ablation
from longlens.tasks import Spec, Task, load
from longlens.tasks.batches import Batches
from longlens.tasks.collapse import collapsed_copies, growing_trees, marked_values
from longlens.tasks.data import Split
from longlens.tasks.identity import expected_spec
from longlens.tasks.imported import imported_folder
from longlens.tasks.listops import CLOSE
from longlens.tasks.mix import easier_options, join_splits
from longlens.tasks.registry import find_task
from longlens.tasks.scratchpad import WRITTEN, most_written, with_room
from longlens.training import augment
from longlens.training.distributed import Ranks
from longlens.training.examples import Hide, Prepare, mask_tokens, read_marks
from longlens.training.job import Job
from longlens.training.objective import Objective
from longlens.training.options import TrainOptions
from longlens.training.process import is_compiled
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
            f"{options.task} is read out at one position: pooling must be {spec.readout!r}, got "
            f"{options.pooling!r}"
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


def training_split(options: TrainOptions, task: Task) -> Split:
    """The examples that a run trains on."""
    if options.train_on == "train+validation":
        return join_splits([task["train"], task["validation"]])
    return task["train"]


def writes(options: TrainOptions, kind: str = "supervised") -> bool:
    """Whether values are written on a scratchpad in this stage of a run."""
    return "scratchpad" in options.protocols and kind == "supervised"


def judged(options: TrainOptions, split: Split, kind: str = "supervised") -> Split:
    """A split as a run is evaluated on it: its own examples, with room for what is written."""
    return with_room(split) if writes(options, kind) else split


def describe_data(options: TrainOptions, task: Task) -> dict[str, Any]:
    """What a record says about its data: what was trained on, and what the step was selected on."""
    said = task.describe()
    if task.spec.target_length is not None:
        said["target_length"] = task.spec.target_length
    if options.train_on == "train":
        return said
    sizes = {**said["examples"], "train": len(training_split(options, task))}
    return {**said, "examples": sizes, "selected_on": "train"}


def make_job(
    options: TrainOptions, task: Task, model: Model, ranks: Ranks, kind: str = "supervised"
) -> Job:
    """Everything that the loop needs for one stage of training."""
    spec, common = task.spec, _batching(options, task.spec, ranks)
    model.right_padded = True  # as Batches pads
    split, short = training_split(options, task), []
    collapsed = options.collapse or options.collapse_depth
    if collapsed and options.collapse_steps and kind == "supervised":
        short = growing_trees(split, options.collapse_depth or 1)
    if options.collapse and kind == "supervised":
        split = join_splits([split, collapsed_copies(split, options.collapse, options.seed)])
    if {"values", "scratchpad"} & set(options.protocols) and kind == "supervised":
        split = judged(options, marked_values(split), kind)
        short = [judged(options, marked_values(stage), kind) for stage in short]
    train = Batches(split, options.batch_size, drop_last=True, limit=options.limit, **common)
    first = [Batches(stage, options.batch_size, drop_last=True, **common) for stage in short]
    # lists of digits have no copies, so that they can be too few where the rest is enough
    for batches in (*first, train):
        if len(batches) == 0:
            raise ValueError(
                f"batch_size must be at most the {len(batches.members)} examples of the training "
                f"split, got {options.batch_size}"
            )
    rows = options.evaluate_batch or options.batch_size
    validation, test = (
        Batches(judged(options, task[split], kind), rows, shuffle=False, **common)
        for split in ("validation", "test")
    )
    padded = any(int(b.lengths.min()) != int(b.lengths.max()) for b in (train, validation, test))
    objectives = {"masked": "masked", "causal": "next_token"}
    return Job(
        model=model,
        objective=Objective(objectives.get(kind, spec.kind)),
        train=train,
        validation=validation,
        test=test if kind == "supervised" else None,
        prepare=make_prepare(options, task, ranks, kind, padded and not train.streaming),
        optim_hints=optim_hints(model),
        units=list(model.backbone.blocks),
        data=task.identity,
        first=first,
        first_steps=options.collapse_steps if first else 0,
    )


def make_evaluation(
    options: TrainOptions, task: Task, model: Model, split: str, ranks: Ranks
) -> Job:
    """A job whose test is a split of a task, with nothing to train on."""
    spec = task.spec
    model.right_padded = True  # as Batches pads
    rows = options.evaluate_batch or options.batch_size
    batches = Batches(
        judged(options, task[split]), rows, shuffle=False, **_batching(options, spec, ranks)
    )
    padded = not batches.streaming and int(batches.lengths.min()) != int(batches.lengths.max())
    return Job(
        model=model,
        objective=Objective(spec.kind),
        train=batches,
        validation=batches,
        test=batches,
        prepare=make_prepare(options, task, ranks, "supervised", padded),
        data=task.identity,
    )


def _batching(options: TrainOptions, spec: Spec, ranks: Ranks) -> dict[str, Any]:
    """How a run cuts, pads and places its examples."""
    return dict(
        length=(options.length or WINDOW) if spec.kind == "next_token" else options.length,
        seed=options.seed,
        buckets=options.buckets,
        multiple=options.multiple,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=ranks.device,
        resident="auto" if options.resident is None else options.resident,
    )


def make_prepare(
    options: TrainOptions, task: Task, ranks: Ranks, kind: str, masked: bool
) -> Prepare:
    """How batches become examples under the options' protocol."""
    spec = task.spec
    hide: Hide | None = None
    if kind == "masked" or (kind == "supervised" and "denoise" in options.protocols):
        assert spec.vocab_size is not None
        hide = partial(mask_tokens, rate=options.mask_rate, mask_id=spec.vocab_size)
    elif kind == "supervised" and "values" in options.protocols:
        hide = partial(read_marks, first=CLOSE)
    transform = None
    if "augment" in options.protocols:
        compiled = is_compiled(options, ranks.device)
        transform = augment.build(
            task.name, spec.image, ranks.device, compile=compiled, **options.augment_options
        )
    return Prepare(kind, transform, hide, masked, spec.pair, writes(options, kind))
