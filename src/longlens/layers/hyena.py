"""Hyena: Poli et al. 2023 (arXiv 2302.10866).

"Hyena Hierarchy: Towards Larger Convolutional Language Models". A chain of gates and long
convolutions on `order` + 1 projections of the input, each after a short convolution:

    z ← v;  z ← h_n * (x_n ⊙ z) + d_n ⊙ (x_n ⊙ z)  for n = 1 … order - 1;  y = (x_order ⊙ z) W

The filters h_n are a network of the position with sine activations, whose frequencies are learned,
under an exponential window.

This is the authors' code (safari). Its chain begins with a gate, so that `order` gates enclose
`order` - 1 long filters; the recurrence in the paper begins with one more filter, on v itself.

Left open by the paper, chosen here: sizes and the first frequency are those of the authors'
language models; the features of a position stay fixed, where their code trains them; causal only,
as in the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    Mixer,
    check_length,
    check_positive,
    wide_call,
    zero_padding,
)
from longlens.ops.conv import fft_conv
from longlens.ops.numerics import no_autocast

# The window reaches 1 % of its start at 0.3 (last channel) to 1.5 (first) times the longest filter.
FAST, SLOW = -math.log(1e-2) / 0.3, -math.log(1e-2) / 1.5


class HyenaFilter(nn.Module):
    """``filter(length) -> (count, D, length)``.

    Args:
        dim: D.
        count: number of filters per channel.
        hidden: width of the network's three hidden layers.
        bands: frequencies in the features of a position.
        omega: initial frequency of the sine activations.
        max_length: the longest filter.
    """

    def __init__(
        self, dim: int, *, count: int, hidden: int, bands: int, omega: float, max_length: int
    ) -> None:
        super().__init__()
        check_positive(dim=dim, hidden=hidden, bands=bands, max_length=max_length)
        self.dim, self.bands, self.max_length = dim, bands, max_length
        sizes = (1 + 2 * bands, hidden, hidden, hidden)
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))
        self.frequency = nn.Parameter(torch.full((hidden,), float(omega)))  # one for all layers
        self.last = nn.Linear(hidden, dim * count, bias=False)

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps of every filter, (count, D, length)."""
        check_length(length, self.max_length)
        device, dtype = self.frequency.device, self.frequency.dtype
        with no_autocast(self.frequency):
            position = torch.arange(length, device=device, dtype=dtype)[:, None]
            time = position / max(1, self.max_length - 1)  # 0 to 1 over the longest filter
            band = torch.linspace(1e-4, self.bands - 1, self.bands, device=device, dtype=dtype)
            angle = 2 * math.pi / self.max_length * position * band
            h = torch.cat([time, torch.cos(angle), -torch.sin(angle)], dim=-1)
            for layer in self.layers:
                h = torch.sin(self.frequency * layer(h))
            channels = self.last.out_features
            rates = torch.linspace(SLOW, FAST, channels, device=device, dtype=dtype)
            taps: Tensor = self.last(h) * torch.exp(-time * rates)
        return taps.view(length, self.dim, -1).permute(2, 1, 0)


class Hyena(Mixer):
    """Hyena operator.

    Args:
        dim: D.
        order: number of gates, at least 2; one long convolution stands between two of them.
        short: taps of the short convolution after each projection.
        hidden: width of the filter network.
        bands: frequencies in the filter's features of a position.
        omega: initial frequency of the filter network's sine activations.
        max_length: the longest sequence.

    >>> Hyena(8, hidden=8, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L log L"
    aspects = Aspects(regularized=True, special_init=True, gating=True)

    def __init__(
        self,
        dim: int,
        *,
        order: int = 2,
        short: int = 3,
        hidden: int = 64,
        bands: int = 16,
        omega: float = 14.0,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, short=short)
        if order < 2:
            raise ValueError(f"order must be at least 2, got {order}")
        self.order = order
        width = (order + 1) * dim
        self.project = nn.Linear(dim, width)
        self.short = nn.Conv1d(width, width, short, groups=width, padding=short - 1)
        self.filter = HyenaFilter(
            dim, count=order - 1, hidden=hidden, bands=bands, omega=omega, max_length=max_length
        )
        self.skip = nn.Parameter(torch.randn(order - 1, dim))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        length = x.shape[1]
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        p = zero_padding(self.project(x), mask).transpose(1, 2)
        p = self.short(p)[..., :length].transpose(1, 2)
        last, *gates, z = p.chunk(self.order + 1, dim=-1)
        filters = wide_call(self.filter, length)
        for n, gate in enumerate(reversed(gates)):
            z = zero_padding(gate * z, mask)
            z = fft_conv(z, filters[n]) + self.skip[n].to(z.dtype) * z
        out: Tensor = self.output(last * z)
        return out
