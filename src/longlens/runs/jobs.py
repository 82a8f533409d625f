"""What the loop trains and measures: batches of a run's examples, its objective, its protocol."""

from __future__ import annotations

from functools import partial
from typing import Any

from longlens.layers.base import optim_hints
from longlens.models.build import Model
from longlens.runs.build import WINDOW
from longlens.tasks import Spec, Task
from longlens.tasks.batches import Batches
from longlens.tasks.collapse import collapsed_copies, growing_trees, marked_values
from longlens.tasks.data import Split
from longlens.tasks.listops import CLOSE
from longlens.tasks.mix import join_splits
from longlens.tasks.scratchpad import with_room
from longlens.training import augment
from longlens.training.distributed import Ranks
from longlens.training.examples import Hide, Prepare, mask_tokens, read_marks
from longlens.training.job import Job
from longlens.training.objective import Objective
from longlens.training.options import TrainOptions
from longlens.training.process import is_compiled


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
