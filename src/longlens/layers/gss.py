"""GSS: Mehta, Gupta, Cutkosky & Neyshabur 2022 (arXiv 2206.13947).

"Long Range Language Modeling via Gated State Spaces". A diagonal state space runs on a few
channels only, and a wide gate multiplies what comes out:

    U = GELU(x W_u)  (D/4 channels)      V = GELU(x W_v)  (4D channels)
    y = (DSS(LayerNorm(U)) W_y ⊙ V) W_o

The state space is DSS "exp" without a step size, λ = -exp(a) + i·exp(b), as in the paper's listing,
with a and b drawn standard normal. (Its authors published no code.)

Left open by the paper, chosen here: 64 modes (the listing has 512); real and imaginary parts of w
start with standard deviation 1/N, as in the code of DLR, by one of the authors.
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
    as_parameter,
    check_positive,
    check_step,
    special,
    zero_padding,
)
from longlens.layers.convolution import DiagonalKernel
from longlens.ops.conv import fft_conv
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import hold_gain, stable_poles


class GSSKernel(DiagonalKernel):
    """The simplified DSS of the paper.

    Args:
        dim: channels.
        state: N complex modes, shared by the channels.
        directions: M.
    """

    optim_hints = special("log_decay", "log_frequency")

    def __init__(self, dim: int, *, state: int, directions: int) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        self.dim = dim
        self.log_decay = as_parameter(torch.randn(state))
        self.log_frequency = as_parameter(torch.randn(state))
        self.w = nn.Parameter(torch.randn(directions, dim, state, 2) / state)

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients (M, D, N) and log-ratios (D, N)."""
        lam = stable_poles(self.log_decay, torch.exp(full_precision(self.log_frequency)))
        gain = hold_gain(lam, torch.ones_like(self.log_decay))
        return as_complex(self.w) * gain, lam.expand(self.dim, -1)


class GSS(Mixer):
    """Gated state-space layer.

    Args:
        dim: D.
        state: N complex modes.
        inner_dim: channels of the state space; None: D/4, at least 1.
        gate_dim: channels of the gate; None: 4D.
        bidirectional: a second kernel looks at the future.

    >>> GSS(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L log L"
    aspects = Aspects(stable=True, gating=True, normalized=True)

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
        gate = 4 * dim if gate_dim is None else gate_dim
        check_positive(dim=dim, inner_dim=inner, gate_dim=gate)
        self.causal = not bidirectional
        self.kernel = GSSKernel(inner, state=state, directions=1 + bidirectional)
        self.skip = nn.Parameter(torch.randn(inner))
        self.to_inner = nn.Linear(dim, inner)
        self.norm = nn.LayerNorm(inner)
        self.to_gate = nn.Linear(dim, gate)
        self.widen = nn.Linear(inner, gate)
        self.output = nn.Linear(gate, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        u = zero_padding(self.norm(F.gelu(self.to_inner(x))), mask)
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
        state = self.initial_state(x.shape[0]) if state is None else state
        u = self.norm(F.gelu(self.to_inner(x)))
        y, state = self.kernel.step(u, state)
        y = self.widen(y + self.skip.to(u.dtype) * u)
        return self.output(y * F.gelu(self.to_gate(x))), state
