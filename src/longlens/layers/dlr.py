"""DLR: Gupta, Mehta & Berant 2022 (arXiv 2212.00768).

"Simplifying and Understanding State Space Models with Diagonal Linear RNNs".

No continuous time and no discretisation: K_l = Re Σ_n w_n λ_n^l with |λ_n| < 1.

Left open by the paper, chosen here: λ = exp(-exp(a) + i·θ) keeps |λ| below 1; angles start evenly
around the circle, radii log-uniformly with 1 - |λ| between 5e-4 and 0.4; w is scaled so that every
channel's kernel starts with an energy near 1. (The authors' code, made for 4,096 modes, has radii
ten times as near to 1, and w of deviation 1/N.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from longlens.layers.base import (
    Aspects,
    as_complex,
    as_pairs,
    as_parameter,
    check_positive,
    special,
)
from longlens.layers.convolution import DiagonalKernel, RecurrentConvolution
from longlens.ops.ssm import stable_poles


class DLRKernel(DiagonalKernel):
    """Kernels of DLR.

    Args:
        dim: D.
        state: N complex modes, shared by the channels.
        directions: M.
    """

    optim_hints = special("log_rate", "angle")

    def __init__(self, dim: int, *, state: int = 64, directions: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        self.dim = dim
        rate = torch.exp(torch.empty(state).uniform_(math.log(5e-4), math.log(0.5)))
        self.log_rate = as_parameter(torch.log(rate))
        self.angle = as_parameter(2 * math.pi * torch.arange(state) / state)
        energy = torch.sqrt(-torch.expm1(-2 * rate) / state)
        w = torch.randn(directions, dim, state, dtype=torch.complex64) * math.sqrt(2) * energy
        self.w = torch.nn.Parameter(as_pairs(w))

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients (M, D, N) and log-ratios (D, N)."""
        log_ratios = stable_poles(self.log_rate, self.angle)
        return as_complex(self.w), log_ratios.expand(self.dim, -1)


class DLR(RecurrentConvolution):
    """Diagonal linear RNN.

    Its options are those of :class:`DLRKernel`, ``bidirectional`` and ``output``.

    >>> DLR(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = DLRKernel
    aspects = Aspects(stable=True)
