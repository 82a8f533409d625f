"""What is looked at: a fresh mixer of the zoo, or the model of a trained run, with its inputs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longlens import tasks
from longlens.config import ModelConfig
from longlens.layers.registry import MIXERS, build, options_of, unknown
from longlens.models.build import Model, build_model, load_model
from longlens.models.pretrained import CONFIG, WEIGHTS
from longlens.runs.folders import find_run
from longlens.runs.record import RECORD, Record
from longlens.runs.trained import uses_scratchpad
from longlens.tasks.batches import Batches
from longlens.training.randomness import key as seed_key
from longlens.untrusted import check_shape

INPUTS = ("task", "random")
CANDIDATES = 64  # examples among which the longest are taken


@dataclass(frozen=True)
class Subject:
    """A model or a single layer, and what each of its mixers sees."""

    name: str
    mixer: str
    run: Path | None
    stage: str
    """"fresh", "trained" or "before training"."""
    layers: list[tuple[nn.Module, Tensor]]
    """Each mixer with its input (B, L, D)."""
    body: Callable[[Tensor], Tensor] | None
    """The whole stack of blocks, (B, L, D) -> (B, L, D); None for a single layer."""
    start: Tensor
    """What the stack starts from, (B, L, D)."""
    inputs: str
    """What the inputs are, in words."""
    origin: dict[str, Any]
    """Options, seed and data behind it."""

    @property
    def causal(self) -> bool:
        """Whether no mixer looks ahead."""
        return all(bool(layer.causal) for layer, _ in self.layers)


def find_subjects(
    text: str,
    *,
    length: int | None = None,
    dim: int = 64,
    batch: int = 4,
    seed: int = 0,
    inputs: str = "task",
    before: bool = True,
) -> list[Subject]:
    """The subjects that a word of the command line means.

    Args:
        text: a key of ``longlens layers``, with options as in ``las:bound=0.05,window=9``, or the
            folder of a run. A key wins over a folder of the same name: write ``./las`` for that.
        length: positions; None: 512 for a mixer, what the run was trained at (512 at most) for a
            run.
        dim: width of a fresh mixer.
        batch: sequences to average over.
        seed: of a fresh mixer's weights and of random inputs.
        inputs: for a run, "task": examples of its validation split; "random": random ones.
        before: also the run's model as it was before training.

    Raises:
        ValueError: for an unknown name, a run without weights, or data that are not there.

    >>> (subject,) = find_subjects("las:num_heads=2", length=16, dim=8)
    >>> subject.mixer, subject.stage, subject.layers[0][1].shape
    ('las', 'fresh', torch.Size([4, 16, 8]))
    """
    if inputs not in INPUTS:
        raise ValueError(f"inputs must be one of {INPUTS}, got {inputs!r}")
    if length is not None and length < 2:
        raise ValueError(f"length must be at least 2, got {length}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    word, _, rest = text.partition(":")
    if word in MIXERS:
        return [_fresh(text, word, _options(text, rest), length or 512, dim, batch, seed)]
    folder = Path(text)
    if folder.is_dir():
        return _run(folder, length, batch, seed, inputs, before)
    if "/" in text or "\\" in text:
        raise ValueError(f"there is no folder {text}, and it is no mixer either")
    raise unknown("mixer or run", word, MIXERS)


def _options(text: str, rest: str) -> dict[str, Any]:
    """``a=1,b=x`` as keyword arguments; values are Python literals, or else plain strings."""
    options: dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"options are written as in las:bound=0.05,window=9, got {text!r}")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def _fresh(
    text: str, mixer: str, options: dict[str, Any], length: int, dim: int, batch: int, seed: int
) -> Subject:
    if "dim" in options:
        raise ValueError(f"dim is no option of a mixer here; give --dim, got {text!r}")
    if "max_length" in options_of(mixer):
        options = {"max_length": length, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # attention layers of one width then share their projections
        layer = build(mixer, dim, **options).eval()
    x = torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(seed))
    words = f"standard normal, {batch} × {length} × {dim}"
    origin = {"options": options, "dim": dim, "seed": seed}
    return Subject(text, mixer, None, "fresh", [(layer, x)], None, x, words, origin)


def _run(
    folder: Path, length: int | None, batch: int, seed: int, inputs: str, before: bool
) -> list[Subject]:
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} is no run: it has no {CONFIG}")
    recorded = find_run(folder) if (folder / RECORD).exists() else None
    if not (folder / WEIGHTS).exists():
        status = recorded.status if recorded else "unknown"
        raise ValueError(
            f"{folder} has no weights ({WEIGHTS}): its status is {status!r}; a run's weights are "
            "written when it has finished"
        )
    if recorded and uses_scratchpad(recorded):
        raise ValueError(
            f"{folder} was trained on a scratchpad, and views show a model on bare inputs"
        )
    model = load_model(folder)
    config: ModelConfig = model.config
    size = min(length or 512, config.max_length)
    if inputs == "task":
        x, words = _examples(folder, recorded, size, batch)
    else:
        x, words = _random(config, size, batch, seed)
    kept = ("task", "seed", "steps", "data", "provenance")
    origin = {name: getattr(recorded, name) for name in kept} if recorded else {}
    trained = _subject(folder, config, model, x, words, origin)
    if not before or recorded is None:
        return [trained]
    with torch.random.fork_rng(devices=[]):  # initial weights depend on the seed alone
        torch.manual_seed(seed_key(recorded.seed, "weights"))
        first = build_model(config)
    start = _subject(folder, config, first, x, words, origin)
    named = replace(start, name=f"{trained.name}, before training", stage="before training")
    return [named, trained]


@torch.no_grad()
def _subject(
    folder: Path, config: ModelConfig, model: Model, x: Tensor, words: str, origin: dict[str, Any]
) -> Subject:
    model = model.eval()
    seen: list[Tensor] = []
    mixers = model.backbone.mixers()
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for m in mixers]
    start, _ = model.encoding(x)
    model.backbone(start)
    for hook in hooks:
        hook.remove()
    layers = list(zip(mixers, seen, strict=True))
    name = folder.resolve().name
    return Subject(
        name, config.mixer, folder, "trained", layers, model.backbone, start, words, origin
    )


def _examples(folder: Path, recorded: Record | None, length: int, batch: int) -> tuple[Tensor, str]:
    """Whole sequences of the run's validation split, the longest of the first few, cut alike."""
    if recorded is None:
        raise ValueError(f"{folder} has no {RECORD}, so the task is not known; use --inputs random")
    options = recorded.options
    try:
        check_shape(options, {"task": str, "root?": str, "task_options": {}}, "options")
        task = tasks.load(
            options["task"], options.get("root"), verify="size", **options["task_options"]
        )
    except (ValueError, OSError) as error:
        raise ValueError(
            f"the data of {folder} cannot be read ({error}); use --inputs random"
        ) from None
    if task.identity != recorded.data["identity"] and not options.get("mix_easier"):
        raise ValueError(
            f"the data of {folder} were replaced: {task.name} has identity {task.identity[:16]}…, "
            f"had {recorded.data['identity'][:16]}…; use --inputs random"
        )
    regression = task.spec.kind == "regression"  # cannot be cut
    batches = Batches(
        task["validation"],
        CANDIDATES,
        length=None if regression else length,
        shuffle=False,
        buckets=1,
    )
    first = next(batches.epoch(0))
    x, mask = first.inputs, first.mask
    if task.spec.pair:
        x, mask = x.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
    if mask is not None:
        lengths, order = mask.sum(-1).sort(descending=True, stable=True)
        x = x[order[:batch], : int(lengths[:batch].min())]
    x = x[:batch, :length]
    return x, f"{task.name}, validation split, {x.shape[0]} × {x.shape[1]}"


def _random(config: ModelConfig, length: int, batch: int, seed: int) -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(seed)
    if config.vocab_size is None:
        x = torch.randn(batch, length, config.input_dim, generator=generator)
        return x, f"standard normal, {batch} × {length} × {config.input_dim}"
    x = torch.randint(config.vocab_size, (batch, length), generator=generator)
    return x, f"random tokens, {batch} × {length}"
