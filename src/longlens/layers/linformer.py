"""Linformer: Wang, Li, Khabsa, Fang & Ma 2020 (arXiv 2006.04768).

"Linformer: Self-Attention with Linear Complexity". Keys and values are projected along the sequence
to `rank` rows before softmax attention:

    y = softmax(q (E k)ᵀ / √d) (F v)        E, F: rank × L

Left open by the paper, chosen here: one E and one F per layer, shared by the heads (its "headwise
sharing"); both are sized by `max_length` and cut to the batch at hand. Bidirectional only: a
projected key mixes all positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import Aspects, check_length, check_positive
from longlens.layers.heads import MultiHead


class Linformer(MultiHead):
    """Softmax attention over a low-rank summary of keys and values, linear in L.

    Args:
        dim: D.
        num_heads: H.
        rank: rows that keys and values are projected to.
        max_length: the longest sequence.

    >>> Linformer(8, num_heads=2, rank=4, max_length=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)

    def __init__(
        self, dim: int, *, num_heads: int = 8, rank: int = 128, max_length: int = 1024
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=True)
        check_positive(rank=rank, max_length=max_length)
        self.max_length = max_length
        self.project_keys = nn.Parameter(torch.randn(rank, max_length) / rank**0.5)
        self.project_values = nn.Parameter(torch.randn(rank, max_length) / rank**0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        length = q.shape[2]
        check_length(length, self.max_length)
        if mask is not None:
            hidden = ~mask[:, None, :, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
        k = self.project_keys[:, :length] @ k
        v = self.project_values[:, :length] @ v
        return F.scaled_dot_product_attention(q, k, v)
