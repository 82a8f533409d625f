"""gMLP: Liu, Dai, So & Le 2021 (arXiv 2105.08050).

"Pay Attention to MLPs". The only interaction between positions is one learned L × L matrix inside a
gate:

    u, v = GELU(x W_in)        y = (u ⊙ (M · LayerNorm(v) + b)) W_out

M starts near 0 and b at 1, so the layer starts as a plain perceptron.

Left open by the paper, chosen here: M is sized by `max_length` and cut to the batch at hand.
`toeplitz=True` (`gmlp-toeplitz`) makes M_ij depend on i - j alone, one such matrix for each of
`groups` groups of channels (the form used for ListOps in arXiv 2501.14850), at O(L log L).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    Mixer,
    check_divides,
    check_length,
    check_positive,
    zero_padding,
)
from longlens.ops.conv import fft_conv


class GMLP(Mixer):
    """Spatial gating unit with its two projections.

    Args:
        dim: D.
        expand: width of u and of v, in multiples of D.
        max_length: the longest sequence.
        toeplitz: make the matrix a convolution.
        groups: how many different convolutions (only with ``toeplitz``).
        bidirectional: use both sides of the matrix; else its lower triangle.

    >>> GMLP(8, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(special_init=True, gating=True, normalized=True)

    def __init__(
        self,
        dim: int,
        *,
        expand: int = 2,
        max_length: int = 1024,
        toeplitz: bool = False,
        groups: int = 4,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, expand=expand, max_length=max_length)
        width = expand * dim
        if toeplitz:
            check_divides("groups", groups, "expand * dim", width)
        self.causal = not bidirectional
        self.cost = "L log L" if toeplitz else "L^2"
        self.toeplitz, self.max_length = toeplitz, max_length
        self.input = nn.Linear(dim, 2 * width)
        self.norm = nn.LayerNorm(width)
        small = 1e-3 / max_length
        shape = (1 + bidirectional, groups, max_length) if toeplitz else (max_length, max_length)
        self.spatial = nn.Parameter(torch.empty(shape).uniform_(-small, small))
        self.bias = nn.Parameter(torch.ones(max_length))
        self.output = nn.Linear(width, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        length = x.shape[1]
        check_length(length, self.max_length)
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        u, v = F.gelu(self.input(x)).chunk(2, dim=-1)
        v = zero_padding(self.norm(v).to(u.dtype), mask)
        if self.toeplitz:
            taps = self.spatial.repeat_interleave(v.shape[-1] // self.spatial.shape[1], dim=1)
            mixed = fft_conv(v, taps[0], None if self.causal else taps[1])
        else:
            matrix = self.spatial[:length, :length]
            mixed = torch.matmul(torch.tril(matrix) if self.causal else matrix, v)
        out: Tensor = self.output(u * (mixed + self.bias[:length, None].to(u.dtype)))
        return out
