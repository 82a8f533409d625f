"""S4: Gu, Goel & Ré 2021 (arXiv 2111.00396).

"Efficiently Modeling Long Sequences with Structured State Spaces".

HiPPO-LegS as normal plus low rank, bilinear discretisation, kernel from Cauchy products. `s4-v1` is
the paper's one-sided layer with a linear output; `s4` the two-sided one with a GLU that the authors
published for the Long Range Arena later.

Left open by the paper, chosen here: A = diag(λ) - p p* (not p q*) with Re λ < 0 is stable for any
parameters (Goel et al., arXiv 2202.09729); C̃ = C(I - Ā^L) is the parameter, as the paper suggests,
with L = `max_length`, so longer sequences are refused. Every channel has its own A and B, unless
`ssms` says how many there are: with fewer, channels share them and keep C and the step size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.layers.base import (
    Aspects,
    OptimHints,
    State,
    as_complex,
    as_pairs,
    as_parameter,
    check_divides,
    check_length,
    check_positive,
    special,
)
from longlens.layers.convolution import Kernel, RecurrentConvolution
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import bilinear, dplr_kernel, hippo_nplr, log_steps, stable_poles


class S4Kernel(Kernel):
    """Kernels of S4.

    Args:
        dim: D.
        state: N, counting both of each conjugate pair (even).
        directions: M.
        max_length: the longest sequence, and the length C̃ is truncated for.
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
        ssms: how many A and B there are, a divisor of D; None: one for each channel.
        dt_lr: learning rate of the step sizes; None: the model's.
    """

    def __init__(
        self,
        dim: int,
        *,
        state: int = 64,
        directions: int = 1,
        max_length: int = 1024,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        ssms: int | None = None,
        dt_lr: float | None = 1e-3,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, max_length=max_length)
        ssms = dim if ssms is None else ssms
        check_divides("ssms", ssms, "dim", dim)
        self.max_length, self.sharing = max_length, dim // ssms
        step = {"weight_decay": 0.0} | ({} if dt_lr is None else {"lr": dt_lr})
        self.optim_hints: OptimHints = {
            **special("log_decay", "frequency", "p", "b"),
            "log_dt": step,
        }
        lam, p, b, _ = hippo_nplr(state)
        self.log_decay = as_parameter(torch.log(-lam.real).repeat(ssms, 1))
        self.frequency = as_parameter(lam.imag.repeat(ssms, 1))
        self.p = as_parameter(as_pairs(p).repeat(ssms, 1, 1))
        self.b = as_parameter(as_pairs(b).repeat(ssms, 1, 1))
        self.log_dt = as_parameter(log_steps(dim, dt_min, dt_max))
        c = torch.randn(directions, dim, state // 2, dtype=torch.complex64)
        self.truncated_c = torch.nn.Parameter(as_pairs(c))

    def poles(self) -> Tensor:
        """λ (D, N/2)."""
        return self._shared(stable_poles(self.log_decay, self.frequency))

    def _shared(self, z: Tensor) -> Tensor:
        """What each channel takes of a parameter (ssms, N/2): (D, N/2)."""
        return z if self.sharing == 1 else z.repeat(self.sharing, 1)

    def factors(self) -> tuple[Tensor, Tensor]:
        """P and b, each (D, N/2)."""
        return self._shared(as_complex(self.p)), self._shared(as_complex(self.b))

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        check_length(length, self.max_length)
        taps = dplr_kernel(
            self.poles(),
            *self.factors(),
            as_complex(self.truncated_c),
            torch.exp(full_precision(self.log_dt)),
            self.max_length,
        )
        return taps[..., :length]

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ā (D, N, N), B̄ (D, N) and C (M, D, N) as dense complex128 matrices, both halves."""

        def both(z: Tensor) -> Tensor:
            return torch.cat([z, z.conj()], dim=-1).to(torch.complex128)

        lam, p, b = (both(z) for z in (self.poles(), *self.factors()))
        a = torch.diag_embed(lam) - p[..., :, None] * p.conj()[..., None, :]
        abar, bbar = bilinear(a, b, torch.exp(full_precision(self.log_dt)).double())
        eye = torch.eye(abar.shape[-1], dtype=abar.dtype, device=abar.device)
        rest = eye - torch.linalg.matrix_power(abar, self.max_length)
        # C̃ = C (I - Ā^L), solved from the right.
        c = torch.linalg.solve(rest.mT, both(as_complex(self.truncated_c))[..., None])[..., 0]
        return abar, bbar, c

    @torch.no_grad()
    def initial_state(self, batch_size: int) -> State:
        """(x (B, D, N/2), C (D, N/2)): C is recovered from C̃ once, not at every step."""
        lam = self.poles()
        c = self.dense()[2][0, :, : lam.shape[-1]].to(lam.dtype)
        return lam.new_zeros(batch_size, *lam.shape), c

    def step(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """One bilinear step: the low-rank part by Sherman-Morrison, O(N) per channel."""
        x, c = state
        lam, p, b = self.poles(), *self.factors()
        half = torch.exp(full_precision(self.log_dt))[:, None] / 2

        def low_rank(z: Tensor) -> Tensor:  # p* z over both halves of the conjugate pairs
            return 2 * (p.conj() * z).real.sum(-1, keepdim=True)

        w = x + half * (lam * x - p * low_rank(x) + 2 * b * full_precision(u)[..., None])
        diagonal = 1 - half * lam
        w, q = w / diagonal, p / diagonal
        x = w - q * half * low_rank(w) / (1 + half * low_rank(q))
        return (2 * (c * x).real.sum(-1)).to(u.dtype), (x, c)


class S4(RecurrentConvolution):
    """Structured state-space layer.

    Its options are those of :class:`S4Kernel`, ``bidirectional`` and ``output``.

    >>> S4(8, state=4, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = S4Kernel
    aspects = Aspects(special_init=True, stable=True)
