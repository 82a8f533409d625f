"""Local attention: Xiong et al. 2021 (arXiv 2112.07210).

"Simple Local Attentions Remain Competitive for Long-Context Tasks". Softmax attention over a band:
each query sees the `window` last keys (and as many ahead where bidirectional), computed block by
block against the neighbouring blocks.

Left open by the paper, chosen here: the band is exact and slides with the query; whole blocks are
only how it is computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.heads import CachedAttention, fold_chunks, unfold_chunks
from longlens.ops.masked import safe_with


class LocalAttention(CachedAttention):
    """Banded softmax attention, linear in L.

    Args:
        dim: D.
        num_heads: H.
        window: a query sees keys at distances 0 … window - 1.
        bidirectional: see that far ahead too.

    >>> LocalAttention(8, num_heads=2, window=3)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)

    def __init__(
        self, dim: int, *, num_heads: int = 8, window: int = 128, bidirectional: bool = False
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=bidirectional)
        check_positive(window=window)
        self.window = window
        self.receptive_field = 2 * window - 1 if bidirectional else window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        batch, _, length, _ = q.shape
        size = min(self.window, length)
        reach = 1 if self.causal else 2  # blocks of keys beside the query's own
        blocks = -(-length // size)

        def neighbours(t: Tensor) -> Tensor:  # (B, ·, L, d) -> (B·blocks, ·, (1 + reach)·size, d)
            right = blocks * size - length + (reach - 1) * size
            t = F.pad(t, (0, 0, size, right))
            t = t.unfold(2, (1 + reach) * size, size)  # (B, ·, blocks, d, span)
            return t.permute(0, 2, 1, 4, 3).flatten(0, 1)

        real = torch.ones(1, length, device=q.device) if mask is None else mask.to(q.dtype)
        valid = neighbours(real[:, None, :, None])[..., 0] > 0  # (B·blocks, 1, span)
        query = torch.arange(size, device=q.device)[:, None] + size
        key = torch.arange((1 + reach) * size, device=q.device)
        distance = query - key if self.causal else (query - key).abs()
        near = (distance >= 0) & (distance < self.window)
        seen = (near & valid[:, :, None]) | (distance == 0)
        if mask is None:
            seen = seen.repeat(batch, 1, 1, 1)
        with safe_with(seen, q):
            out = F.scaled_dot_product_attention(
                fold_chunks(q, size), neighbours(k), neighbours(v), attn_mask=seen
            )
        return unfold_chunks(out, batch, length)

    def keep(self, seen: int) -> int:
        """The window, less the query to come."""
        return min(seen, self.window - 1)
