"""MEGA: Ma et al. 2022 (arXiv 2209.10655).

"Mega: Moving Average Equipped Gated Attention". A damped moving average of the input feeds a
single-head gated attention and the gates around it (Eq. 5 to 13):

    x' = EMA(x)                z = SiLU(x' W_z)        q, k = κ_q z + μ_q, κ_k z + μ_k
    v = SiLU(x W_v)            o = f(q kᵀ/τ + bias) v   g = SiLU(x' W_g)
    h = SiLU(x' W_h + (g ⊙ o) U_h)      u = σ(x' W_u)   y = u ⊙ h + (1 - u) ⊙ x

`mega-chunk` attends within chunks, while the average still runs over the whole sequence. The last
equation is MEGA's residual connection: a block adds no other, and where it normalises before the
mixer, x there is the input before the norm (``kept``).

The relative bias is "rotary", (R_i a)·(R_j b), which works at any length and is a plain inner
product, so it rides along as extra width of q and k; or "simple", a learned number for every
distance j - i up to `max_length`, which the authors' runs on the Long Range Arena have.

Left open by the paper, chosen here: τ is √z for softmax and, for Laplace, the number of keys that a
query can see; in the bidirectional form both averages include the present, as in the paper.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Aspects,
    Mixer,
    State,
    check_choice,
    check_length,
    check_positive,
    check_step,
    zero_padding,
)
from longlens.layers.heads import fold_chunks, fold_mask, unfold_chunks, visible
from longlens.ops.conv import fft_conv
from longlens.ops.ema import ema_kernel, ema_step
from longlens.ops.masked import safe_with
from longlens.ops.numerics import full_precision
from longlens.ops.rotary import rotary_angles, rotate


class DampedEMA(nn.Module):
    """Multi-dimensional damped exponential moving average over (B, L, D).

    Args:
        dim: D.
        averages: N per channel.
        bidirectional: add a second set that runs from the end.
    """

    def __init__(self, dim: int, *, averages: int, bidirectional: bool) -> None:
        super().__init__()
        check_positive(dim=dim, averages=averages)
        shape = (1 + bidirectional, dim, averages)
        # The published initialisation: β alternates in sign, so that averages start different.
        sign = torch.tensor([1.0, -1.0]).repeat(averages)[:averages]
        self.alpha = nn.Parameter(0.2 * torch.randn(shape))
        self.delta = nn.Parameter(0.2 * torch.randn(shape))
        self.beta = nn.Parameter(sign + 0.02 * torch.randn(shape))
        self.eta = nn.Parameter(torch.randn(shape))
        self.skip = nn.Parameter(torch.randn(dim))

    def rates(self, direction: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """α, δ in (0, 1), β and η/√N, each (D, N): the sum over averages starts near unit size."""
        return (
            torch.sigmoid(self.alpha[direction]),
            torch.sigmoid(self.delta[direction]),
            self.beta[direction],
            self.eta[direction] / math.sqrt(self.eta.shape[-1]),
        )

    def forward(self, x: Tensor) -> Tensor:
        """X (B, L, D) with zeros at padding -> (B, L, D)."""
        length = x.shape[1]
        past, future = ema_kernel(*self.rates(), length), None
        if self.alpha.shape[0] == 2:
            both = ema_kernel(*self.rates(1), length)
            # Each kernel counts the present; the two-sided convolution has it on one side only.
            past, future = torch.cat([past[:, :1] + both[:, :1], past[:, 1:]], dim=1), both[:, 1:]
        return F.silu(fft_conv(x, past, future) + self.skip.to(x.dtype) * x)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x (B, D), h (B, D, N) -> y (B, D), h (B, D, N)."""
        y, h = ema_step(full_precision(x), h, *self.rates())
        return F.silu(y.to(x.dtype) + self.skip.to(x.dtype) * x), h


def laplace(scores: Tensor) -> Tensor:
    """The paper's Laplace attention function, ½(1 + erf((x - μ)/(σ√2))), μ = √½, σ = √(1/4π).

    >>> laplace(torch.tensor([0.5**0.5]))
    tensor([0.5000])
    """
    return 0.5 * (1 + torch.erf((scores - math.sqrt(0.5)) * math.sqrt(2 * math.pi)))


class Mega(Mixer):
    """Moving average, single-head gated attention, output gate.

    Args:
        dim: D.
        query_dim: z, the width of queries and keys (even).
        value_dim: width of the values; None: 2D.
        averages: moving averages per channel.
        attention: "softmax" or "laplace".
        relative_bias: "rotary", or "simple": a learned number for every distance.
        max_length: the longest sequence for "simple" without chunks.
        chunk: attend within blocks of this many positions; None: everywhere.
        bidirectional: averages and attention on both sides.

    >>> Mega(8, query_dim=4, chunk=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(special_init=True, stable=True, gating=True)
    carries_input = True

    def __init__(
        self,
        dim: int,
        *,
        query_dim: int = 64,
        value_dim: int | None = None,
        averages: int = 16,
        attention: str = "softmax",
        relative_bias: str = "rotary",
        max_length: int = 1024,
        chunk: int | None = None,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        width = 2 * dim if value_dim is None else value_dim
        self.reach = max_length if chunk is None else chunk
        check_positive(dim=dim, value_dim=width, max_length=max_length, chunk=self.reach)
        check_choice("attention", attention, ("softmax", "laplace"))
        check_choice("relative_bias", relative_bias, ("rotary", "simple"))
        if query_dim < 2 or query_dim % 2:
            raise ValueError(f"query_dim must be even and at least 2, got {query_dim}")
        self.causal = not bidirectional
        self.cost = "L^2" if chunk is None else "L log L"
        self.attention, self.chunk = attention, chunk
        self.ema = DampedEMA(dim, averages=averages, bidirectional=bidirectional)
        self.value = nn.Linear(dim, width)
        self.split = (query_dim, width, dim, dim)
        self.project = nn.Linear(dim, sum(self.split))  # z, g, h, u from x'
        self.mix = nn.Linear(width, dim, bias=False)
        self.scale = nn.Parameter(0.02 * torch.randn(2, query_dim))
        self.shift = nn.Parameter(torch.zeros(2, query_dim))
        self.simple = relative_bias == "simple"
        if self.simple:  # of distance j - i at place reach - 1 + j - i
            self.bias_table = nn.Parameter(0.02 * torch.randn(2 * self.reach - 1))
        else:
            self.bias_query = nn.Parameter(0.02 * torch.randn(query_dim))
            self.bias_key = nn.Parameter(0.02 * torch.randn(query_dim))
        for layer in (self.value, self.project, self.mix):  # as published
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def queries_keys(self, z: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Z (B, L, z) -> q, k (B, L, z), with the rotary bias (B, L, 2z): then q·k has it."""
        z = F.silu(z)
        q, k = (z * self.scale[i].to(z.dtype) + self.shift[i].to(z.dtype) for i in (0, 1))
        if self.attention == "softmax":
            q = q / math.sqrt(z.shape[-1])
        if self.simple:
            return q, k
        offset = torch.arange(z.shape[1], device=z.device) + first
        if self.chunk is not None:
            offset = offset % self.chunk
        angles = rotary_angles(offset, z.shape[-1])

        def join(t: Tensor, vector: Tensor) -> Tensor:
            return torch.cat([t, rotate(vector, *angles).to(t.dtype).expand_as(t)], dim=-1)

        return join(q, self.bias_query), join(k, self.bias_key)

    def simple_bias(self, queries: int, keys: int) -> Tensor:
        """b_(j-i) of the last ``queries`` of ``keys`` positions, (queries, keys)."""
        check_length(keys, self.reach)
        windows = self.bias_table[self.reach - keys : self.reach + queries - 1]
        return windows.unfold(0, keys, 1).flip(0)  # row i begins at distance -i

    def weights_laplace(self, q: Tensor, k: Tensor, seen: Tensor | None) -> Tensor:
        """Laplace attention weights (B, 1, L, S); the product q·k is divided by the keys seen."""
        if self.simple:
            product, bias = q @ k.mT, self.simple_bias(q.shape[-2], k.shape[-2])
        else:
            half = q.shape[-1] // 2
            product = q[..., :half] @ k[..., :half].mT
            bias = q[..., half:] @ k[..., half:].mT
        if seen is None:
            return laplace(product / k.shape[-2] + bias)
        return laplace(product / seen.sum(-1, keepdim=True) + bias) * seen

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k (B, 1, L, z or 2z), v (B, 1, L, W), mask (B, L) or None -> (B, 1, L, W)."""
        plain = mask is None and self.attention == "softmax" and not self.simple
        if plain:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=1.0)
        seen = visible(mask, q.shape[2], self.causal, q.device)
        if self.attention == "laplace":
            return self.weights_laplace(q, k, seen).to(v.dtype) @ v
        if self.simple:
            bias = self.simple_bias(q.shape[2], k.shape[2]).to(q.dtype)[None, None]
            seen = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
        with safe_with(seen, q):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0)

    def gated(self, kept: Tensor, o: Tensor, g: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """Output gate between the new and the kept: everything (..., D), o and g (..., W)."""
        h = F.silu(h + self.mix(F.silu(g) * o))
        u = torch.sigmoid(u)
        return u * h + (1 - u) * kept

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, kept: Tensor | None = None
    ) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D).

        ``kept`` (B, L, D) is what stays where the gate u is closed, x before a norm; None: x.
        """
        x = zero_padding(x, mask)
        batch, length = x.shape[:2]
        z, g, h, u = self.project(self.ema(x)).split(self.split, dim=-1)
        q, k = self.queries_keys(z)
        q, k, v = q[:, None], k[:, None], F.silu(self.value(x))[:, None]
        if self.chunk is None:
            o = self.attend(q, k, v, mask)
        else:
            size = min(self.chunk, length)
            mask = fold_mask(mask, batch, length, size, x.device)
            q, k, v = (fold_chunks(t, size) for t in (q, k, v))
            o = unfold_chunks(self.attend(q, k, v, mask), batch, length)
        return self.gated(x if kept is None else kept, o[:, 0], g, h, u)

    def initial_state(self, batch_size: int) -> State:
        """Averages (B, D, N), cached keys (B, T, z or 2z) and cached values (B, T, W)."""
        check_step(self)
        average = self.ema.alpha.new_zeros(batch_size, *self.ema.alpha.shape[1:])
        keys = average.new_zeros(batch_size, 0, (2 - self.simple) * self.split[0])
        values = average.new_zeros(batch_size, 0, self.split[1])
        return average, keys, values

    def step(
        self, x: Tensor, state: State | None = None, *, kept: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One step: x and kept (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        average, keys, values = state
        if self.chunk is not None and keys.shape[1] == self.chunk:  # a new chunk starts
            keys, values = keys[:, :0], values[:, :0]
        smoothed, average = self.ema.step(x, average)
        z, g, h, u = self.project(smoothed).split(self.split, dim=-1)
        q, k = self.queries_keys(z[:, None], first=keys.shape[1])
        keys = torch.cat([keys.to(k.dtype), k], dim=1)
        values = torch.cat([values.to(k.dtype), F.silu(self.value(x))[:, None]], dim=1)
        if self.attention == "laplace":
            weights = self.weights_laplace(q[:, None], keys[:, None], None)[:, 0]
        else:
            scores = q @ keys.mT
            if self.simple:
                scores = scores + self.simple_bias(1, keys.shape[1]).to(scores.dtype)
            weights = torch.softmax(scores, dim=-1)
        o = (weights.to(values.dtype) @ values)[:, 0]
        return self.gated(x if kept is None else kept, o, g, h, u), (average, keys, values)
