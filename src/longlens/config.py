"""Options as frozen dataclasses, for files and the command line. Standard library only.

Configs stop at the builder: ``longlens.models.build`` is the only code that reads them; layers
and models take flat keyword arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class ModelOptions:
    """What a user chooses of a model; its input and head follow from the task."""

    mixer: str = "las"
    """A key of `longlens layers`."""
    mixer_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the mixer; a list holds one value for each block."""
    bidirectional: bool | None = None
    """Whether outputs may depend on later inputs; None: the mixer's own default."""
    dim: int = 128
    """D, the width of the model."""
    depth: int = 4
    """Number of blocks."""
    positions: str = "none"
    """One of none, learned and sinusoidal (added to the input), and rotary (inside attention)."""
    norm: str = "layer"
    """One of layer, rms, scale and batch; batch statistics leave out padding."""
    prenorm: bool = True
    """Normalise before the mixer (and at the end), else after the residual sum."""
    residual: str = "float32"
    """The sum that runs through all blocks in bfloat16 training: float32, or autocast (bfloat16:
    less memory traffic, but every block rounds it)."""
    feedforward: str = "mlp"
    """One of mlp, silu (an mlp with SiLU), glu and none, after every mixer."""
    expansion: float = 2.0
    """Hidden width of the feed-forward part, in multiples of D."""
    dropout: float = 0.0
    """After embedding, mixers and feed-forward parts."""
    tied_dropout: bool = False
    """Drop whole channels of a sequence rather than single entries."""
    pooling: str = "mean"
    """One of mean, last and cls, over real tokens, or none: every position, for regression."""
    tie_embeddings: bool = False
    """Token heads share the embedding's weights."""


@dataclass(frozen=True)
class ModelConfig(ModelOptions):
    """A model: input, a stack of mixers, a head.

    >>> ModelConfig(mixer="s4d", dim=64, vocab_size=16, num_outputs=10).depth
    4
    """

    vocab_size: int | None = None
    """Tokens in, an embedding (but see ``numbers``); None: real values in, a linear map."""
    input_dim: int = 1
    """Width of real-valued input (B, L, input_dim); not used for tokens."""
    numbers: bool = False
    """Tokens 0 … vocab_size-1 are brightnesses or the like: real values from -2 to 2 in, a linear
    map."""
    max_length: int = 1024
    """The longest sequence; passed to mixers and positions that have a limit."""
    head: str = "classification"
    """One of "classification", "matching", "regression", "language" and "denoising"."""
    num_outputs: int = 2
    """Classes, or regression targets; token heads predict ``vocab_size`` tokens instead."""
    second_head: bool = False
    """Add a token head beside ``head``, for denoising as a second loss."""

    @classmethod
    def from_json(cls, values: Any) -> ModelConfig:
        """Rebuild a config from the content of ``config.json``.

        Raises:
            ValueError: a key is unknown, or a value has another type than it should.

        >>> ModelConfig.from_json({"dim": 64}).dim
        64
        """
        return cls(**typed(cls, values, "a model"))


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
         NoneType: "null", Mapping: "a mapping"}  # fmt: skip


# What other programs call an option -> what it is called here.
SYNONYMS = {
    **dict.fromkeys(("batch", "batchsize", "bs", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("layers", "blocks", "num_layers", "n_layers", "n_layer"), "depth"),
    **dict.fromkeys(("width", "hidden", "hidden_size", "hidden_dim", "d_model"), "dim"),
    **dict.fromkeys(("heads", "num_heads", "n_heads", "n_head"), "mixer_options.num_heads"),
    **dict.fromkeys(("iterations", "max_steps", "num_steps"), "steps"),
    **dict.fromkeys(("num_epochs", "max_epochs"), "epochs"),
    "dataset": "task",
    "learning_rate": "lr",
    "lr_scheduler": "schedule",
    "scheduler": "schedule",
    "warmup_steps": "warmup",
    "wd": "weight_decay",
}


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody may have meant: a synonym, else one of nearly the same letters.

    >>> known = ["mask_rate", "lr", "mixer"]
    >>> closest("learning_rate", known), closest("mixr", known), closest("depth", known)
    ('lr', 'mixer', None)
    """
    known = list(known)
    if SYNONYMS.get(name) in known:
        return SYNONYMS[name]
    return next(iter(get_close_matches(name, known, n=1)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What somebody may have meant, as the end of a message.

    >>> did_you_mean("--mixr", ["--mixer", "--dim"]), did_you_mean("runz", ["runs", "show"])
    ('; did you mean --mixer?', "; did you mean 'runs'?")
    """
    meant = closest(word, known)
    if meant is None:
        return ""
    return f"; did you mean {meant if meant.startswith('-') else repr(meant)}?"


def typed(kind: type, values: Any, owner: str, *, convert: bool = False) -> dict[str, Any]:
    """Return ``values`` if they are fields of the dataclass ``kind`` and of their types.

    A whole number may stand for a float; true and false are no numbers.

    Args:
        kind: a dataclass.
        values: a mapping from names of fields to JSON values.
        owner: whose options they are, for the message.
        convert: make floats of whole numbers, and numbers of text that reads as one (YAML takes
            ``1e-3`` for text), where the field wants them.

    Raises:
        ValueError: a name is unknown, or a value has another type than it should.

    >>> typed(ModelConfig, {"dropout": "1e-3", "expansion": 2}, "a model", convert=True)
    {'dropout': 0.001, 'expansion': 2.0}
    >>> typed(ModelConfig, {"dim": "64"}, "a model")
    Traceback (most recent call last):
    ValueError: dim must be a whole number, got '64'
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"the options of {owner} must be a mapping, got {type(values).__name__}")
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise ValueError(f"{name!r} is no option of {owner}{did_you_mean(str(name), hints)}")
    return {name: _typed(name, value, hints[name], convert) for name, value in values.items()}


def _typed(name: str, value: Any, hint: Any, convert: bool) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{name} must be one of {', '.join(map(str, inner))}, got {value!r}")
        return value
    allowed = (
        {Mapping} if origin is Mapping else {get_origin(one) or one for one in inner or [hint]}
    )
    if isinstance(value, bool):
        fits = bool in allowed
    else:
        fits = isinstance(value, tuple(allowed)) or (
            isinstance(value, int) and float in allowed and not convert
        )
    if fits:
        return value
    if convert and isinstance(value, int | str) and not isinstance(value, bool):
        for number in (int, float):
            if number in allowed and (isinstance(value, str) or number is float):
                try:
                    return number(value)
                except (ValueError, OverflowError):
                    continue
    wanted = " or ".join(word for one, word in WORDS.items() if one in allowed)
    raise ValueError(f"{name} must be {wanted or hint}, got {value!r}")


def check_switch(name: str, default: Any, value: Any) -> None:
    """Raise ValueError where an option that is true or false by default is neither.

    >>> check_switch("las's bias", True, "no")
    Traceback (most recent call last):
    ValueError: las's bias must be true or false, got 'no'
    """
    if isinstance(default, bool):
        _typed(name, value, bool, convert=False)
