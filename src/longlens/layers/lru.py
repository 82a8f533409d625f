"""LRU: Orvieto et al. 2023 (arXiv 2303.06349).

"Resurrecting Recurrent Neural Networks for Long Sequences". A complex diagonal recurrence with a
stable exponential parametrisation and a normalised input:

    h_t = λ ⊙ h_{t-1} + γ ⊙ (B x_t)       y_t = Re(C h_t) + d ⊙ x_t
    λ = exp(-exp(ν) + i·exp(θ))            γ starts at √(1 - |λ|²)

λ starts uniformly on the ring r_min ≤ |λ| ≤ r_max with phases in [0, max_phase]. Real and imaginary
parts start with standard deviation 1/√(2D) in B and 1/√N in C, as in the paper's listing.

Left open by the paper, chosen here: GELU and a GLU follow the recurrence inside the mixer;
both directions are those of S5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    OutputMix,
    as_complex,
    as_pairs,
    as_parameter,
    check_positive,
    special,
)
from longlens.layers.diagonal import DiagonalRecurrence
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import stable_poles


class LRU(DiagonalRecurrence):
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
        self.c = nn.Parameter(torch.randn(1 + bidirectional, dim, state, 2) / math.sqrt(state))
        self.skip = nn.Parameter(torch.randn(dim))
        self.mix = OutputMix(dim, output)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """λ (N,), γ ⊙ B (N, D) and C (M, D, N), complex."""
        ratio = torch.exp(stable_poles(self.log_rate, torch.exp(full_precision(self.log_phase))))
        return (
            ratio,
            torch.exp(full_precision(self.log_gamma))[:, None] * as_complex(self.b),
            as_complex(self.c),
        )

    def activate(self, y: Tensor) -> Tensor:
        """The output mix: (..., D) -> (..., D)."""
        out: Tensor = self.mix(y)
        return out
