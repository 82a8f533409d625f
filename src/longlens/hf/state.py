"""What LaS attention adds to an attention module of transformers: rates and options."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from longlens.hf.options import Options
from longlens.layers.decay import DecayRates


def state_of(module: nn.Module) -> LaSState | None:
    """The rates of an attention module, those of PEFT's active adapter if they are its own."""
    state: Any = getattr(module, "las", None)
    if isinstance(getattr(state, "original_module", None), LaSState):
        active = [] if state.disable_adapters else state.active_adapters
        state = state.modules_to_save[active[0]] if active else state.original_module
    return state if isinstance(state, LaSState) else None


class LaSState(DecayRates):
    """The decay rates and options of one attention module, its child `las`.

    >>> LaSState(4, Options(bound=0.003))
    LaSState(heads=4, alpha_max=0.003, window=5, smoothing=None, edge='zero', chunk=None)
    """

    inputs: tuple[str, ...] = ()  # of the attention module's forward

    def __init__(
        self, heads: int, options: Options, device: torch.device | str | None = None
    ) -> None:
        super().__init__(
            heads,
            options.bound,
            options.spacing,
            learned_alpha=options.learned_alpha,
            # transformers builds models on the meta device to load them; rates are made at once
            device="cpu" if device is None else device,
        )
        self.options = options
        self.window, self.smoothing = options.window, options.smoothing
        self.edge, self.chunk = options.edge, options.chunk

    def __setattr__(self, name: str, value: Any) -> None:
        """`from_pretrained` loads by assignment; FSDP assigns the same tensors in each step."""
        super().__setattr__(name, value)
        if name == "alpha" and not hasattr(value, "_known_to_las"):
            value._known_to_las = True
            self.follow()

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return (
            f"heads={self.num_heads}, alpha_max={self.alpha_max:.4g}, window={self.window}, "
            f"smoothing={self.smoothing!r}, edge={self.edge!r}, chunk={self.chunk}"
        )
