"""LongConv: Fu et al. 2023 (arXiv 2302.06646).

"Simple Hardware-Efficient Long Convolutions for Sequence Modeling" (FlashButterfly). Every tap is a
parameter; two regularisers make that work:

    squash(k) = sign(k) · max(|k| - λ, 0)          smooth(k)_l = mean(k_{l-p}, …, k_{l+p})

Taps start as Gaussian noise under exp(-l/L · (D/2)^(c/D)), c the channel: memories of many lengths.

Left open by the paper, chosen here: smoothing comes first, then the squash (so that small taps are
exactly zero); kernels start with energy 1 per channel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, as_parameter, check_length, check_positive, special
from longlens.layers.convolution import Kernel, LongConvolution


def squash(kernel: Tensor, threshold: float) -> Tensor:
    """Shrink towards zero by ``threshold``; what is smaller becomes exactly zero.

    >>> squash(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-2.,  0.,  1.])
    """
    return torch.sign(kernel) * F.relu(kernel.abs() - threshold)


def smooth(kernel: Tensor, width: int) -> Tensor:
    """Moving average of odd ``width`` along the last dimension, zeros beyond the ends.

    >>> smooth(torch.tensor([[3.0, 0.0, 3.0]]), 3)
    tensor([[1., 2., 1.]])
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"smoothing must be odd and at least 1, got {width}")
    if width == 1:
        return kernel
    return F.avg_pool1d(kernel, width, stride=1, padding=width // 2)


class LongConvKernel(Kernel):
    """Explicit kernels with squash and smoothing.

    Args:
        dim: D.
        directions: M.
        max_length: the longest sequence, and the number of taps.
        threshold: λ of the squash; 0 turns it off.
        smoothing: odd width 2p + 1 of the moving average; 1 turns it off.
    """

    optim_hints = special("taps")

    def __init__(
        self,
        dim: int,
        *,
        directions: int = 1,
        max_length: int = 1024,
        threshold: float = 0.003,
        smoothing: int = 3,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, max_length=max_length)
        if threshold < 0:
            raise ValueError(f"threshold must not be negative, got {threshold}")
        smooth(torch.zeros(1, 1), smoothing)  # refuses an even width now, not at the first batch
        self.threshold, self.smoothing, self.max_length = threshold, smoothing, max_length
        rate = (dim / 2) ** (torch.arange(dim) / dim)
        envelope = torch.exp(-torch.arange(max_length) / max_length * rate[:, None])
        taps = torch.randn(directions, dim, max_length) * envelope
        self.taps = as_parameter(taps / taps.norm(dim=-1, keepdim=True))

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        check_length(length, self.max_length)
        return squash(smooth(self.taps, self.smoothing), self.threshold)[..., :length]


class LongConv(LongConvolution):
    """Long convolution with one parameter per tap.

    Its options are those of :class:`LongConvKernel`, ``bidirectional`` and ``output``.

    >>> LongConv(8, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = LongConvKernel
    aspects = Aspects(regularized=True, special_init=True)
