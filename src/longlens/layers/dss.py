"""DSS: Gupta, Gu & Berant 2022 (arXiv 2203.14343).

"Diagonal State Spaces are as Effective as Structured State Spaces".

    exp:      K_l = Re Σ_n w_n · (exp(λ_n Δ) - 1)/λ_n · exp(λ_n Δ l)
    softmax:  K_l = Re Σ_n w_n/λ_n · exp(λ_n Δ l) / Σ_{k < L} exp(λ_n Δ k)

λ starts at the skew-HiPPO spectrum, the real and imaginary parts of w at standard deviation 1.

Left open by the paper, chosen here: "softmax" sums over `max_length` taps, not over the length of
the batch at hand, so that padding changes nothing; and Re λ < 0 in both (the paper lets "softmax"
have any sign), so that no exponential overflows. The authors' later code learns one Δ for the real
parts of λ and one for the imaginary parts; they start equal, and the paper has one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.layers.base import (
    Aspects,
    as_complex,
    as_parameter,
    check_choice,
    check_positive,
    special,
)
from longlens.layers.convolution import DiagonalKernel, RecurrentConvolution
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import hippo_nplr, hold_gain, log_steps, stable_poles


class DSSKernel(DiagonalKernel):
    """Kernels of DSS; λ starts at the skew-HiPPO spectrum.

    Args:
        dim: D.
        state: N complex modes per channel.
        directions: M.
        variant: "exp" or "softmax".
        max_length: how many taps the softmax sums over ("exp" does not use it).
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
    """

    optim_hints = special("log_decay", "frequency", "log_dt", "w")

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        directions: int = 1,
        variant: str = "exp",
        max_length: int = 1024,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, state=state, max_length=max_length)
        check_choice("variant", variant, ("exp", "softmax"))
        self.variant, self.max_length = variant, max_length
        lam = hippo_nplr(2 * state)[0]  # shared by the channels, as in the paper
        self.log_decay = as_parameter(torch.log(-lam.real))
        self.frequency = as_parameter(lam.imag)
        self.log_dt = as_parameter(log_steps(dim, dt_min, dt_max))
        self.w = torch.nn.Parameter(torch.randn(directions, dim, state, 2))

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients (M, D, N) and log-ratios (D, N)."""
        lam = stable_poles(self.log_decay, self.frequency)
        dt = torch.exp(full_precision(self.log_dt))[:, None]
        gain = hold_gain(lam, dt)
        if self.variant == "softmax":
            # A geometric series: Σ_{k<L} exp(λΔk) = (exp(λΔL) - 1)/(exp(λΔ) - 1).
            gain = gain / hold_gain(lam, dt * self.max_length) / lam
        return as_complex(self.w) * gain, lam * dt


class DSS(RecurrentConvolution):
    """Diagonal state-space layer in its first form.

    Its options are those of :class:`DSSKernel`, ``bidirectional`` and ``output``.

    >>> DSS(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = DSSKernel
    aspects = Aspects(special_init=True, stable=True)

    def __init__(self, dim: int, *, output: str = "linear", **options: Any) -> None:
        super().__init__(dim, output=output, **options)
