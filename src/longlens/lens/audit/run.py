"""The audit itself: diagnostics, a sweep of models, and what they say together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longlens import tasks
from longlens.config import ModelConfig
from longlens.layers.registry import MIXERS, unknown
from longlens.lens.audit.diagnostics import diagnose
from longlens.lens.audit.judge import judge
from longlens.lens.audit.model import shuffled_accuracy
from longlens.lens.audit.options import AuditOptions
from longlens.lens.audit.shown import shown_examples
from longlens.models.build import build_mixer
from longlens.models.pretrained import WEIGHTS
from longlens.runs import sweep
from longlens.runs.document import SCHEMA, now
from longlens.runs.finished import finished_record
from longlens.runs.record import Record
from longlens.runs.run import run_folder
from longlens.tasks import Task
from longlens.tasks.batches import check_cut
from longlens.tasks.farfield import certificate
from longlens.tasks.farfield.certificate import OPTIONS as FARFIELD
from longlens.tasks.mix import with_easier_sets
from longlens.training.faults import TrainingError
from longlens.training.options import TrainOptions

Report = dict[str, Any]


def audit(options: AuditOptions, save: Callable[[Report], None] | None = None) -> Report:
    """Audit a task; models that are trained already are not trained again.

    Args:
        options: see :class:`AuditOptions`.
        save: called with the result so far after every step of the way.

    Returns:
        the content of ``results/audit_TASK.json``.

    Raises:
        ValueError: the task has no classes, or an option is wrong.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = audit(AuditOptions("far-order", dict(distance=4, train=8, validation=4, test=4),
    ...     fields=(3,), seeds=1, steps=1, training=dict(dim=8, depth=1, batch_size=4),
    ...     diagnostics=False, runs=folder, root=folder, progress=False))
    >>> report["points"][0]["receptive_field"], report["global"][0]["mixer"]
    (3, 's4d')
    """
    task = load_task(options)
    report = empty_report(options, task)
    save = save or (lambda values: None)
    say(options, "diagnostics" if options.diagnostics else "linear probes")
    report["diagnostics"] = diagnose(
        task, options.quick, options.training.get("length"), not options.diagnostics
    )
    save(report)
    models = _models(options, task, report["options"]["fields"])
    records: dict[int, Record] = {}

    def each(place: int, record: Record) -> None:
        records[place] = record
        say(options, f"{models[place].name}: {_result(record)}")
        # in the order of the models, whichever process finished first
        add_models(report, [(models[number], records[number]) for number in sorted(records)])
        save(report)

    sweep([model.run for model in models], workers=options.workers, each=each)
    if options.diagnostics and report["best"] is not None and not task.spec.pair:
        report["shuffled_model"] = _shuffle_best(options, task, report["best"])
        save(report)
    return report


def load_task(options: AuditOptions) -> Task:
    """Load the task, unless an option or the task itself makes an audit of it impossible."""
    for mixer in options.mixers:
        if mixer not in MIXERS:
            raise unknown("mixer", mixer, MIXERS)
    task = tasks.load(options.task, options.root, **options.data)
    check_labels(task)
    check_cut(task.spec, options.training.get("length"))
    return with_easier_sets(task, options.root) if options.training.get("mix_easier") else task


def empty_report(options: AuditOptions, task: Task) -> Report:
    """Everything that is known of an audit before anything was measured."""
    longest = min(task.spec.max_length, options.training.get("length") or task.spec.max_length)
    return {
        "schema": SCHEMA,
        "kind": "audit",
        "task": options.task,
        "metric": "accuracy",
        "started": now(),
        "options": _options(options, options.receptive_fields(longest)),
        "data": task.describe(),
        "shown": shown_examples(task),
        "certificate": certificate_of(task.name, task.options),
        "diagnostics": None,
        "chance": _chance(task),
        "length": int(np.median(np.minimum(task["test"].lengths, longest))),
        "points": [],
        "global": [],
    }


def _models(options: AuditOptions, task: Task, fields: list[int]) -> list[Model]:
    """Every model of the audit, seed by seed, so that an early end has something of each."""
    kinds: list[tuple[str, int | None]] = [(mixer, None) for mixer in options.mixers]
    kinds += [("conv", field) for field in fields]
    return [
        Model(mixer, field, seed, options.train_options(task.spec, mixer, field, seed))
        for seed in range(options.number_of_seeds)
        for mixer, field in kinds
    ]


def _provenance(records: Iterable[Record]) -> Report:
    """Where the models come from; several values where they differ."""
    origins = [record.provenance for record in records]
    return {
        name: ", ".join(dict.fromkeys(str(origin[name]) for origin in origins))
        for name in origins[-1]
    }


def check_labels(task: Task) -> None:
    """Raise for a task that has no classes."""
    if task.spec.kind != "classification":
        what = {"next_token": "predicts the next token", "regression": "predicts numbers"}
        raise ValueError(
            f"an audit needs a task with classes, but {task.name} {what[task.spec.kind]} and has "
            "no labels to be right about"
        )


@dataclass(frozen=True)
class Model:
    """One model of an audit: a convolution of a receptive field, or a mixer of any reach."""

    mixer: str
    field: int | None
    seed: int
    run: TrainOptions

    @property
    def title(self) -> str:
        """The model without its seed."""
        return self.mixer if self.field is None else f"conv {self.field}"

    @property
    def name(self) -> str:
        """The model for people."""
        what = self.mixer if self.field is None else f"field {self.field}"
        return f"{what}, seed {self.seed}"

    def point(self, record: Record) -> Report:
        """What the audit keeps of the model's record; of one that failed, the reason."""
        point = {
            "model": self.title,
            "receptive_field": self.field or bounded_field(self.run),
            "seed": self.seed,
            "run": run_folder(self.run).name,
        }
        kept = ("train_seconds", "steps", "parameters", "status", "error")
        return point | {
            **{split: record.value(split) for split in ("validation", "test")},
            **{name: getattr(record, name) for name in kept},
        }


def _result(record: Record) -> str:
    if not record.is_finished:
        return f"{record.status}: {record.error}"
    return f"test {record.value('test'):.4f}, {record.steps:,} steps"


def add_models(report: Report, done: Sequence[tuple[Model, Record]]) -> None:
    """Put what is known of the models so far into the report, and judge anew."""
    points = [(model, model.point(record)) for model, record in done]
    report["points"] = [p for _, p in points if p["receptive_field"] is not None]
    report["global"] = [
        {"mixer": model.mixer, **p} for model, p in points if p["receptive_field"] is None
    ]
    finished = [(model, record) for model, record in done if record.is_finished]
    if finished:
        report["provenance"] = _provenance(record for _, record in finished)
    report |= judge(report)
    report["groups"] = _groups(finished)
    report["ended"] = now()


def bounded_field(run: TrainOptions) -> int | None:
    """The positions that a whole model of a bounded mixer sees; None: all, or nobody knows.

    >>> bounded_field(TrainOptions("listops", mixer="las-chunk", steps=1, depth=4))
    128
    >>> bounded_field(TrainOptions("listops", mixer="local", steps=1, depth=4))
    509
    >>> bounded_field(TrainOptions("listops", mixer="s4d", steps=1)) is None
    True
    """
    config = ModelConfig(mixer=run.mixer, mixer_options=dict(run.mixer_options), dim=run.dim,
                         depth=run.depth, bidirectional=run.bidirectional)  # fmt: skip
    layers = [build_mixer(config, block) for block in range(run.depth)]
    fields = [getattr(layer, "receptive_field", None) for layer in layers]
    known = [int(field) for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    if any(getattr(layer, "chunk", None) is not None for layer in layers):
        return max(known)  # blocks lie where they lie, in every layer
    return 1 + sum(field - 1 for field in known)


def say(options: AuditOptions, text: str) -> None:
    """Print progress, where that is wanted."""
    if options.progress:
        print(f"audit {options.task}: {text}", file=sys.stderr, flush=True)


def _options(options: AuditOptions, fields: list[int]) -> Report:
    return {
        "task_options": options.data,
        "fields": fields,
        "mixers": list(options.mixers),
        "mixer_options": {name: dict(each) for name, each in options.mixer_options.items()},
        "seeds": options.number_of_seeds,
        "quick": options.quick,
        "depth": options.depth,
        "training": dict(options.training),
        **options.length_of_training,
    }


def _chance(task: Task) -> float:
    """Test accuracy without looking at an example: of the class that is most frequent there.

    A model that has learned nothing may name any class; so the best of these counts, whichever is
    the most frequent one in training.
    """
    targets = task["test"].targets
    return float(np.bincount(targets).max() / len(targets))


def certificate_of(task: str, options: Mapping[str, Any]) -> Report | None:
    """Of a far-field task, what is proven about it and what its generator was found to do."""
    if task not in FARFIELD:
        return None
    few = 200 if options["distance"] <= 1024 else 10
    return certificate(task, few, **options).to_json()


def _groups(finished: Sequence[tuple[Model, Record]]) -> Report:
    """Test accuracy by the task's extras (ListOps: operator, depth), averaged over seeds."""
    sums: dict[str, dict[str, dict[str, list[tuple[Any, Any]]]]] = {}
    for model, record in finished:
        for key, table in record.groups().items():
            name = key.removeprefix("accuracy_by_")
            for value, cell in table.items():
                row = sums.setdefault(name, {}).setdefault(model.title, {})
                row.setdefault(value, []).append((cell["accuracy"], cell["count"]))
    return {
        name: {
            model: {
                value: {"accuracy": float(np.mean([a for a, _ in cells])), "count": cells[0][1]}
                for value, cells in row.items()
            }
            for model, row in table.items()
        }
        for name, table in sums.items()
    }


def _shuffle_best(options: AuditOptions, task: Task, best: Report) -> Report:
    """How the best model fares, untrained for it, where the order of the input is destroyed."""
    convolution = best["model"] == f"conv {best['receptive_field']}"
    mixer = "conv" if convolution else best["model"]
    field = best["receptive_field"] if convolution else None
    run = options.train_options(task.spec, mixer, field, 0)
    accuracy: Report = {"model": best["model"], "seed": 0, "rows": []}
    folder = run_folder(run)
    try:
        there = finished_record(folder, run, task) is not None and (folder / WEIGHTS).exists()
    except TrainingError as error:  # it is of other data
        return accuracy | {"note": str(error)}
    if not there:  # failed, or its record alone was copied here
        return accuracy | {"note": f"{folder.name} has no weights"}
    return accuracy | {"rows": shuffled_accuracy(folder, task, run, few=options.quick)}
