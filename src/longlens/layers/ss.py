"""SS (LSSL): Gu et al. 2021 (arXiv 2110.13985).

"Combining Recurrent, Convolutional, and Continuous-time Models with Linear State-Space Layers".

A dense A shared by the channels, one step size per channel, bilinear discretisation
(the paper's GBT with α = ½): K_l = C Ā^l B̄.

Left open by the paper, chosen here: A is learned without structure, from HiPPO-LegS (the paper
fixes it, or learns it in a structured form whose algorithm it found too unstable to use); one
output per channel (M = 1). C starts standard normal, as in the authors' code, whose own A and B are
those of HiPPO-LegT, with Δ kept fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.layers.base import Aspects, State, as_parameter, check_positive, special
from longlens.layers.convolution import Kernel, RecurrentConvolution
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import bilinear, dense_kernel, hippo_legs, log_steps


class SSKernel(Kernel):
    """Kernels of a dense state-space model.

    Args:
        dim: D.
        state: N.
        directions: M.
        dt_min: smallest initial step size.
        dt_max: largest initial step size.
    """

    optim_hints = special("a", "b", "log_dt")

    def __init__(
        self,
        dim: int,
        *,
        state: int = 32,
        directions: int = 1,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, state=state)
        a, b = hippo_legs(state)
        self.a = as_parameter(a)
        self.b = as_parameter(b)
        self.log_dt = as_parameter(log_steps(dim, dt_min, dt_max))
        self.c = torch.nn.Parameter(torch.randn(directions, dim, state))

    def discrete(self) -> tuple[Tensor, Tensor]:
        """Ā (D, N, N) and B̄ (D, N)."""
        a, b, log_dt = (full_precision(p) for p in (self.a, self.b, self.log_dt))
        return bilinear(a, b, torch.exp(log_dt))

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        return dense_kernel(*self.discrete(), full_precision(self.c), length)

    def initial_state(self, batch_size: int) -> State:
        """(x (B, D, N), Ā, B̄): the matrices are made discrete once, not at every step."""
        a, b = self.discrete()
        return b.new_zeros(batch_size, *b.shape), a, b

    def step(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x ← Ā x + B̄ u, y = C x; u (B, D) -> y (B, D)."""
        x, a, b = state
        x = torch.einsum("dij,bdj->bdi", a, x) + b * full_precision(u)[..., None]
        return (self.c[0] * x).sum(-1).to(u.dtype), (x, a, b)


class SS(RecurrentConvolution):
    """Linear state-space layer with a dense transition.

    Its options are those of :class:`SSKernel`, ``bidirectional`` and ``output``.

    >>> SS(8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = SSKernel
    aspects = Aspects(special_init=True)

    def __init__(self, dim: int, *, output: str = "linear", **options: Any) -> None:
        super().__init__(dim, output=output, **options)
