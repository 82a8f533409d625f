"""ALiBi: Press, Smith & Lewis 2021 (arXiv 2108.12409).

"Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation". Softmax
attention whose scores lose m·|i-j|, with slopes m = 2^(-8h/H), h = 1 … H, fixed. The paper has
powers of two for H alone; for other H the slopes are those of its code, see `alibi_slopes`.

Left open by the paper, chosen here: the bidirectional form is symmetric in i and j; `chunk` cuts
keys and queries into blocks and `window` smooths the attention rows, as in the LaS paper's chunked
comparison (its "S + ALiBi").
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.heads import CachedAttention, fold_chunks, fold_mask, unfold_chunks, visible
from longlens.ops.family import decay_attention
from longlens.ops.las.smoothing import pool_values
from longlens.ops.masked import safe_with


def alibi_slopes(num_heads: int) -> Tensor:
    """M for every head, (H,), float32.

    Between two powers of two, P and 2P, P heads have the slopes of P heads, and the others take
    every second slope of 2P heads, from the first on, as in the authors' code.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> alibi_slopes(6)
    tensor([0.2500, 0.0625, 0.0156, 0.0039, 0.5000, 0.1250])
    """
    power = 2 ** (num_heads.bit_length() - 1)
    head = torch.arange(1, power + 1, dtype=torch.float32)
    even = 2.0 ** (-8 * head / power)
    between = 2.0 ** (-4 * (2 * head[: num_heads - power] - 1) / power)
    return torch.cat([even, between])


class AlibiAttention(CachedAttention):
    """Softmax attention with linear biases.

    Args:
        dim: D.
        num_heads: H.
        chunk: attend within blocks of this many positions; None: everywhere.
        window: width of the smoothing, see `longlens.las_attention`; 1: none. Odd if bidirectional.
        scaled_bias: divide the bias by √d as well, as Eq. 2 of the LaS paper does; the original
            adds it to the scores that are divided already.
        bidirectional: attend to both sides.
        past_only: where bidirectional, keys ahead lose nothing: the LaS paper's distance
            matrix, 0 for later keys, to the letter, which masks no score.

    >>> AlibiAttention(8, num_heads=2)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    slopes: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        chunk: int | None = None,
        window: int = 1,
        scaled_bias: bool = False,
        bidirectional: bool = False,
        past_only: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=bidirectional)
        check_positive(chunk=1 if chunk is None else chunk, window=window)
        if bidirectional and window % 2 == 0:
            raise ValueError(f"window must be odd where bidirectional, got {window}")
        if past_only and not bidirectional:
            raise ValueError("past_only=True goes with bidirectional=True: nothing is ahead")
        self.chunk, self.window, self.past_only = chunk, window, past_only
        self.smoothing = "centered" if bidirectional else "causal"
        self.aspects = Aspects(regularized=window > 1, special_init=True, stable=True)
        self.cost = "L^2" if chunk is None else "L"
        self.receptive_field = chunk
        divisor = math.sqrt(dim // num_heads) if scaled_bias else 1.0
        self.register_buffer("slopes", alibi_slopes(num_heads) / divisor)

    def bias(self, length: int, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """-m·|i-j|, -inf where a key is not seen: (B or 1, H, L, L)."""
        order = torch.arange(length, device=self.slopes.device)
        distance = order[:, None] - order
        distance = distance.clamp_min(0) if self.past_only else distance.abs()
        bias = (-self.slopes[:, None, None] * distance)[None]
        seen = visible(mask, length, self.causal, self.slopes.device)
        return (bias if seen is None else bias.masked_fill(~seen, -torch.inf)).to(dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        batch, _, length, _ = q.shape
        size = length if self.chunk is None else min(self.chunk, length)
        mask = fold_mask(mask, batch, length, size, q.device)
        q, k, v = (fold_chunks(t, size) for t in (q, k, v))
        v = pool_values(v, self.window, self.smoothing, "zero", mask)
        if self.causal and (q.is_cuda or not torch.compiler.is_compiling()):
            out = decay_attention(q, k, v, slopes=self.slopes, key_mask=mask)
        else:  # no fused form is as fast on two sides, or compiles as fast for a CPU
            bias = self.bias(size, mask, q.dtype)
            with safe_with(bias, q):
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return unfold_chunks(out, batch, length)

    def keep(self, seen: int) -> int:
        """Everything, or what the current chunk holds."""
        return seen if self.chunk is None else seen % self.chunk

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The newest query against the cache: (B, H, 1, d) -> (B, H, 1, d)."""
        v = pool_values(v, self.window, self.smoothing, "zero", None)
        distance = torch.arange(k.shape[2] - 1, -1, -1, device=k.device)
        bias = (-self.slopes[:, None] * distance)[None, :, None].to(q.dtype)
        with safe_with(bias, q):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
