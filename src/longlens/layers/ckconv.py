"""CKConv: Romero, Kuzina, Bekkers, Tomczak & Hoogendoorn 2021 (arXiv 2102.02611).

"CKConv: Continuous Kernel Convolution For Sequential Data". The kernel is a small network with sine
activations (a SIREN), evaluated at the relative position.

Left open by the paper, chosen here: one kernel per channel and a point-wise projection after it,
where the paper makes a full D × D kernel per tap (at D = 256 and L = 1024 that is 67 million
numbers a layer); positions are divided by `max_length`; the last layer starts smaller by
√max_length, so that outputs start near unit variance.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects, check_length, check_positive, wide_call
from longlens.layers.convolution import Kernel, LongConvolution
from longlens.ops.numerics import full_precision, no_autocast


class Siren(nn.Module):
    """A perceptron with sine activations: (..., I) -> (..., O).

    Args:
        inputs: I.
        hidden: width of the two hidden layers.
        outputs: O.
        omega: frequency of the first layer.

    >>> Siren(1, 8, 4, omega=30.0)(torch.zeros(5, 1)).shape
    torch.Size([5, 4])
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, *, omega: float) -> None:
        super().__init__()
        check_positive(hidden=hidden)
        self.omega = omega
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)
        with torch.no_grad():
            # The published initialisation: unit-variance pre-activations at every depth.
            self.first.weight.uniform_(-1 / inputs, 1 / inputs)
            for layer in (self.second, self.last):
                bound = math.sqrt(6 / hidden)
                layer.weight.uniform_(-bound, bound)

    def forward(self, position: Tensor) -> Tensor:
        """Positions (..., I) -> values (..., O)."""
        h = torch.sin(self.omega * self.first(position))
        out: Tensor = self.last(torch.sin(self.second(h)))
        return out


class CKConvKernel(Kernel):
    """Kernels from a SIREN over relative positions.

    Args:
        dim: D.
        directions: M.
        hidden: width of the network.
        omega: its first frequency; higher allows rougher kernels.
        max_length: the longest sequence.
    """

    def __init__(
        self,
        dim: int,
        *,
        directions: int = 1,
        hidden: int = 32,
        omega: float = 30.0,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, max_length=max_length)
        self.shape, self.max_length = (directions, dim), max_length
        self.network = Siren(1, hidden, directions * dim, omega=omega)
        with torch.no_grad():
            self.network.last.weight.div_(math.sqrt(max_length))
            self.network.last.bias.zero_()

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        check_length(length, self.max_length)
        weight = self.network.first.weight
        with no_autocast(weight):
            wide = full_precision(weight).dtype
            position = torch.arange(length, device=weight.device, dtype=wide)
            taps: Tensor = wide_call(self.network, (position / self.max_length)[:, None])
        return taps.T.reshape(*self.shape, length)


class CKConv(LongConvolution):
    """Continuous kernel convolution.

    Its options are those of :class:`CKConvKernel`, ``bidirectional`` and ``output``.

    >>> CKConv(8, hidden=8, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kernel_type = CKConvKernel
    aspects = Aspects(special_init=True)

    def __init__(self, dim: int, *, output: str = "linear", **options: Any) -> None:
        super().__init__(dim, output=output, **options)
