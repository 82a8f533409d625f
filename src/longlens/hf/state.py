"""What LaS attention adds to an attention module of transformers: rates and a reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longlens.hf.options import Options
from longlens.ops.las import decay_rates

WIDEST_LEARNED_RATE = 0.05  # how far learning may take α, unless `bound` starts beyond


class LaSState(nn.Module):
    """The decay rates and options of one attention module, its child `las`.

    `alpha` (heads,) is a buffer, or a parameter where `learned_alpha`; both are saved with the
    model and stay float32 whatever the model is cast to.

    >>> LaSState(4, Options(bound=0.003))
    LaSState(heads=4, alpha_max=0.003, window=5, smoothing=None, edge='zero', chunk=None)
    """

    alpha: Tensor
    alpha_max: float  # a bound on the rates that is known without reading them

    def __init__(
        self, heads: int, options: Options, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.heads = heads
        self.options = options
        self.window, self.smoothing = options.window, options.smoothing
        self.edge, self.chunk = options.edge, options.chunk
        self.learned_alpha = options.learned_alpha
        self.alpha_max = 0.0
        rates = self._initial_rates().to(device)
        if options.learned_alpha:
            self.alpha = nn.Parameter(rates)
        else:
            self.register_buffer("alpha", rates)
            self._follow()

    def _initial_rates(self) -> Tensor:
        with torch.device("cpu"):  # transformers builds models on the meta device to load them
            return decay_rates(self.heads, self.options.bound, self.options.spacing)

    @torch.no_grad()
    def restore(self) -> None:
        """Give the rates the values that the options ask for, in place."""
        self.alpha.copy_(self._initial_rates())
        self.alpha_max = 0.0
        self._follow()

    def _follow(self) -> None:
        """Make `alpha_max` true for the rates at hand, which may come from a checkpoint."""
        if self.alpha.is_meta:
            return
        largest = float(self.alpha.detach().max())
        self.alpha_max = (
            max(WIDEST_LEARNED_RATE, self.alpha_max, largest) if self.learned_alpha else largest
        )

    def rates(self) -> tuple[Tensor | None, float | None]:
        """The rate of each head, (heads,), and a static bound on them; None without decay."""
        if self.learned_alpha:  # the clamp is what keeps the bound true
            return self.alpha.clamp(0.0, self.alpha_max), self.alpha_max
        return (None, None) if self.alpha_max == 0 else (self.alpha, self.alpha_max)

    def __setattr__(self, name: str, value: Any) -> None:
        """`from_pretrained` loads by assignment."""
        super().__setattr__(name, value)
        if name == "alpha":
            self._follow()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._follow()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the rates with the model, but never round them."""

        def move(rates: Tensor) -> Tensor:
            moved = fn(rates)
            return moved if moved.dtype == rates.dtype else rates.to(moved.device)

        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return (
            f"heads={self.heads}, alpha_max={self.alpha_max:.4g}, window={self.window}, "
            f"smoothing={self.smoothing!r}, edge={self.edge!r}, chunk={self.chunk}"
        )
