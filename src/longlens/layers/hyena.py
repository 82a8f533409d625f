"""Hyena: Poli et al. 2023 (arXiv 2302.10866).

"Hyena Hierarchy: Towards Larger Convolutional Language Models". A chain of gates and long
convolutions on `order` + 1 projections of the input, each after a short convolution:

    z ← v;  z ← x_n ⊙ (h_n * z + d_n ⊙ z)  for n = 1 … order;  y = z W

The filters h_n are a sine-activated network of the position under an exponential window.

Left open by the paper, chosen here: the window's rates lie evenly between those that reach 1 % at
0.3 and at 1.5 times `max_length`, with a floor of 0.05; the last layer of the network starts
smaller by √max_length, so that outputs start near unit variance; causal only, as in the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects, Mixer, check_length, check_positive, zero_padding
from longlens.layers.ckconv import Siren
from longlens.ops.conv import fft_conv
from longlens.ops.numerics import no_autocast


class HyenaFilter(nn.Module):
    """``filter(length) -> (order, D, length)``.

    Args:
        dim: D.
        order: number of filters per channel.
        hidden: width of the network.
        bands: sine and cosine pairs in the positional encoding.
        omega: frequency of the first sine activation.
        max_length: the longest filter.
    """

    rates: Tensor

    def __init__(
        self, dim: int, *, order: int, hidden: int, bands: int, omega: float, max_length: int
    ) -> None:
        super().__init__()
        check_positive(dim=dim, order=order, bands=bands, max_length=max_length)
        self.shape, self.bands, self.max_length = (order, dim), bands, max_length
        self.network = Siren(1 + 2 * bands, hidden, order * dim, omega=omega)
        with torch.no_grad():
            self.network.last.weight.div_(math.sqrt(max_length))
            self.network.last.bias.zero_()
        target = -math.log(1e-2)
        self.register_buffer("rates", torch.linspace(target / 1.5, target / 0.3, dim))

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps of every filter, (order, D, length)."""
        check_length(length, self.max_length)
        with no_autocast(self.rates):
            t = torch.arange(length, device=self.rates.device, dtype=self.rates.dtype)
            t = (t / self.max_length)[:, None]
            angle = 2 * math.pi * t * torch.arange(1, self.bands + 1, device=t.device)
            features = torch.cat([t, torch.cos(angle), torch.sin(angle)], dim=-1)
            window = torch.exp(-t * self.rates) + 0.05  # (L, D)
            taps = self.network(features).view(length, *self.shape) * window[:, None]
        out: Tensor = taps.permute(1, 2, 0)
        return out


class Hyena(Mixer):
    """Hyena operator.

    Args:
        dim: D.
        order: number of gates and long convolutions.
        short: taps of the short convolution after each projection.
        hidden: width of the filter network.
        bands: sine and cosine pairs in the filter's positional encoding.
        omega: frequency of the filter network's first layer.
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
        bands: int = 8,
        omega: float = 10.0,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, short=short)
        self.order = order
        width = (order + 1) * dim
        self.project = nn.Linear(dim, width)
        self.short = nn.Conv1d(width, width, short, groups=width, padding=short - 1)
        self.filter = HyenaFilter(
            dim, order=order, hidden=hidden, bands=bands, omega=omega, max_length=max_length
        )
        self.skip = nn.Parameter(torch.randn(order, dim))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        length = x.shape[1]
        p = zero_padding(self.project(x), mask).transpose(1, 2)
        p = self.short(p)[..., :length].transpose(1, 2)
        *gates, z = p.chunk(self.order + 1, dim=-1)
        filters = self.filter(length)
        for n, gate in enumerate(gates):
            z = zero_padding(z, mask)
            z = gate * (fft_conv(z, filters[n]) + self.skip[n].to(z.dtype) * z)
        out: Tensor = self.output(z)
        return out
