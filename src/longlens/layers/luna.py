"""Luna: Ma et al. 2021 (arXiv 2106.01540).

"Luna: Linear Unified Nested Attention". A short learned sequence p first attends to the input
(pack), then the input attends to the result (unpack):

    bidirectional:  y = Attn(x, z, z) with z = Attn(p, x, x)
    causal (§3.3):  a = ω(p cᵀ/√d);  s_t = softmax((1/t) (q_t/√d) Σ_{j≤t} k_jᵀ a_j);
                    y_t = (1/t) s_t Σ_{j≤t} a_jᵀ v_j

The causal form has two projections of the input to keys, c to pack and k to unpack, and divides
both queries by √d, as in the authors' code.

Left open by the paper, chosen here: every layer owns its p (the paper passes it from layer to
layer); ω(x) = elu(x) + 1, one of the two it names and the code's; keys and values are different
projections (in the code by default the same one, `tie_kv`); t counts real tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import Aspects, State, check_positive, check_step, zero_padding
from longlens.layers.heads import MultiHead, merge_heads, split_heads
from longlens.ops.linear import elu_features, linear_attention
from longlens.ops.masked import safe_with
from longlens.ops.numerics import full_precision, no_autocast


class Luna(MultiHead):
    """Nested attention through a short learned sequence, linear in L.

    Args:
        dim: D.
        num_heads: H.
        memory: length of the learned sequence p.
        bidirectional: attend to both sides.

    >>> Luna(8, num_heads=2, memory=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)

    def __init__(
        self, dim: int, *, num_heads: int = 8, memory: int = 16, bidirectional: bool = True
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=bidirectional)
        check_positive(memory=memory)
        self.memory = nn.Parameter(torch.randn(memory, dim) / dim**0.5)
        self.memory_query = nn.Linear(dim, dim)
        if bidirectional:
            self.packed_key = nn.Linear(dim, dim)
            self.packed_value = nn.Linear(dim, dim)
        else:
            self.pack_key = nn.Linear(dim, dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        p = split_heads(self.memory_query(self.memory)[None], self.num_heads)  # (1, H, M, d)
        keys = None if mask is None else mask[:, None, None, :]
        p = p.expand(q.shape[0], -1, -1, -1)
        with safe_with(keys, p):
            packed = merge_heads(F.scaled_dot_product_attention(p, k, v, attn_mask=keys))
        z_key = split_heads(self.packed_key(packed), self.num_heads)
        z_value = split_heads(self.packed_value(packed), self.num_heads)
        return F.scaled_dot_product_attention(q, z_key, z_value)

    def _causal_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X (B, L, D) -> q/√d, k, v (B, H, L, d) and the weights a (B, H, L, M) that pack."""
        q, k, v = self.project(x)
        c = split_heads(self.pack_key(x), self.num_heads)
        p = split_heads(self.memory_query(self.memory)[None], self.num_heads)
        with no_autocast(x):
            q, k, v, c, p = (full_precision(t) for t in (q, k, v, c, p))
            scale = k.shape[-1] ** -0.5
            return scale * q, k, v, elu_features(scale * c @ p.mT)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        if not self.causal or x.shape[1] == 0:
            return super().forward(x, mask)
        x = zero_padding(x, mask)
        q, k, v, pack = self._causal_parts(x)
        with no_autocast(x):
            real = torch.ones_like(k[:, :1, :, :1]) if mask is None else mask[:, None, :, None]
            pack = pack * real
            count = real.to(k.dtype).cumsum(2).clamp_min(1)
            scores = linear_attention(q, k, pack, causal=True, normalize=False) / count
            unpack = torch.softmax(scores, dim=-1)
            y = linear_attention(unpack, pack, v, causal=True, normalize=False) / count
        out: Tensor = self.output(merge_heads(y).to(x.dtype))
        return out

    def initial_state(self, batch_size: int) -> State:
        """Sums kᵀa (B, H, d, M) and aᵀv (B, H, M, d) over the past, and how long it is."""
        check_step(self)
        memory, dim = self.memory.shape
        keys = self.memory.new_zeros(batch_size, self.num_heads, dim // self.num_heads, memory)
        count = keys.new_zeros((), dtype=torch.long)  # bfloat16 stops counting at 256
        return keys, keys.mT.clone(), count

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step in O(1) memory: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        q, k, v, pack = self._causal_parts(x[:, None])
        with no_autocast(x):
            keys, values, count = state[0] + k.mT @ pack, state[1] + pack.mT @ v, state[2] + 1
            unpack = torch.softmax(q @ keys / count, dim=-1)
            y = merge_heads(unpack @ values / count).to(x.dtype)
        return self.output(y)[:, 0], (keys, values, count)
