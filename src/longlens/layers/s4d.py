"""S4D: Gu, Gupta, Goel & Ré 2022 (arXiv 2206.11893).

"On the Parameterization and Initialization of Diagonal State Space Models".

A diagonal A, K_l = 2 Re Σ_n C_n B̄_n Ā_n^l over one of each conjugate pair.

Left open by the paper, chosen here: B is absorbed into C (only their product counts; the authors'
code trains both), and every channel has its own A, so that nothing is tied. For S4D-LegS the paper
and the code have different B to start from, hence `b_init`: "ones", as `diag-legs` in the code, or
"hippo", half of HiPPO-LegS' own B, with which the response at any frequency tends to that of S4 as
N grows.
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
    check_choice,
    check_positive,
    special,
)
from longlens.layers.convolution import DiagonalKernel, RecurrentConvolution
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import hippo_nplr, hold_gain, log_steps, stable_poles

INITIALIZATIONS = ("legs", "inv", "lin")


def s4d_poles(init: str, modes: int) -> Tensor:
    """Initial λ (modes,), complex128, real part -1/2 (Eq. 8 and 9 of the paper, and S4D-LegS).

    >>> s4d_poles("lin", 2).imag.round(decimals=4).tolist()
    [0.0, 3.1416]
    """
    check_choice("init", init, INITIALIZATIONS)
    if init == "legs":
        return hippo_nplr(2 * modes)[0]
    n = torch.arange(modes, dtype=torch.float64)
    size = 2 * modes
    frequency = math.pi * n if init == "lin" else size / math.pi * (size / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), frequency)


class S4DKernel(DiagonalKernel):
    """Kernels of S4D.

    Args:
        dim: D.
        state: N, counting both of each conjugate pair (even).
        directions: M.
        init: "legs", "inv" or "lin".
        b_init: "ones" or, for "legs", "hippo": the B that C starts multiplied by.
        discretization: "zoh" or "bilinear".
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
    """

    optim_hints = special("log_decay", "frequency", "log_dt")

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        directions: int = 1,
        init: str = "legs",
        b_init: str = "ones",
        discretization: str = "zoh",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        check_choice("discretization", discretization, ("zoh", "bilinear"))
        check_choice("b_init", b_init, ("ones", "hippo") if init == "legs" else ("ones",))
        if state % 2:
            raise ValueError(f"state must be even, got {state}")
        self.discretization = discretization
        lam = s4d_poles(init, state // 2)
        self.log_decay = as_parameter(torch.log(-lam.real).repeat(dim, 1))
        self.frequency = as_parameter(lam.imag.repeat(dim, 1))
        self.log_dt = as_parameter(log_steps(dim, dt_min, dt_max))
        c = torch.randn(directions, dim, state // 2, dtype=torch.complex64)
        if b_init == "hippo":
            c = c * hippo_nplr(state)[2] / 2
        self.c = torch.nn.Parameter(as_pairs(c))

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients (M, D, N/2) and log-ratios (D, N/2)."""
        lam = stable_poles(self.log_decay, self.frequency)
        dt = torch.exp(full_precision(self.log_dt))[:, None]
        if self.discretization == "zoh":
            gain, log_ratios = hold_gain(lam, dt), lam * dt
        else:
            gain = dt / (1 - lam * dt / 2)
            log_ratios = torch.log((1 + lam * dt / 2) / (1 - lam * dt / 2))
        return 2 * as_complex(self.c) * gain, log_ratios


class S4D(RecurrentConvolution):
    """Diagonal state-space layer.

    Its options are those of :class:`S4DKernel`, ``bidirectional`` and ``output``.

    >>> S4D(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = S4DKernel
    aspects = Aspects(special_init=True, stable=True)
