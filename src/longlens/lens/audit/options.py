"""Options of an audit, and which models it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from longlens.tasks import Spec
from longlens.tasks.registry import find_task
from longlens.training.options import TrainOptions

# By default, as far as they fit; 241 is what four layers with kernels of 61 see.
FIELDS = (3, 5, 9, 17, 33, 61, 129, 241, 513, 1025, 2049, 4097)
SIZES = ("train", "validation", "test", "seed")  # options that make no other task of a task
LENGTHS = ("budget", "steps", "epochs")
QUICK_FIELDS = (3, 9, 33)
# What --quick makes of generated tasks; the rest keep their data.
QUICK_DATA: dict[str, dict[str, Any]] = {
    "listops": dict(train=8000, validation=500, test=1000, min_length=50, max_length=200),
    "pathfinder": dict(images=6000),
    "far-injection": dict(train=6000, validation=500, test=1000, distance=24),
    "far-listops": dict(train=6000, validation=500, test=1000, distance=16),
}
QUICK_FAR = dict(train=6000, validation=500, test=1000, distance=24)
# Named, whatever the defaults of `longlens train` are: verdicts were calibrated with these.
TRAINING = dict(optimizer="adamw", lr=1e-3, batch_size=32)
QUICK_TRAINING = TRAINING | dict(
    dim=32, depth=2, lr=3e-3, evaluate_every=150, evaluate_batch=100, buckets=2
)
OWN = {"task", "task_options", "mixer", "mixer_options", "seed", "runs", "root", "name", "progress",
       "resume"}  # fmt: skip


@dataclass(frozen=True)
class AuditOptions:
    """What to audit, and how thoroughly.

    Args:
        task: any task with classes: of `longlens data list`, or imported.
        task_options: the task's own options.
        fields: receptive fields of the convolutions; None: 3, 5, 9, 17, 33, 61, 129 … below the
            length of an example.
        mixers: global models beside them; () for none. Mixers that see a window or a block are
            trained, too, and count as bounded.
        mixer_options: keyword arguments of global mixers, by mixer.
        seeds: 0 … seeds-1 are trained.
        budget: wall time of each model, as in 90s or 8m.
        steps: or optimisation steps of each model.
        epochs: or passes over the training split.
        training: further options of `longlens train`, for all models.
        diagnostics: measure all that needs no training; False: the linear probes alone, which are
            the floor of the verdict.
        quick: small models and data: two CPU cores, five minutes in all.
        runs: folder of records.
        root: the data cache.
        progress: say what is being done.
        workers: models that are trained at a time, by processes of their own.

    >>> AuditOptions("listops", quick=True).length_of_training
    {'steps': 600}
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[int, ...] | None = None
    mixers: tuple[str, ...] = ("s4d",)
    mixer_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int | None = None
    budget: str | None = None
    steps: int | None = None
    epochs: float | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: bool = True
    quick: bool = False
    runs: str = "runs"
    root: str | None = None
    progress: bool = True
    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be 1 or more, got {self.workers}")
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"seeds must be 1 or more, got {self.seeds}")
        if self.fields is not None:
            bad = [r for r in self.fields if r < 1]
            if bad or len(set(self.fields)) < len(self.fields):
                raise ValueError(
                    f"fields must be different numbers of 1 or more, got {list(self.fields)}"
                )
            if not self.fields and not self.mixers:
                raise ValueError("fields and mixers are both empty: nothing to train")
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of budget, steps and epochs, not {' and '.join(given)}")
        for mixer in self.mixer_options:
            if mixer not in self.mixers:
                raise ValueError(f"mixer_options are for {mixer!r}, which is not among the mixers")
        known = {f.name for f in fields(TrainOptions)}
        for name in self.training:
            if name in OWN or name in LENGTHS:
                raise ValueError(f"{name!r} is an option of the audit itself, not of its training")
            if name not in known:
                raise ValueError(f"{name!r} is no option of longlens train")
        TrainOptions(**self.length_of_training, **self._training())  # raises for a wrong value

    @property
    def number_of_seeds(self) -> int:
        """How many seeds each model is trained with."""
        return self.seeds or (2 if self.quick else 3)

    @property
    def depth(self) -> int:
        """Blocks of each model."""
        return int(self._training().get("depth", TrainOptions.depth))

    @property
    def length_of_training(self) -> dict[str, Any]:
        """Budget, steps or epochs of each model."""
        given = {name: getattr(self, name) for name in LENGTHS if getattr(self, name) is not None}
        return given or ({"steps": 600} if self.quick else {"budget": "5m"})

    @property
    def data(self) -> dict[str, Any]:
        """The task's options, with those of a quick audit where nothing else is given."""
        small: dict[str, Any] = {}
        if self.quick:
            far = QUICK_FAR if self.task.startswith("far-") else {}
            small = QUICK_DATA.get(self.task, far)
            if small:  # only what the task knows
                names = {f.name for f in fields(find_task(self.task).options)}
                small = {name: value for name, value in small.items() if name in names}
        return {**small, **self.task_options}

    def _training(self) -> dict[str, Any]:
        """Options of `longlens train` that all models share."""
        shared: dict[str, Any] = dict(QUICK_TRAINING if self.quick else TRAINING)
        return shared | dict(self.training)

    def receptive_fields(self, length: int) -> list[int]:
        """The fields to train, rising; ``length`` is that of the longest example."""
        if self.fields is not None:
            return sorted(self.fields)
        every = QUICK_FIELDS if self.quick else FIELDS
        return [r for r in every if r < length] or [1]

    def train_options(
        self, spec: Spec, mixer: str, receptive_field: int | None, seed: int
    ) -> TrainOptions:
        """The run of one model; ``receptive_field`` None: a global mixer."""
        values = self._training()
        if spec.readout is not None:
            values.setdefault("pooling", spec.readout)
        if receptive_field is not None:
            values["mixer_options"] = {"kernel_size": kernels(receptive_field, self.depth)}
            if spec.readout == "last":  # all of the field before that position, none beyond the end
                values["bidirectional"] = False
        else:
            values["mixer_options"] = dict(self.mixer_options.get(mixer, {}))
        values |= {
            "task": self.task,
            "task_options": self.data,
            "mixer": mixer,
            "seed": seed,
            "runs": self.runs,
            "root": self.root,
            "progress": False,
            **self.length_of_training,
        }
        return TrainOptions.from_values(values)  # as a sweep reads them: the same name of the run


def kernels(receptive_field: int, depth: int) -> list[int]:
    """Kernel sizes of ``depth`` convolutions that see exactly ``receptive_field`` positions.

    >>> kernels(61, 4), kernels(3, 4), kernels(6, 2)
    ([16, 16, 16, 16], [2, 2, 1, 1], [4, 3])
    """
    each, rest = divmod(receptive_field - 1, depth)
    return [1 + each + (block < rest) for block in range(depth)]
