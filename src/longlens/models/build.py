"""From a ``ModelConfig`` to a model: the only reader of the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longlens.config import ModelConfig
from longlens.layers.registry import build, options_of, unknown
from longlens.models.backbone import POOLINGS, Backbone, Block, InputEncoding, sees_ahead
from longlens.models.heads import ClassificationHead, MatchingHead, TokenHead
from longlens.models.norms import build_norm
from longlens.models.pretrained import CONFIG, WEIGHTS, Pretrained, check_fit, read_config
from longlens.ops.numerics import autocast_dtype
from longlens.weights import load_tensors

RESIDUALS = ("float32", "autocast")
TOKEN_HEADS = ("language", "denoising")  # logits of a token at every position
HEADS = ("classification", "matching", "regression", *TOKEN_HEADS)


def build_mixer(config: ModelConfig, block: int = 0) -> nn.Module:
    """The mixer of one block; options that the mixer has follow the model's own."""
    known = options_of(config.mixer)
    options = _of_block(config, block)
    # A CLS position makes every sequence one longer.
    length = config.max_length + (config.pooling == "cls" and config.head not in TOKEN_HEADS)
    if "max_length" in known:
        options.setdefault("max_length", length)
    if config.bidirectional is not None:
        if "bidirectional" in known:
            options.setdefault("bidirectional", config.bidirectional)
        elif build(config.mixer, config.dim, **options).causal == config.bidirectional:
            direction = "causal" if config.bidirectional else "bidirectional"
            raise ValueError(
                f"mixer {config.mixer!r} is {direction} only, got bidirectional="
                f"{config.bidirectional}"
            )
    if config.positions == "rotary":
        if "rotary" not in known:
            raise ValueError(
                f"positions='rotary' needs a mixer with the option 'rotary', "
                f"{config.mixer!r} has none"
            )
        options["rotary"] = True
    return build(config.mixer, config.dim, **options)


def _of_block(config: ModelConfig, block: int) -> dict[str, Any]:
    """The mixer's options in one block: of a list, its value there."""
    options = dict(config.mixer_options)
    for name, value in options.items():
        if isinstance(value, list | tuple):
            if len(value) != config.depth:
                raise ValueError(
                    f"mixer_options.{name} must have a value for each of the {config.depth} "
                    f"blocks, got {len(value)}"
                )
            options[name] = value[block]
    return options


def build_head(config: ModelConfig, encoding: InputEncoding) -> nn.Module:
    """The head that ``config.head`` names."""
    if config.head not in HEADS:
        raise unknown("head", config.head, HEADS)
    if config.head in TOKEN_HEADS:
        if config.vocab_size is None:
            raise ValueError(f"head={config.head!r} predicts tokens: vocab_size must not be None")
        if config.numbers and config.tie_embeddings:
            raise ValueError("tie_embeddings needs an embedding, but numbers=True has none")
        weight = encoding.encode.weight if config.tie_embeddings else None
        assert weight is None or isinstance(weight, nn.Parameter)
        return TokenHead(config.dim, config.vocab_size, weight=weight)
    kind = MatchingHead if config.head == "matching" else ClassificationHead
    return kind(config.dim, config.num_outputs, pooling=config.pooling)


class Model(Pretrained):
    """Input encoding, backbone and head.

    ``save_pretrained(folder)`` writes config.json and model.safetensors, ``from_pretrained``
    reads them from a folder or (with huggingface_hub installed) the Hub.

    Args:
        config: what to build.

    Attributes:
        right_padded: set it to True where masks hide nothing but what follows the last real token;
            causal mixers are faster then.

    >>> import torch
    >>> model = Model(ModelConfig(mixer="s4d", dim=8, depth=1, vocab_size=5, num_outputs=3))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if isinstance(config, Mapping):  # what config.json holds
            config = ModelConfig.from_json(config)
        self.config = config
        self.right_padded = False
        if config.pooling not in POOLINGS:
            raise unknown("pooling", config.pooling, POOLINGS)
        if config.residual not in RESIDUALS:
            raise unknown("residual", config.residual, RESIDUALS)
        if config.pooling == "none" and config.head in ("classification", "matching"):
            raise ValueError(f"pooling='none' is for regression, got head={config.head!r}")
        cls = config.pooling == "cls" and config.head not in TOKEN_HEADS
        self.pairs = config.head == "matching"
        self.encoding = InputEncoding(
            config.dim,
            vocab_size=config.vocab_size,
            input_dim=config.input_dim,
            numbers=config.numbers,
            positions=config.positions,
            max_length=config.max_length,
            cls=cls,
            dropout=config.dropout,
        )
        blocks = [
            Block(
                build_mixer(config, number),
                config.dim,
                norm=config.norm,
                prenorm=config.prenorm,
                feedforward=config.feedforward,
                expansion=config.expansion,
                dropout=config.dropout,
                tied_dropout=config.tied_dropout,
            )
            for number in range(config.depth)
        ]
        last_norm = build_norm(config.norm, config.dim) if config.prenorm else None
        self.backbone = Backbone(blocks, last_norm)
        self.head = build_head(config, self.encoding)
        self.second_head: nn.Module | None = None
        if config.second_head:
            self.second_head = build_head(replace(config, head="denoising"), self.encoding)
        mixers = self.backbone.mixers()
        if config.head == "language" and any(map(sees_ahead, mixers)):
            raise ValueError(
                f"head='language' needs mixers that never see ahead, but mixer="
                f"{config.mixer!r} with options {dict(config.mixer_options)} does"
            )
        if cls and any(mixer.causal for mixer in mixers):
            raise ValueError(
                "pooling='cls' reads the first position, which sees nothing else in a causal "
                "mixer; use pooling='last' or 'mean'"
            )

    def forward(self, x: Tensor, mask: Tensor | None = None, tokens: bool = False) -> Any:
        """Run the model.

        Args:
            x: tokens (B, L), or real values (B, L, input_dim). For matching (B, 2, L) or
                (B, 2, L, input_dim).
            mask: True at real tokens, (B, L) or (B, 2, L); None: all are.
            tokens: also run the second head, on the same pass.

        Returns:
            (B, C), or (B, L, V) from a token head; with ``tokens`` a pair of that and the second
            head's (B, L, V), of a matching model (2B, L, V).
        """
        if self.pairs:
            x, mask = x.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        h, mask = self.encoding(x, mask)
        low = autocast_dtype(h)
        if low is not None:
            # inputs that are numbers come out of a linear map, in the dtype of autocast
            stream = h.to(low if self.config.residual == "autocast" else torch.float32)
            h = self.backbone(stream, mask, self.right_padded).float()
        else:
            h = self.backbone(h, mask, self.right_padded)
        out: Tensor = self.head(h, mask)
        if not tokens:
            return out
        if self.second_head is None:
            raise ValueError("tokens=True needs a model with second_head=True")
        real = h[:, 1:] if self.encoding.cls is not None else h  # CLS stands for no token
        return out, self.second_head(real)

    def advance(
        self, x: Tensor, state: tuple[int, list[Any]] | None = None
    ) -> tuple[Tensor, tuple[int, list[Any]]]:
        """Continue sequences by x (B, L) from a state (None: their start), in evaluation mode.

        Needs causal mixers with ``step``.

        Returns:
            the head's output for the new positions, and the state after them.
        """
        for mixer in self.backbone.mixers():
            if not hasattr(mixer, "step"):
                raise ValueError(f"{type(mixer).__name__} has no step, so it cannot continue")
        first, states = (0, None) if state is None else state
        h, _ = self.encoding(x, first=first)
        h, states = self.backbone.advance(h, states)
        return self.head(h), (first + x.shape[1], states)


def build_model(config: ModelConfig) -> Model:
    """Build a model.

    >>> import torch
    >>> config = ModelConfig(mixer="lru", dim=8, depth=1, vocab_size=5, head="language")
    >>> build_model(config)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 5])
    """
    return Model(config)


def load_model(folder: Path) -> Model:
    """Read the model of a run from its ``config.json`` and ``model.safetensors``.

    It is built without memory first, so that a damaged config cannot ask for more than there is.

    Raises:
        ValueError: a file is damaged, or they do not belong together.
    """
    config, path = read_config(folder), folder / WEIGHTS
    tensors = load_tensors(path)
    if config.depth > len(tensors):
        raise ValueError(f"{path} does not fit the model: {config.depth} blocks in {CONFIG}")
    try:
        with torch.device("meta"):
            planned = build_model(config)
    except Exception as error:  # whatever a mixer says to options of the wrong type
        raise ValueError(f"{folder / CONFIG} describes no model ({error})") from None
    check_fit(planned, tensors, path)
    model = build_model(config)
    model.load_state_dict(tensors, strict=False)
    return model
