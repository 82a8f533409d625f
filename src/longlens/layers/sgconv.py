"""SGConv: Li, Cai, Zhang, Chen & Dey 2022 (arXiv 2210.09298).

"What Makes Convolutional Models Great on Long Sequence Modeling?". A kernel made of sub-kernels of
growing length, each interpolated from the same number of parameters and weighted by a decay:

    k = [w_0 ; γ·up_1(w_1) ; γ²·up_2(w_2) ; …] / Z,   lengths d, d, 2d, 4d, …

Left open by the paper, chosen here: the number of scales follows `max_length`, not the batch at
hand; Z is the norm of each channel's kernel at the start, kept fixed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, as_parameter, check_length, check_positive, special
from longlens.layers.convolution import Kernel, LongConvolution


class SGConvKernel(Kernel):
    """Multi-scale kernels.

    Args:
        dim: D.
        directions: M.
        scale_dim: d, parameters per scale and channel.
        decay: γ, the weight of a scale relative to the one before.
        max_length: the longest sequence.
    """

    optim_hints = special("w")

    norm: Tensor

    def __init__(
        self,
        dim: int,
        *,
        directions: int = 1,
        scale_dim: int = 32,
        decay: float = 0.5,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, scale_dim=scale_dim, max_length=max_length)
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay}")
        self.decay, self.max_length = decay, max_length
        scales = 1 + max(0, math.ceil(math.log2(max_length / scale_dim)))
        self.w = as_parameter(torch.randn(scales, directions, dim, scale_dim))
        self.register_buffer("norm", torch.ones(directions, dim, 1))
        with torch.no_grad():
            self.norm.copy_(self(max_length).norm(dim=-1, keepdim=True))

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        check_length(length, self.max_length)
        size = self.w.shape[-1]
        parts, covered = [], 0
        for i, w in enumerate(self.w):
            if covered >= length:  # longer scales lie beyond the sequence
                break
            stretched = size * 2 ** max(0, i - 1)
            up = F.interpolate(w, size=stretched, mode="linear") if stretched > size else w
            parts.append(self.decay**i * up)
            covered += stretched
        return torch.cat(parts, dim=-1)[..., :length] / self.norm


class SGConv(LongConvolution):
    """Structured global convolution.

    Its options are those of :class:`SGConvKernel`, ``bidirectional`` and ``output``.

    >>> SGConv(8, scale_dim=4, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = SGConvKernel
    aspects = Aspects(regularized=True, special_init=True)
