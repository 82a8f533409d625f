"""The options of LaS attention in a Hugging Face model, and how `model.config` carries them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypedDict

from longlens.ops.las.checks import check_options

CONFIG_KEY = "las_attention"  # the entry of config.json


class OptionArguments(TypedDict, total=False):
    """Keyword arguments of `configure`."""

    bound: float
    spacing: str
    window: int
    smoothing: str | None
    edge: str
    learned_alpha: bool
    chunk: int | None
    layers: list[int] | None


@dataclass(frozen=True)
class Options:
    """The reading of LaS attention that one model configuration asks for.

    >>> Options().change(window=3).window
    3
    """

    bound: float = 1e-3
    spacing: str = "uniform"
    window: int = 5
    smoothing: str | None = None
    edge: str = "zero"
    learned_alpha: bool = False
    chunk: int | None = None
    layers: list[int] | None = None

    def change(self, **changes: Any) -> Options:
        """These options with some of them replaced; an unknown name raises."""
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ValueError(f"unknown option {unknown[0]!r}; the options are {', '.join(known)}")
        if changes.get("layers") is not None:
            changes["layers"] = [int(index) for index in changes["layers"]]
        return replace(self, **changes)

    def at(self, layer: int) -> Options:
        """The options of one layer: plain softmax attention where `layers` leaves it out."""
        if self.layers is None or layer in self.layers:
            return self
        return Options(bound=0.0, window=1)

    def check(self, causal: bool) -> None:
        """Raise where no such attention exists."""
        check_options(self.window, self.smoothing, self.edge, causal, self.chunk)
        check_sees_no_future(self.smoothing, self.window, causal)


def check_sees_no_future(smoothing: str | None, window: int, causal: bool) -> None:
    """Raise for the one kind of smoothing in which a causal model would see ahead."""
    if causal and smoothing == "centered" and window > 1:
        raise ValueError(
            "smoothing='centered' lets a position see values ahead of it, so a causal model cannot "
            "use it; use 'causal' or 'masked'"
        )


def read_options(config: Any) -> Options:
    """The options that a transformers configuration carries, or the defaults."""
    return Options().change(**(getattr(config, CONFIG_KEY, None) or {}))


def write_options(config: Any, options: Options) -> None:
    """Keep the options in a transformers configuration, where `save_pretrained` writes them."""
    setattr(config, CONFIG_KEY, asdict(options))
