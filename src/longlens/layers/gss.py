"""GSS: Mehta, Gupta, Cutkosky & Neyshabur 2022 (arXiv 2206.13947).

"Long Range Language Modeling via Gated State Spaces". A diagonal state space runs on a few
channels only, and a wide gate multiplies what comes out:

    U = GELU(x W_u)  (D/4 channels)      V = GELU(x W_v)  (3D channels)
    y = (DSS(U) W_y ⊙ V) W_o

Left open by the paper, chosen here: its DSS has no step size and random λ; ours is DSS "exp" with
Re λ = -exp(a) and random Im λ, Δ = 1 for all channels.
"""

from __future__ import annotations

import math

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
    check_positive,
    check_step,
    special,
    zero_padding,
)
from longlens.layers.convolution import DiagonalKernel
from longlens.ops.conv import fft_conv
from longlens.ops.ssm import hold_gain


class GSSKernel(DiagonalKernel):
    """The simplified DSS of the paper.

    Args:
        dim: channels.
        state: N complex modes, shared by the channels.
        directions: M.
    """

    optim_hints = special("log_decay", "frequency")

    def __init__(self, dim: int, *, state: int, directions: int) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        self.dim = dim
        # exp(normal) times a small scale: memories from a few steps to a few thousand
        self.log_decay = as_parameter(torch.randn(state) + math.log(0.02))
        self.frequency = as_parameter(torch.randn(state))
        w = torch.randn(directions, dim, state, dtype=torch.complex64) / state
        self.w = nn.Parameter(as_pairs(w))

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients (M, D, N) and log-ratios (D, N)."""
        lam = torch.complex(-torch.exp(self.log_decay), self.frequency)
        gain = hold_gain(lam, torch.ones_like(self.log_decay))
        return as_complex(self.w) * gain, lam.expand(self.dim, -1)


class GSS(Mixer):
    """Gated state-space layer.

    Args:
        dim: D.
        state: N complex modes.
        inner_dim: channels of the state space; None: D/4, at least 1.
        gate_dim: channels of the gate; None: 3D.
        bidirectional: a second kernel looks at the future.

    >>> GSS(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L log L"
    aspects = Aspects(stable=True, gating=True)

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        inner_dim: int | None = None,
        gate_dim: int | None = None,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        inner = max(1, dim // 4) if inner_dim is None else inner_dim
        gate = 3 * dim if gate_dim is None else gate_dim
        check_positive(dim=dim, inner_dim=inner, gate_dim=gate)
        self.causal = not bidirectional
        self.kernel = GSSKernel(inner, state=state, directions=1 + bidirectional)
        self.skip = nn.Parameter(torch.randn(inner))
        self.to_inner = nn.Linear(dim, inner)
        self.to_gate = nn.Linear(dim, gate)
        self.widen = nn.Linear(inner, gate)
        self.output = nn.Linear(gate, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        u = zero_padding(F.gelu(self.to_inner(x)), mask)
        k = self.kernel(x.shape[1])
        y = fft_conv(u, k[0], None if self.causal else k[1]) + self.skip.to(u.dtype) * u
        out: Tensor = self.output(self.widen(y) * F.gelu(self.to_gate(x)))
        return out

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step, for ``batch_size`` sequences."""
        check_step(self)
        return self.kernel.initial_state(batch_size)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        check_step(self)
        state = self.initial_state(x.shape[0]) if state is None else state
        u = F.gelu(self.to_inner(x))
        y, state = self.kernel.step(u, state)
        y = self.widen(y + self.skip.to(u.dtype) * u)
        return self.output(y * F.gelu(self.to_gate(x))), state
