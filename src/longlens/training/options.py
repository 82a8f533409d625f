"""The options of a training run: one flat, typed record. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from longlens.config import ModelOptions, typed
from longlens.files import sha256_of
from longlens.training.budget import seconds
from longlens.untrusted import check_folder_name

PROTOCOLS = ("scratch", "denoise", "values", "scratchpad", "augment", "pretrain")
CHOICES = {
    "schedule": ("cosine", "linear", "constant", "plateau"),
    "dtype": ("auto", "float32", "bfloat16"),
    "device": ("auto", "cpu", "cuda"),
    "graphs": ("auto", "none", "step", "inductor"),
    "nonfinite": ("stop", "skip", "rollback"),
    "resume": ("auto", "require", "restart"),
    "parallel": ("ddp", "fsdp"),
    "pretrain_kind": ("masked", "causal"),
    "shapes": ("each", "any"),
    "optimizer": ("adamw", "muon"),
    "pixels": ("auto", "numbers", "tokens"),
    "train_on": ("train", "train+validation"),
    "ablate": ("none", "heads"),
    "positions": ("none", "learned", "sinusoidal", "rotary"),
    "norm": ("layer", "rms", "scale", "batch"),
    "residual": ("float32", "autocast"),
    "feedforward": ("mlp", "silu", "glu", "none"),
    "pooling": ("mean", "last", "cls", "none"),
}
LEAST = {
    **dict.fromkeys(("steps", "batch_size", "log_every", "buckets", "multiple", "depth", "dim"), 1),
    **dict.fromkeys(("evaluate_every", "evaluate_batch", "limit", "length", "keep_checkpoints"), 1),
    **dict.fromkeys(("pretrain_steps", "plateau_patience", "views"), 1),
    **dict.fromkeys(("lr", "warmup", "weight_decay", "clip", "seed", "patience", "final_lr"), 0),
    **dict.fromkeys(("denoise_weight", "checkpoint_seconds"), 0),
    **dict.fromkeys(("collapse", "collapse_steps"), 0),
    "collapse_depth": 1,
}

# Options that say where and how a run is watched and kept. All others decide what it computes:
# they make up the run's name and must be the same when it is resumed.
PLACEMENT = frozenset(
    {
        "runs", "name", "resume", "root", "device", "parallel", "resident", "nonfinite",
        "checkpoint_seconds", "keep_checkpoints", "small_checkpoints", "progress", "log",
        "tensorboard",  # of earlier records; now log
    }
)  # fmt: skip


@dataclass(frozen=True)
class DataOptions:
    """What a run learns from."""

    task: str = "listops"
    """A name of `longlens data list`, or of a task that you imported."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """The task's own options, as for `longlens data prepare`."""
    length: int | None = None
    """Cut examples to this many positions; the window of a next-token task (there 512 if None)."""
    limit: int | None = None
    """Train on this many examples only, the first of a fixed random order."""
    train_on: str = "train"
    """train, or train+validation: can the model fit both? Validation then measures no
    generalisation, and the record says so."""


@dataclass(frozen=True)
class TrainOptions(ModelOptions, DataOptions):  # in this order the data's fields come first
    """Options of ``longlens train``: data, model, and how it is trained.

    >>> options = TrainOptions(task="listops", mixer="s4d", steps=100)
    >>> options.protocols, options.default_name()
    (('scratch',), 'listops-s4d-0-f4b5dde3')
    """

    pixels: str = "auto"
    """How images are read: as numbers (a linear map, as in S4 and LaS) or as tokens (an embedding
    of each brightness); auto: numbers, unless the protocol hides tokens."""

    # --- protocol ---
    protocol: str = "scratch"
    """scratch, or any of denoise, values, scratchpad, augment and pretrain joined by "+", as in
    denoise+augment."""
    denoise_weight: float = 1.0
    """Weight of the second loss under denoise, values and scratchpad."""
    augment_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the task's augmentation (protocol augment), as in {"policy": false} for
    image and {"redraw": true} for listops."""
    mix_easier: bool = False
    """Train on easier sets as well (pathfinder, pathx: easy and intermediate images; listops:
    shorter expressions); validation and test stay the task's own."""
    collapse: int = 0
    """ListOps: train on this many more copies of every expression, in which operators chosen at
    random are replaced by their values; an epoch has them all. Validation and test stay whole."""
    collapse_depth: int | None = None
    """ListOps: the first steps go from lists of digits to trees of this many levels, operators
    below them replaced by their values. None: 1 with collapse, and no such steps without."""
    collapse_steps: int = 2000
    """How many these first steps are, as many for each level. Epochs do not count them, steps and
    budgets do."""
    mask_rate: float = 0.3
    """Share of the tokens that denoise and masked pretraining hide."""
    pretrain_kind: str = "masked"
    """What pretraining predicts: masked tokens, or (causal) the next one."""
    pretrain_steps: int | None = None
    """Steps of pretraining; None: as many as of training."""

    # --- how long ---
    steps: int | None = None
    """Optimisation steps. Give one of steps, epochs and budget; else ten epochs."""
    epochs: float | None = None
    """Passes over the training split."""
    budget: str | None = None
    """Wall time once the data are there, as in 90s, 8m or 1.5h; fixes steps after a timing."""

    # --- optimisation ---
    optimizer: str = "adamw"
    """adamw, or muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest."""
    batch_size: int = 64
    """Examples of a step, over all ranks."""
    micro_batch: int | str | None = None
    """Rows a rank computes at once; auto: the most that fit in memory; None: all."""
    lr: float = 1e-3
    """Peak learning rate; parameters that carry their own keep it (scaled by the schedule)."""
    schedule: str = "cosine"
    """One of cosine, linear, constant and plateau, after the warm-up."""
    warmup: float = 0.05
    """Steps of linear warm-up if 1 or more, else a share of all steps."""
    final_lr: float = 0.0
    """Where cosine and linear end, as a share of the peak."""
    plateau_patience: int = 5
    """Evaluations without improvement after which plateau lowers the learning rate."""
    plateau_factor: float = 0.5
    """By what plateau multiplies the learning rate each time."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    decay_vectors: bool = False
    """Decay biases, norms and other vectors as well."""
    beta1: float = 0.9
    """AdamW's first decay rate."""
    beta2: float = 0.98
    """AdamW's second decay rate."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""
    ema: float = 0.0
    """Decay of an average of the weights, used for evaluation; 0: none."""
    seed: int = 0
    """Decides initial weights, order of the data, dropout and everything else random."""

    # --- evaluation ---
    evaluate_every: int | None = None
    """Steps between evaluations; None: an epoch, or a tenth of all steps if that is less, but less
    often where evaluations would take more than a tenth of the work."""
    evaluate_batch: int | None = None
    """Examples of an evaluation batch, over all ranks; None: batch_size."""
    views: int = 1
    """In the end, average the probabilities over this many views of an example: itself, and copies
    augmented as in training."""
    patience: int = 0
    """Stop after this many evaluations without improvement; 0: never."""
    ablate: str = "none"
    """After training, also test with parts switched off: none, or heads (each attention head in
    turn, in all blocks and in each)."""
    transfer_options: Mapping[str, Any] = field(default_factory=dict)
    """After training, also test on other data: any name, and what differs of task_options, length
    and limit (examples), as in {"long": {"length": 4096}}."""
    log_every: int = 50
    """Steps between lines of the training curve."""

    # --- arithmetic ---
    device: str = "auto"
    """One of auto, cpu and cuda."""
    dtype: str = "auto"
    """One of auto, float32 and bfloat16 (autocast); auto: bfloat16 on cuda."""
    compile: bool | None = None
    """Use torch.compile; None: on cuda only."""
    compile_blocks: bool = False
    """Compile one block of the model and use it for all of them: starts much sooner, but what lies
    between blocks is not fused."""
    graphs: str = "auto"
    """CUDA graphs: none, step (capture whole steps) or inductor (torch.compile's own); auto: step
    in a single process on cuda."""
    shapes: str = "each"
    """What torch.compile makes for data of varying length: a program for each padded length
    (fastest), or one for any (quickest to start)."""
    buckets: int = 8
    """Padded lengths at most, for data of varying length: few shapes to compile."""
    multiple: int = 64
    """Padded lengths are multiples of this."""
    deterministic: bool = False
    """Use kernels that give the same bits every time (a CPU's always do)."""
    resident: bool | None = None
    """Keep the data on the device; None: where they fit in half of its free memory."""
    parallel: str = "ddp"
    """Under torchrun: ddp, or fsdp (weights and optimiser in shards)."""

    # --- faults, files, and what is shown ---
    nonfinite: str = "stop"
    """A loss or gradient that is not finite: stop (batch saved), skip, or rollback past it."""
    runs: str = "runs"
    """Folder of records."""
    name: str | None = None
    """Name of this run's folder; None: task-mixer-seed-hash of the options."""
    resume: str = "auto"
    """auto: go on where there is a checkpoint; require: fail if there is none; restart: anew."""
    root: str | None = None
    """The data cache; None: $LONGLENS_DATA, else the platform's cache folder."""
    checkpoint_seconds: float = 300.0
    """Time between checkpoints (they are written at lines of the training curve)."""
    keep_checkpoints: int = 2
    """How many checkpoints stay."""
    small_checkpoints: bool = False
    """Moments in bfloat16: about half the size, but resuming is no longer bit-identical."""
    progress: bool = True
    """Show progress."""
    log: str = "none"
    """Also send the curves to tensorboard, wandb, trackio, or any module with wandb's init, log and
    finish."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        for name in ("task", "mixer", "name"):  # the run's folder has its name from these
            if getattr(self, name) is not None:
                check_folder_name(getattr(self, name), name)
        for name in ("task_options", "mixer_options", "augment_options", "transfer_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(
                    f'{name} must be a mapping, as in {{"name": 1}}, got {getattr(self, name)!r}'
                )
        for name, given in self.transfer_options.items():
            if not isinstance(given, Mapping) or {*given} - {"task_options", "length", "limit"}:
                raise ValueError(
                    f"transfer_options.{name} must hold task_options, length or limit, as in "
                    f'{{"length": 4096}}, got {given!r}'
                )
        if self.transfer_options and self.positions == "learned":
            raise ValueError("transfer_options needs other positions than learned ones, which end")
        for part in self.protocols:
            if part not in PROTOCOLS or (part == "scratch" and len(self.protocols) > 1):
                raise ValueError(
                    "protocol must be scratch, or some of denoise, values, scratchpad, augment and "
                    f'pretrain joined by "+", got {self.protocol!r}'
                )
        if self.views > 1 and "augment" not in self.protocols:
            raise ValueError(
                f"views={self.views} needs a protocol with augment, which makes the copies, got "
                f"{self.protocol!r}"
            )
        if len({"denoise", "values", "scratchpad"} & set(self.protocols)) > 1:
            raise ValueError(
                "denoise, values and scratchpad are each a second loss, and there can be one, got "
                f"{self.protocol!r}"
            )
        if {"pretrain", "scratchpad"} <= set(self.protocols):
            raise ValueError(f"a scratchpad has no pretraining, got {self.protocol!r}")
        cuts = [self.length, *(given.get("length") for given in self.transfer_options.values())]
        if "scratchpad" in self.protocols and any(length is not None for length in cuts):
            raise ValueError("length would cut expressions off a scratchpad; use task_options")
        given = [n for n in ("steps", "epochs", "budget") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of steps, epochs and budget, not {' and '.join(given)}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, got {self.seed}")
        for name in ("beta1", "beta2", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in 0 … 1, without 1, got {getattr(self, name)}")
        for name in ("mask_rate", "plateau_factor"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if isinstance(self.micro_batch, str) and self.micro_batch != "auto":
            raise ValueError(f"micro_batch must be a number or auto, got {self.micro_batch!r}")
        if isinstance(self.micro_batch, int) and self.micro_batch < 1:
            raise ValueError(f"micro_batch must be 1 or more, got {self.micro_batch}")
        if self.budget is not None:
            seconds(self.budget)  # raises where it is no duration
        if self.epochs is not None and self.epochs <= 0:
            raise ValueError(f"epochs must be more than 0, got {self.epochs}")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> TrainOptions:
        """Make options of values by their names, as a file or a program gives them.

        Raises:
            ValueError: a name is unknown, or a value has the wrong type or is out of range.

        >>> TrainOptions.from_values({"mixer": "las", "lr": "1e-4"}).lr
        0.0001
        """
        return cls(**typed(cls, values, "longlens train", convert=True))

    @property
    def protocols(self) -> tuple[str, ...]:
        """The parts of ``protocol``."""
        return tuple(self.protocol.split("+"))

    def to_json(self) -> dict[str, Any]:
        """All options as plain JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=dict))
        return values

    def identity(self) -> dict[str, Any]:
        """The options that decide what the run computes."""
        return {key: value for key, value in self.to_json().items() if key not in PLACEMENT}

    def default_name(self) -> str:
        """``task-mixer-seed-hash``; options left at their default do not change the hash."""
        defaults: dict[str, Any] = {
            f.name: {} if f.name.endswith("_options") else f.default for f in fields(type(self))
        }
        given = {key: value for key, value in self.identity().items() if value != defaults[key]}
        text = json.dumps(given, sort_keys=True)
        digest = sha256_of(text)[:8]
        return f"{self.task}-{self.mixer}-{self.seed}-{digest}"


def recorded_identity(options: Mapping[str, Any]) -> dict[str, Any]:
    """What decided an earlier run, of which ``options`` are recorded.

    An option that did not exist yet has its default, which must be what was done before: so runs
    outlive new options.

    >>> then = recorded_identity({"lr": 0.1, "name": "a"})
    >>> then["lr"], then["clip"], "name" in then
    (0.1, 1.0, False)
    """
    given = {key: value for key, value in options.items() if key not in PLACEMENT}
    return TrainOptions().identity() | given


def difference(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """Say in which options two runs differ, or return an empty string.

    >>> difference({"lr": 0.1, "dim": 8}, {"lr": 0.2, "dim": 8})
    'lr is 0.1, was 0.2'
    """
    missing = "not there"
    return "; ".join(
        f"{key} is {now.get(key, missing)}, was {then.get(key, missing)}"
        for key in sorted({*now, *then})
        if now.get(key, missing) != then.get(key, missing)
    )
