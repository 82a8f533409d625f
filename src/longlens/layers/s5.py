"""S5: Smith, Warrington & Linderman 2022 (arXiv 2208.04933).

"Simplified State Space Layers for Sequence Modeling". One state space with many inputs and outputs
instead of one per channel, run by a parallel scan:

    h_t = exp(λΔ) h_{t-1} + B̄ x_t        y_t = 2 Re(C h_t) + d ⊙ x_t

with one of each conjugate pair kept. λ starts at the eigenvalues of the normal part of HiPPO-LegS,
in `blocks` equal blocks, and B, C are rotated into its eigenbasis: a real B and a complex C, all of
whose parts are drawn with variance 1/N (the authors' `lecun_normal` and `trunc_standard_normal`).

With `bidirectional` a second C reads the same scan run from the other end; both see the present.

Left open by the paper, chosen here: the activation is its gated one, g·σ(W g) with g = GELU(y); the
normal draws are not cut off at two standard deviations, as the authors' are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    as_complex,
    as_pairs,
    as_parameter,
    check_divides,
    check_positive,
    special,
)
from longlens.layers.diagonal import DiagonalRecurrence
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import hippo_nplr, hold_gain, log_steps, stable_poles


class S5(DiagonalRecurrence):
    """State-space layer with one shared, multi-input state.

    Args:
        dim: D.
        state: size of the whole state, counting both of each conjugate pair.
        blocks: number of HiPPO blocks in it; state / blocks must be even.
        bidirectional: run the scan from both ends.
        dt_min: smallest initial step size.
        dt_max: largest initial step size.

    >>> S5(8, state=8, blocks=2)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(special_init=True, stable=True)
    optim_hints = special("log_decay", "frequency", "log_dt", "b")

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        blocks: int = 1,
        bidirectional: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        check_divides("blocks", blocks, "state", state)
        self.causal = not bidirectional
        lam, _, _, v = hippo_nplr(state // blocks)
        self.log_decay = as_parameter(torch.log(-lam.real).repeat(blocks))
        self.frequency = as_parameter(lam.imag.repeat(blocks))
        self.log_dt = as_parameter(log_steps(state // 2, dt_min, dt_max))
        size = state // blocks
        b = torch.randn(blocks, size, dim, dtype=torch.float64) / state**0.5
        self.b = as_parameter(as_pairs((v.conj().T @ b.to(v.dtype)).flatten(0, 1)))
        shape = (1 + bidirectional, dim, blocks, size, 2)
        c = as_complex(torch.randn(shape, dtype=torch.float64) / state**0.5)
        self.c = nn.Parameter(as_pairs((c @ v).flatten(-2)))
        self.skip = nn.Parameter(torch.randn(dim))
        self.gate = nn.Linear(dim, dim)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Transition (N/2,), input matrix (N/2, D) and output matrices (M, D, N/2), complex."""
        lam = stable_poles(self.log_decay, self.frequency)
        dt = torch.exp(full_precision(self.log_dt))
        b = hold_gain(lam, dt)[:, None] * as_complex(self.b)
        return torch.exp(lam * dt), b, 2 * as_complex(self.c)

    def activate(self, y: Tensor) -> Tensor:
        """GELU and gate: (..., D) -> (..., D)."""
        y = F.gelu(y)
        return y * torch.sigmoid(self.gate(y))
