"""Linear attention: Katharopoulos, Vyas, Pappas & Fleuret 2020 (arXiv 2006.16236).

"Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention". Weights
φ(q_i)·φ(k_j) with φ(x) = elu(x) + 1, normalised; a recurrence when causal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.layers.base import Aspects, State, check_step
from longlens.layers.heads import MultiHead, merge_heads
from longlens.ops.linear import elu_features, linear_attention
from longlens.ops.numerics import full_precision, no_autocast


class LinearAttention(MultiHead):
    """Attention with a positive feature map instead of a softmax, linear in L.

    Args:
        dim: D.
        num_heads: H.
        bidirectional: attend to both sides.

    >>> LinearAttention(8, num_heads=2)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)

    def __init__(self, dim: int, *, num_heads: int = 8, bidirectional: bool = False) -> None:
        super().__init__(dim, num_heads, bidirectional=bidirectional)

    def features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """φ: (..., d) -> (..., F)."""
        return elu_features(x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        with no_autocast(v):
            q = self.features(full_precision(q), is_query=True)
            k = self.features(full_precision(k), is_query=False)
            if mask is not None:
                k = k.masked_fill(~mask[:, None, :, None], 0)
            return linear_attention(q, k, v, causal=self.causal)

    def initial_state(self, batch_size: int) -> State:
        """Sums over the past: φ(k) vᵀ (B, H, F, d) and φ(k) (B, H, F)."""
        check_step(self)
        weight = self.value.weight
        width = len(weight) // self.num_heads
        features = self.features(weight.new_zeros(1, width), is_query=False).shape[-1]
        shape = (batch_size, self.num_heads, features)
        return weight.new_zeros(*shape, width), weight.new_zeros(shape)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step in O(1) memory: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        q, k, v = self.project(x[:, None])
        with no_autocast(v):
            q = self.features(full_precision(q), is_query=True)[:, :, 0]
            k = self.features(full_precision(k), is_query=False)[:, :, 0]
            memory = state[0] + k[..., None] * full_precision(v)
            total = state[1] + k
            weight = (q * total).sum(-1, keepdim=True)
            y = torch.einsum("bhf,bhfd->bhd", q, memory)
            y = (y / weight.clamp_min(torch.finfo(y.dtype).tiny)).to(v.dtype)
        return self.output(merge_heads(y[:, :, None]))[:, 0], (memory, total)
