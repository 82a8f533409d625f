"""Options as frozen dataclasses, for files and the command line. Standard library only.

Configs stop at the builder: ``longlens.models.build`` is the only code that reads them; layers
and models take flat keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class ModelConfig:
    """A model: input, a stack of mixers, a head.

    >>> ModelConfig(mixer="s4d", dim=64, vocab_size=16, num_outputs=10).depth
    4
    """

    mixer: str = "las"
    """A key of ``longlens.layers.MIXERS``."""
    mixer_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the mixer; a list holds one value for each block."""
    bidirectional: bool | None = None
    """Passed to the mixer; None: the mixer's own default."""
    dim: int = 128
    """D, the width of the model."""
    depth: int = 4
    """Number of blocks."""
    vocab_size: int | None = None
    """Tokens in, an embedding (but see ``numbers``); None: real values in, a linear map."""
    input_dim: int = 1
    """Width of real-valued input (B, L, input_dim); not used for tokens."""
    numbers: bool = False
    """Tokens 0 … vocab_size-1 are brightnesses or the like: real values from -2 to 2 in, a linear
    map."""
    max_length: int = 1024
    """The longest sequence; passed to mixers and positions that have a limit."""
    positions: str = "none"
    """One of "none", "learned", "sinusoidal" (added to the input), "rotary" (inside attention)."""
    norm: str = "layer"
    """One of "layer", "rms", "scale" and "batch"; batch statistics leave out padding."""
    prenorm: bool = True
    """Normalise before the mixer (and at the end), else after the residual sum."""
    residual: str = "float32"
    """The sum that runs through all blocks under autocast: float32, or "autocast", in its dtype
    (less memory traffic, but every block rounds it)."""
    feedforward: str = "mlp"
    """One of "mlp", "silu" (an mlp with SiLU), "glu" and "none", after every mixer."""
    expansion: float = 2.0
    """Hidden width of the feed-forward part, in multiples of D."""
    dropout: float = 0.0
    """After embedding, mixers and feed-forward parts."""
    tied_dropout: bool = False
    """Drop whole channels of a sequence rather than single entries."""
    pooling: str = "mean"
    """One of "mean", "last" and "cls", over real tokens, or "none": every position, for
    regression; not used by the token heads."""
    head: str = "classification"
    """One of "classification", "matching", "regression", "language" and "denoising"."""
    num_outputs: int = 2
    """Classes, or regression targets; token heads predict ``vocab_size`` tokens instead."""
    tie_embeddings: bool = False
    """Token heads share the embedding's weights."""
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
        check_types(cls, values)
        return cls(**values)


def check_types(kind: type, values: Any) -> None:
    """Raise ValueError unless ``values`` are fields of the dataclass ``kind``, of their types.

    >>> check_types(ModelConfig, {"dim": "64"})
    Traceback (most recent call last):
    ValueError: dim has a wrong type: '64'
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"options must be a mapping, got {type(values).__name__}")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"there is no option {name!r}")
        origin, inner = get_origin(hints[name]), get_args(hints[name])
        if origin is Literal:
            fits = value in inner
        else:
            fits = _is_one_of(value, (Mapping,) if origin is Mapping else inner or (hints[name],))
        if not fits:
            raise ValueError(f"{name} has a wrong type: {value!r}")


def _is_one_of(value: Any, types: tuple[Any, ...]) -> bool:
    """Whether a JSON value is of one of the types; true and false are no numbers.

    >>> _is_one_of(3, (float,)), _is_one_of(True, (int,)), _is_one_of(None, (int, type(None)))
    (True, False, True)
    """
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, int) and float in types:
        return True
    return isinstance(value, types)
