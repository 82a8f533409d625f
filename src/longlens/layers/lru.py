"""LRU: Orvieto et al. 2023 (arXiv 2303.06349).

"Resurrecting Recurrent Neural Networks for Long Sequences". A complex diagonal recurrence with a
stable exponential parametrisation and a normalised input:

    h_t = λ ⊙ h_{t-1} + γ ⊙ (B x_t)       y_t = Re(C h_t) + d ⊙ x_t
    λ = exp(-exp(ν) + i·exp(θ))            γ starts at √(1 - |λ|²)

λ starts uniformly on the ring r_min ≤ |λ| ≤ r_max with phases in [0, max_phase].

Left open by the paper, chosen here: GELU and a GLU follow the recurrence inside the mixer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    Mixer,
    OutputMix,
    State,
    as_complex,
    as_pairs,
    as_parameter,
    check_positive,
    check_step,
    special,
    zero_padding,
)
from longlens.layers.s5 import complex_linear, real_readout
from longlens.ops.numerics import full_precision, no_autocast
from longlens.ops.scan import diagonal_scan


class LRU(Mixer):
    """Linear recurrent unit.

    Args:
        dim: D.
        state: N complex numbers.
        bidirectional: run the recurrence from both ends.
        r_min: smallest initial |λ|.
        r_max: largest initial |λ|, below 1.
        max_phase: largest initial phase; small values help on very long sequences.
        output: "glu", "linear" or "none".

    >>> LRU(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(special_init=True, stable=True, normalized=True)
    optim_hints = special("log_rate", "log_phase", "log_gamma")

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        bidirectional: bool = False,
        r_min: float = 0.9,
        r_max: float = 0.999,
        max_phase: float = 2 * math.pi,
        output: str = "glu",
    ) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        if not 0 <= r_min < r_max < 1:
            raise ValueError(f"need 0 <= r_min < r_max < 1, got r_min={r_min}, r_max={r_max}")
        self.causal = not bidirectional
        square = torch.empty(state).uniform_(r_min**2, r_max**2)  # uniform on the ring's area
        self.log_rate = as_parameter(torch.log(-0.5 * torch.log(square)))
        phase = torch.rand(state).clamp_min(1e-4) * max_phase
        self.log_phase = as_parameter(torch.log(phase))
        self.log_gamma = as_parameter(0.5 * torch.log1p(-square))
        b = torch.randn(state, dim, dtype=torch.complex64) / math.sqrt(dim)
        self.b = nn.Parameter(as_pairs(b))
        c = torch.randn(1 + bidirectional, dim, state, dtype=torch.complex64) / math.sqrt(state)
        self.c = nn.Parameter(as_pairs(c))
        self.skip = nn.Parameter(torch.randn(dim))
        self.mix = OutputMix(dim, output)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """λ (N,), γ ⊙ B (N, D) and C (M, D, N), complex."""
        ratio = torch.exp(torch.complex(-torch.exp(self.log_rate), torch.exp(self.log_phase)))
        return ratio, torch.exp(self.log_gamma)[:, None] * as_complex(self.b), as_complex(self.c)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)
        with no_autocast(x):
            ratio, b, c = self.discrete()
            drive = complex_linear(full_precision(x), b)
            y = real_readout(diagonal_scan(ratio, drive), c[0])
            if not self.causal:
                back = diagonal_scan(ratio, drive.flip(1)).flip(1)
                y = y + real_readout(F.pad(back[:, 1:], (0, 0, 0, 1)), c[1])
        out: Tensor = self.mix(y.to(x.dtype) + self.skip.to(x.dtype) * x)
        return out

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step: ((B, N) complex zeros,)."""
        check_step(self)
        return (as_complex(self.b).new_zeros(batch_size, self.b.shape[0]),)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        check_step(self)
        state = self.initial_state(x.shape[0]) if state is None else state
        with no_autocast(x):
            ratio, b, c = self.discrete()
            h = ratio * state[0] + complex_linear(full_precision(x), b)
            y = real_readout(h, c[0])
        return self.mix(y.to(x.dtype) + self.skip.to(x.dtype) * x), (h,)
