"""A run's record: what was run, on what data, how it went and what came out. Needs no torch.

One type is written, read (also what earlier versions wrote) and thinned here, and nowhere else.
A run's folder holds

=====================  ====================================================================
``record.json``        a :class:`Record`
``curves.jsonl``       one JSON object a line: step, epoch, split, loss, metric, lr, seconds
``model.safetensors``  the selected weights, with the model's options in ``config.json``
``checkpoints/``       the last two states; deleted when the run has finished
=====================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from longlens.files import replace_file, to_json
from longlens.runs.document import SCHEMA, now, read_document, seconds_between
from longlens.training.log import Log
from longlens.training.mirror import Mirror
from longlens.training.options import PLACEMENT, TrainOptions
from longlens.untrusted import check_shape, shape_of

RECORD = "record.json"
BUSY = "busy"  # the status of a run that another process works on
DAMAGED = "damaged"  # the status of a run whose record cannot be read
CUT_OFF = "cut off"  # the status of a run that was killed: it says running, and nobody works on it
LOCK = ".lock"  # in a run's folder, held by the process that trains it
POINTS = 60  # of a thinned curve
DIGITS = 6  # significant ones of a thinned record
# Short names of places in a record, for `longlens runs`.
FIELDS = {
    "tokens/s": "speed.tokens_per_second", "flop/s": "speed.flops_per_second",
    "peak": "speed.share_of_peak", "seconds": "train_seconds", "memory": "peak_memory_mib",
    "commit": "provenance.commit", "torch": "provenance.torch", "data": "data.identity",
    "stands_in_for": "data.stands_in_for",
}  # fmt: skip
SPLITS = ("validation", "test")

Groups = dict[str, dict[str, float | None]]  # by depth: {"3": {"accuracy": 0.5, "count": 8}}
Metrics = dict[str, float | Groups | None]  # of a split: {"loss": 0.7, "accuracy_by_depth": …}


class Data(TypedDict, total=False):
    """What a run was trained on; ``identity`` is the hash of its content."""

    name: str
    identity: str
    version: int
    options: dict[str, Any]
    examples: dict[str, int]
    stands_in_for: str
    selected_on: str
    target_length: int  # of a regression: the last positions, to which its targets belong


class MetricName(TypedDict, total=False):
    """What runs on a task are judged by."""

    name: str
    higher_is_better: bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that is kept of a run beside its weights and its curves.

    >>> record = Record(status="finished", metric={"name": "accuracy"},
    ...                 metrics={"test": {"loss": 1.0, "accuracy": 0.5}})
    >>> record.value("test"), record.get("test.loss"), record.value("validation")
    (0.5, 1.0, None)
    """

    status: str
    """running, finished, stopped or failed; "busy", "damaged" and "cut off" stand in no file."""
    name: str = ""
    """Of the run's folder."""
    error: str | None = None
    row: str | int | float | None = None
    """Where an experiment's table shows the run."""
    column: str | int | float | None = None
    task: str | None = None
    mixer: str | None = None
    protocol: str | None = None
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Of ``longlens train``; in results those alone that are not the default."""
    provenance: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    clean: bool | None = None
    """Whether the code was that of its commit, in every process that contributed."""
    data: Data = field(default_factory=Data)
    metric: MetricName = field(default_factory=MetricName)
    metrics: dict[str, Metrics | None] = field(default_factory=dict)
    """By split, at the selected step."""
    parameters: int | None = None
    device: str | None = None
    deterministic: bool | None = None
    world_size: int | None = None
    steps: int | None = None
    total_steps: int | None = None
    micro_batch: int | None = None
    selected_step: int | None = None
    epochs: float | None = None
    started: str | None = None
    ended: str | None = None
    train_seconds: float | None = None
    """Of training itself, in all processes: steps, evaluations and checkpoints, without pauses."""
    wall_seconds: float | None = None
    """From ``started`` to ``ended`` by the clock, with data, compilation and pauses; None where the
    clock was set back beyond the start."""
    speed: dict[str, float | None] = field(default_factory=dict)
    """Rates over the steps that nothing interrupted, on the machine that came last."""
    peak_memory_mib: float | None = None
    """The most of any process."""
    ablations: dict[str, Any] | None = None
    transfer: dict[str, Any] | None = None
    """Metrics on other test data, by the names of ``transfer_options``."""
    events: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, list[list[float | None]]] = field(default_factory=dict)
    """In results, ``split.quantity`` to pairs of step and value, thinned."""
    folder: Path | None = field(default=None, compare=False)
    """Where it was read; stands in no file."""
    quick: bool = field(default=False, compare=False)
    """Whether it is of ``longlens run --quick``, and no result; stands in no file either."""

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], folder: Path | None = None, where: str = "it"
    ) -> Record:
        """Make a record of what :func:`read_document` read; keys that are not known are left out.

        Raises:
            ValueError: a value is not of its type.
        """
        check_shape(values, _SHAPE, where)
        known = {f.name for f in fields(cls) if f.name not in ("folder", "quick")}
        return cls(
            **{k: v for k, v in values.items() if k in known and v is not None}, folder=folder
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what the record does not say is left out."""
        unwritten = ("folder", "quick")
        values = {k: v for k, v in vars(self).items() if k not in unwritten and v is not None}
        return {k: v for k, v in values.items() if v not in ({}, [], "")}

    def get(self, name: str) -> Any:
        """The value of a column of ``longlens runs``, None where there is none.

        ``validation`` and ``test`` are the metric there, ``test.loss`` another one; further names
        are those of ``FIELDS``, of the record and of the options; a dot reaches into a nested one.
        """
        if name == "status" and self.quick and self.is_finished:
            return "quick"
        split, _, which = name.partition(".")
        if split in SPLITS:
            return inside(self.metrics, f"{split}.{which or self.metric_name}")
        value = inside(vars(self), FIELDS.get(name, name))
        if value is not None or name == "steps":  # those that were done, not those asked for
            return value
        # An option that did not exist yet has its default, which is what was done before.
        return inside({**_defaults(), **self.options} if self.options else {}, name)

    @property
    def metric_name(self) -> str:
        """The name of the metric that runs of this task are judged by."""
        return self.metric.get("name") or "loss"

    @property
    def is_finished(self) -> bool:
        """Whether it was trained to its end."""
        return self.status == "finished"

    def value(self, split: str) -> float | None:
        """The metric on a split; None if the run is not finished or the metric is not finite."""
        value = (self.metrics.get(split) or {}).get(self.metric_name)
        return float(value) if self.is_finished and isinstance(value, int | float) else None

    def groups(self, split: str = "test") -> dict[str, Groups]:
        """The metrics by group: {"accuracy_by_depth": {"3": {"accuracy": 0.5, "count": 8}}}."""
        metrics = self.metrics.get(split) or {}
        return {name: table for name, table in metrics.items() if isinstance(table, dict)}

    def without_end(self) -> Record:
        """What is known of a run of which pretraining alone has a record: this one."""
        status = CUT_OFF if self.is_finished else self.status
        return replace(self, status=status, metrics={}, speed={}, peak_memory_mib=None, steps=None)

    def thinned(self, lines: Iterable[Mapping[str, Any]] = ()) -> Record:
        """What results keep: options that were given, rounded numbers, and thinned curves.

        Args:
            lines: of the run's curves.
        """
        status, error = self.status, self.error
        if status not in ("finished", "failed", "stopped"):
            status = "failed" if status == DAMAGED else "stopped"
            error = error or "no end is recorded: killed, or still running"
        curves: dict[str, list[list[float | None]]] = {}
        epochs = self.epochs
        for line in lines:
            epochs = max(epochs or 0.0, line.get("epoch") or 0.0)
            for quantity in dict.fromkeys(("loss", self.metric_name)):
                if isinstance(value := line.get(quantity), int | float):
                    points = curves.setdefault(f"{line['split']}.{quantity}", [])
                    points.append([line["step"], value])
        return replace(
            Record(**rounded(vars(self))),
            status=status,
            error=error,
            options=given_options(self.options),
            epochs=epochs,
            events=[],
            curves={name: rounded(thin(points, POINTS)) for name, points in curves.items()},
        )


_SHAPE = {k: shape for k, shape in shape_of(Record).items() if k not in ("folder?", "quick?")}


def inside(values: Any, path: str) -> Any:
    """The value at a path of keys with dots between them, None where there is none.

    >>> inside({"a": {"b": 1}}, "a.b"), inside({"a": 2}, "a.b")
    (1, None)
    """
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


@cache
def _defaults() -> dict[str, Any]:
    """What an option is that a run does not state."""
    return TrainOptions().to_json()


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Task, mixer and seed, and the options that decide what is computed and are not the default.

    >>> given_options({"task": "text", "lr": 0.1, "dim": 128, "runs": "runs"})
    {'task': 'text', 'lr': 0.1}
    """
    defaults = _defaults()
    return {
        name: value
        for name, value in options.items()
        if name in ("task", "mixer", "seed")
        or (name not in PLACEMENT and value != defaults.get(name))
    }


def thin(points: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the points, evenly chosen, with the first and the last.

    >>> thin([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def rounded(value: Any) -> Any:
    """The same JSON value with floats of six significant digits.

    >>> rounded({"a": [1 / 3, 1, None]})
    {'a': [0.333333, 1, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


class RecordWriter(Log):
    """The folder of a run that is being trained: its record, replaced as a whole, and its curves.

    >>> import tempfile
    >>> writer = RecordWriter(Path(tempfile.mkdtemp()) / "a")
    >>> writer.update(status="running", seed=3)
    >>> writer.close()
    >>> read_record(writer.folder) == Record(name="a", status="running", seed=3)
    True
    """

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        there = (folder / RECORD).exists()
        self.record = read_record(folder) if there else Record(name=folder.name, status="")
        super().__init__(folder, mirror)

    def update(self, **values: Any) -> None:
        """Set fields of the record, atomically."""
        self.record = replace(self.record, **values)
        content = {"schema": SCHEMA, **self.record.to_json()}
        replace_file(self.folder / RECORD, to_json(content))

    def event(self, kind: str, **details: Any) -> None:
        """Add an event (resume, skip …) with the time."""
        self.update(events=[*self.record.events, {"kind": kind, "time": now(), **details}])

    def end(self, status: str, **values: Any) -> None:
        """Say that the run has ended, and how."""
        ended = now()
        wall = seconds_between(self.record.started, ended)
        if wall is not None and wall < 0:  # the clock was set back
            wall = None
        self.update(status=status, ended=ended, wall_seconds=wall, **values)


def read_record(folder: Path | str) -> Record:
    """Read a run's ``record.json``.

    Raises:
        ValueError: there is none, it is damaged, or a newer version wrote it.
    """
    path = Path(folder) / RECORD
    if not Path(folder).exists():
        raise ValueError(f"there is no folder {folder} (`longlens runs` lists what there is)")
    if not path.exists():
        raise ValueError(f"{folder} is no run: it has no {RECORD}")
    values = read_document(path)
    try:
        record = Record.from_json(values, Path(folder))
        if record.is_finished:
            for name in ("options", "data.identity", "metric.name", "metrics"):
                if not inside(vars(record), name):
                    raise ValueError(f"{name} is missing")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return record
