"""TNN: Qin et al. 2023 (arXiv 2305.04749).

"Toeplitz Neural Network for Sequence Modeling". A gated unit around a Toeplitz matrix per channel,
whose entries a small network (RPE) makes from the relative position, under a decay λ^|i-j|:

    y = (SiLU(x W_u) ⊙ T · SiLU(x W_v)) W_o          T_ij = λ^|i-j| · RPE(i - j)

The RPE sees the plain integer distance and normalises its layers by their root mean square alone,
without parameters, as in the authors' code.

Left open by the paper, chosen here: one head, which is all channels; `expand` and `rpe_dim` are 1
and 32 (their code has 3 and 512 for language models, and sizes of its own for every task).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import Aspects, Mixer, check_positive, wide_call, zero_padding
from longlens.ops.conv import fft_conv
from longlens.ops.numerics import full_precision, no_autocast


class SimpleRMSNorm(nn.Module):
    """x over its root mean square along the last dimension; nothing is learned.

    >>> SimpleRMSNorm()(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    tensor([1.2000, 1.6000, 0.0000, 0.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        out: Tensor = x / (size * x.shape[-1] ** -0.5 + 1e-8)
        return out


class TNN(Mixer):
    """Gated Toeplitz unit.

    Args:
        dim: D.
        expand: width of the unit, in multiples of D.
        decay: λ, in (0, 1].
        rpe_dim: width of the network that makes the Toeplitz entries.
        rpe_layers: its hidden layers.
        bidirectional: use both sides of the Toeplitz matrix.

    >>> TNN(8, rpe_dim=8)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L log L"
    aspects = Aspects(gating=True)

    def __init__(
        self,
        dim: int,
        *,
        expand: int = 1,
        decay: float = 0.99,
        rpe_dim: int = 32,
        rpe_layers: int = 3,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, expand=expand, rpe_dim=rpe_dim, rpe_layers=rpe_layers)
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay}")
        self.causal = not bidirectional
        self.decay = decay
        width = expand * dim
        self.gate = nn.Linear(dim, width)
        self.value = nn.Linear(dim, width)
        self.output = nn.Linear(width, dim)
        layers: list[nn.Module] = [nn.Linear(1, rpe_dim)]
        for _ in range(rpe_layers):
            layers += [SimpleRMSNorm(), nn.ReLU(), nn.Linear(rpe_dim, rpe_dim)]
        self.rpe = nn.Sequential(*layers, SimpleRMSNorm(), nn.ReLU())
        self.coefficients = nn.Linear(rpe_dim, width)

    def kernel(self, distance: Tensor) -> Tensor:
        """Toeplitz entries (W, K) for signed distances i - j (K,)."""
        entries: Tensor = wide_call(self.coefficients, wide_call(self.rpe, distance[:, None]))
        return entries.T * self.decay ** distance.abs()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        v = zero_padding(F.silu(self.value(x)), mask)
        weight = self.coefficients.weight
        with no_autocast(x):
            wide = full_precision(weight).dtype
            distance = torch.arange(x.shape[1], device=x.device, dtype=wide)
            past = self.kernel(distance)
            future = None if self.causal else self.kernel(-distance - 1)
        out: Tensor = self.output(F.silu(self.gate(x)) * fft_conv(v, past, future))
        return out
