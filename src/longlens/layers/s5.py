"""S5: Smith, Warrington & Linderman 2022 (arXiv 2208.04933).

"Simplified State Space Layers for Sequence Modeling". One state space with many inputs and outputs
instead of one per channel, run by a parallel scan:

    h_t = exp(λΔ) h_{t-1} + B̄ x_t        y_t = 2 Re(C h_t) + d ⊙ x_t

with one of each conjugate pair kept. λ starts at the eigenvalues of the normal part of HiPPO-LegS,
in `blocks` equal blocks, and B, C are rotated into its eigenbasis.

Left open by the paper, chosen here: the activation is its gated one, g·σ(W g) with g = GELU(y).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    Mixer,
    State,
    as_complex,
    as_pairs,
    as_parameter,
    check_divides,
    check_positive,
    check_step,
    special,
    zero_padding,
)
from longlens.ops.numerics import full_precision, no_autocast
from longlens.ops.scan import diagonal_scan
from longlens.ops.ssm import hippo_nplr, hold_gain, log_steps


def complex_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Real x (..., I) times complex weight (O, I), transposed: (..., O) complex."""
    return torch.complex(x @ weight.real.mT, x @ weight.imag.mT)


def real_readout(h: Tensor, weight: Tensor) -> Tensor:
    """Re(W h) for complex h (..., I) and weight (O, I), in real products: (..., O)."""
    out: Tensor = h.real @ weight.real.mT - h.imag @ weight.imag.mT
    return out


class S5(Mixer):
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

    cost = "L"
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
        b = torch.randn(blocks, size, dim, dtype=torch.float64) / dim**0.5
        self.b = as_parameter(as_pairs((v.conj().T @ b.to(v.dtype)).flatten(0, 1)))
        c = torch.randn(1 + bidirectional, dim, blocks, size, dtype=torch.float64) / state**0.5
        self.c = nn.Parameter(as_pairs((c.to(v.dtype) @ v).flatten(-2)))
        self.skip = nn.Parameter(torch.randn(dim))
        self.gate = nn.Linear(dim, dim)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Transition (N/2,), input matrix (N/2, D) and output matrices (M, D, N/2), complex."""
        lam = torch.complex(-torch.exp(self.log_decay), self.frequency)
        dt = torch.exp(self.log_dt)
        b = hold_gain(lam, dt)[:, None] * as_complex(self.b)
        return torch.exp(lam * dt), b, 2 * as_complex(self.c)

    def activate(self, y: Tensor) -> Tensor:
        """GELU and gate: (..., D) -> (..., D)."""
        y = F.gelu(y)
        return y * torch.sigmoid(self.gate(y))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)
        with no_autocast(x):
            ratio, b, c = self.discrete()
            drive = complex_linear(full_precision(x), b)
            y = real_readout(diagonal_scan(ratio, drive), c[0])
            if not self.causal:
                # The future alone: the state from the other end, one step back.
                back = diagonal_scan(ratio, drive.flip(1)).flip(1)
                y = y + real_readout(F.pad(back[:, 1:], (0, 0, 0, 1)), c[1])
        return self.activate(y.to(x.dtype) + self.skip.to(x.dtype) * x)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step: ((B, N/2) complex zeros,)."""
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
        return self.activate(y.to(x.dtype) + self.skip.to(x.dtype) * x), (h,)
