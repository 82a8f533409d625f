"""A finished run put to use: measured again, on any split or task, and asked about new inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from longlens import tasks
from longlens.models.build import Model, load_model
from longlens.models.pretrained import WEIGHTS
from longlens.runs.build import model_config, spec_of
from longlens.runs.finished import other_data
from longlens.runs.folders import find_run
from longlens.runs.jobs import make_evaluation
from longlens.runs.record import Record
from longlens.tasks.arrays import Array
from longlens.tasks.given import are_whole, as_number
from longlens.tasks.listops import CLOSE, OPERATOR, PAD
from longlens.tasks.scratchpad import most_written
from longlens.tasks.spec import SPLITS
from longlens.training.distributed import Ranks
from longlens.training.engine import Engine
from longlens.training.evaluate import evaluate
from longlens.training.options import PLACEMENT, TrainOptions
from longlens.training.scratchpad import answer, write_values

ROWS = 64  # of a batch of predictions


def recorded_options(record: Record, **changes: Any) -> TrainOptions:
    """The options of a run without its places and what no longer exists; ``changes`` go over them.

    Raises:
        ValueError: it has none, or they are those of no run.
    """
    if not record.options:
        raise ValueError(f"{record.folder} holds no options; it was cut off before it began")
    known = {f.name for f in fields(TrainOptions)} - PLACEMENT
    values = {key: value for key, value in record.options.items() if key in known}
    values |= {"root": record.options.get("root"), "progress": False}
    try:
        return TrainOptions.from_values({**values, **changes})
    except ValueError as error:
        raise ValueError(f"{record.folder} holds options that cannot be used ({error})") from None


def load_trained(folder: str | Path, device: torch.device) -> tuple[Record, Model]:
    """The record and the model of a finished run, ready to be used.

    Raises:
        ValueError: it is no run, not finished, or damaged.
    """
    record = find_run(folder)
    if not record.is_finished or not (Path(folder) / WEIGHTS).exists():
        raise ValueError(
            f"{folder} has no trained model (status {record.status}); give its command of longlens "
            "train again, and it goes on"
        )
    return record, load_model(Path(folder)).to(device).eval()


def evaluate_run(
    folder: str | Path,
    split: str = "test",
    *,
    where: Mapping[str, int] | None = None,
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    length: int | None = None,
    batch_size: int | None = None,
    views: int | None = None,
    device: str = "cpu",
    root: str | None = None,
) -> dict[str, Any]:
    """Loss and metric of a finished run.

    Args:
        folder: of the run.
        split: train, validation or test.
        where: only examples whose extras have these values, as in {"operator": 3}.
        task: another one, of the same kind of inputs and outputs; None: the run's own, and its
            very data.
        task_options: go over those of the run (of another task: its defaults).
        length: cut examples to this many positions; None: as in training.
        batch_size: None: as in training.
        views: of each example, over which probabilities are averaged; None: the run's, of another
            task one.
        device: where to compute.
        root: the data cache; None: the run's.

    Raises:
        ValueError: it is no finished run, its data have changed, or the task does not fit.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    for name, number in (("length", length), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be 1 or more, got {number}")
    record, model = load_trained(folder, torch.device(device))
    if length is not None and uses_scratchpad(record):
        raise ValueError(
            f"{folder} writes on a scratchpad, and length would cut expressions off it"
        )
    changes: dict[str, Any] = {"compile": False, "graphs": "none", "device": device}
    changes |= {} if root is None else {"root": root}
    changes |= {} if length is None else {"length": length}
    options = recorded_options(record, **changes)
    if views is not None or task is not None:  # another task may have no augmentation
        options = replace(options, views=1 if views is None else views)
    if task is not None:
        options = replace(options, task=task, task_options={})
    if task_options:
        options = replace(options, task_options={**options.task_options, **task_options})
    same = options.task == record.task and not task_options
    if same and (changed := other_data(record, options)):
        raise ValueError(
            f"{folder} was trained on other data: {changed}; --task takes these as new"
        )
    check_fits(model, options)
    if not same:
        _check_names(record, options)
    data = tasks.load(options.task, options.root, **options.task_options)
    rows = batch_size or options.evaluate_batch or options.batch_size
    options = replace(options, evaluate_batch=rows, **_without_training(options))
    ranks = Ranks(torch.device(device))
    job = make_evaluation(options, data, model, split, ranks)
    batches = job.validation
    for name, value in (where or {}).items():
        if not data[split].spec.extras:
            raise ValueError(f"where: {options.task} keeps no values with examples, got {name!r}")
        extra = data[split].extra(name)
        if extra.ndim > 1:
            raise ValueError(f"where: {name} of {options.task} is no single value of an example")
        found = np.flatnonzero(extra == value)
        batches.members = np.intersect1d(batches.members, found)
    if not len(batches.members):
        raise ValueError(f"{options.task} has no example in {split} with {dict(where or {})}")
    engine = Engine(job, options, ranks)
    metrics = evaluate(engine, batches.epoch(0), rows, groups=True, views=options.views)
    return {"run": str(folder), "task": options.task, "split": split,
            "examples": len(batches.members), **metrics}  # fmt: skip


def _without_training(options: TrainOptions) -> dict[str, Any]:
    """The parts of a protocol that a test needs: its scratchpad, and what makes further views."""
    needed = {"scratchpad"} | ({"augment"} if options.views > 1 else set())
    kept = [part for part in options.protocols if part in needed]
    return {"protocol": "+".join(kept) or "scratch"}


def _check_names(record: Record, options: TrainOptions) -> None:
    """Raise ValueError where classes of another task have other names than the run's own."""
    try:
        ours = spec_of(recorded_options(record)).class_names
    except ValueError:  # the run's data are not here
        return
    theirs = spec_of(options).class_names
    if ours and theirs and ours != theirs:
        number = next(n for n, name in enumerate(ours) if theirs[n] != name)
        raise ValueError(
            f"class {number} of {options.task} is {theirs[number]!r}, of {record.task} "
            f"{ours[number]!r}: classes are compared by their numbers"
        )


def check_fits(model: Model, options: TrainOptions) -> None:
    """Raise ValueError where the inputs or outputs of a run's task are not those of a model."""
    asked = model_config(options, spec_of(options))
    for name in ("head", "num_outputs", "vocab_size", "input_dim", "numbers"):
        has, needs = getattr(model.config, name), getattr(asked, name)
        if has != needs:
            raise ValueError(
                f"{options.task} needs a model with {name} {needs}, this one has {has}"
            )


def predict_run(
    folder: str | Path, examples: Sequence[Array | str], device: str = "cpu"
) -> list[dict[str, Any]]:
    """What a finished run says about examples that nobody has labelled.

    Args:
        folder: of the run.
        examples: tokens (L,) or numbers (L,) or (L, C), of any lengths; or text: of a task on texts
            the text itself, else numbers with commas or spaces between them. They are cut as in
            training (``length``); where all of training had one length, none may be longer.
        device: where to compute.

    Returns:
        for every example ``prediction`` (a class, the next token, or numbers: (T, D) for the last T
        positions, to which the task's targets belong), and for a class or token its
        ``probability`` and, where the task has names and still the same data, ``name``.

    Raises:
        ValueError: it is no finished run, or an example is not what its model reads.
    """
    record, model = load_trained(folder, torch.device(device))
    if model.config.head == "matching":
        raise ValueError(f"{folder} compares two sequences; predict takes one")
    last = record.data.get("target_length")  # earlier versions of longlens did not write it
    try:
        options = recorded_options(record)
        spec = spec_of(options)
        names, encoding = spec.class_names, spec.encoding
        only = spec.max_length if spec.pad_id is None else None
        if other_data(record, options):  # these may have other names
            names = None
        else:
            last = last or spec.target_length
    except ValueError:  # the data are not here
        names, encoding, only = None, None, None
    if model.config.head == "regression" and last is None:
        raise ValueError(
            f"{folder} was trained on targets for the last positions of an example; how many these "
            "are neither its record says nor its data, which are not here any more"
        )
    inputs = [
        _input(model, _numbers(one, encoding, n) if isinstance(one, str) else one, n)
        for n, one in enumerate(examples)
    ]
    for number, one in enumerate(inputs):
        if only and len(one) > only:
            raise ValueError(
                f"example {number} must have at most {only} positions, as all of training had, got "
                f"{len(one)}; is a label among the values?"
            )
    if model.config.head != "language":  # there the length is that of windows
        inputs = [one[: record.options.get("length")] for one in inputs]
    by_length: dict[int, list[int]] = {}
    for number, example in enumerate(inputs):
        by_length.setdefault(len(example), []).append(number)
    ask = ask_on_scratchpad if uses_scratchpad(record) else Model.__call__
    answers: list[dict[str, Any]] = [{} for _ in inputs]
    for members in by_length.values():  # of one length, so that nothing is padded
        for start in range(0, len(members), ROWS):
            some = members[start : start + ROWS]
            batch = torch.from_numpy(np.stack([inputs[number] for number in some]))
            with torch.no_grad():
                outputs = ask(model, batch.to(device)).float().cpu()
            for number, output in zip(some, outputs, strict=True):
                answers[number] = _answer(output, model.config.head, names, last, number)
    return answers


def uses_scratchpad(record: Record) -> bool:
    """Whether a run's model writes values down before it answers."""
    return "scratchpad" in str(record.options.get("protocol")).split("+")


def ask_on_scratchpad(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """The answers (B, C) to ListOps (B, L) of a model that writes values down first.

    Raises:
        ValueError: these are no expressions.
    """
    length = tokens.shape[1]
    opens, closes = (tokens >= OPERATOR) & (tokens < CLOSE), tokens == CLOSE
    depth = (opens.long() - closes.long()).cumsum(1)
    one_tree = (depth[:, :-1] > 0).all() and not depth[:, -1].any()
    full = int(closes.sum(1).max()) <= length // 3  # every operator has an argument
    if int(tokens.min()) == PAD or int(tokens.max()) > CLOSE or not one_tree or not full:
        raise ValueError(
            f"a run on a scratchpad takes whole expressions of ListOps, tokens 1 … {CLOSE} with a "
            f"closing bracket ({CLOSE}) for every operator ({OPERATOR} … {CLOSE - 1}), got "
            f"{tokens[0].tolist()[:20]} among others"
        )
    room = F.pad(tokens, (0, most_written(length) - length), value=PAD)
    written, _ = write_values(room)
    return answer(lambda x, mask: model(x, mask, tokens=True), written, written != PAD)


def _numbers(text: str, encoding: str | None, number: int) -> Array:
    """A text as a task's tokens, or the numbers that stand in it."""
    if encoding in ("bytes", "bytes+1"):
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64) + (encoding == "bytes+1")
    mark = next((mark for mark in ",\t" if mark in text), None)  # None: spaces
    cells = text.rstrip(", \t\r\n").split(mark)
    words = [word for cell in cells for word in cell.split() or [""]]
    if "" in words:
        raise ValueError(
            f"example {number}: value {words.index('') + 1} is missing inside the example, got "
            f"{text[:40]!r}; fill it first"
        )
    found = [as_number(word) for word in words]
    if None in found:
        raise ValueError(f"example {number} must be numbers, got {text[:40]!r}")
    values = np.array(found, np.float64)
    return values.astype(np.int64) if are_whole(values) else values


def _input(model: Model, example: Array, number: int) -> Array:
    config = model.config
    example = np.asarray(example)
    got = f"got {example.dtype} of shape {example.shape}"
    if config.vocab_size is not None:
        if example.ndim != 1 or example.dtype.kind not in "ui" or not len(example):
            raise ValueError(f"example {number} must be tokens, whole numbers (L,), {got}")
        if example.min() < 0 or example.max() >= config.vocab_size:
            most = config.vocab_size - 1
            wrong = example.min() if example.min() < 0 else example.max()
            raise ValueError(f"example {number}: tokens must be in 0 … {most}, got {wrong}")
        return example.astype(np.int64)
    values = example[:, None] if example.ndim == 1 else example
    if values.ndim != 2 or values.shape[1] != config.input_dim or values.dtype.kind not in "uif":
        raise ValueError(f"example {number} must be numbers (L, {config.input_dim}), {got}")
    if not len(values):
        raise ValueError(f"example {number} must have one position or more, {got}")
    values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"example {number} holds NaN or infinite values; fill them first")
    return values


def _answer(
    output: torch.Tensor, head: str, names: Sequence[str] | None, last: int | None, number: int
) -> dict[str, Any]:
    if head == "regression":
        assert last is not None
        shown = output[-last:]
    else:
        shown = (output[-1] if head == "language" else output).softmax(-1)
    if not shown.isfinite().all():
        raise ValueError(
            f"example {number}: the model answers NaN or infinite values; its numbers may be far "
            "larger than those of training"
        )
    if head == "regression":
        return {"prediction": shown.tolist()}
    best = int(shown.argmax())
    answer: dict[str, Any] = {"prediction": best, "probability": float(shown[best])}
    return answer | ({"name": names[best]} if names else {})
