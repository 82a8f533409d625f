"""H3: Dao, Fu et al. 2022 (arXiv 2212.14052).

"Hungry Hungry Hippos: Towards Language Modeling with State Space Models". Linear attention whose
two sums over the past are state spaces: a shift (which remembers the last tokens exactly) on the
keys, a diagonal one on the key-value products:

    y = q ⊙ diag_ssm(shift_ssm(k) ⊙ v)

With `head_dim` > 1 the product k ⊗ v is an outer product inside each head.

The diagonal state space is S4D-Lin under the bilinear transform, and a skip term follows each of
the two, as in the authors' code; the shift's skip is part of its first tap.

Left open by the paper, chosen here: all outer products of a head share that head's diagonal kernel;
channels of the output stay ordered by head, where the authors' code orders them by their place
inside the head (a permutation of the columns of the last projection). Causal only, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects, Mixer, State, check_divides, check_positive, zero_padding
from longlens.layers.s4d import S4DKernel
from longlens.ops.conv import fft_conv


class H3(Mixer):
    """Two state spaces with multiplicative interactions.

    Args:
        dim: D.
        state: N of the diagonal state space.
        shift: how many tokens the shift state space remembers.
        head_dim: width of a head; the state has D/head_dim · head_dim² channels.

    >>> H3(8, state=4, shift=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L log L"
    aspects = Aspects(special_init=True, stable=True, gating=True)

    def __init__(self, dim: int, *, state: int = 64, shift: int = 64, head_dim: int = 1) -> None:
        super().__init__()
        check_positive(dim=dim, shift=shift)
        check_divides("head_dim", head_dim, "dim", dim)
        self.head_dim, self.num_heads = head_dim, dim // head_dim
        self.project = nn.Linear(dim, 3 * dim)
        taps = torch.empty(dim, shift).uniform_(-(shift**-0.5), shift**-0.5)
        taps[:, 0] += torch.randn(dim)  # the skip term
        self.shift_taps = nn.Parameter(taps)
        self.kernel = S4DKernel(self.num_heads, state=state, init="lin", discretization="bilinear")
        self.skip = nn.Parameter(torch.randn(self.num_heads))
        self.output = nn.Linear(dim, dim)

    def _outer(self, k: Tensor, v: Tensor) -> Tensor:
        """(..., D), (..., D) -> (..., H, d, d)."""
        shape = (*k.shape[:-1], self.num_heads, self.head_dim)
        return k.reshape(shape)[..., :, None] * v.reshape(shape)[..., None, :]

    def _read(self, q: Tensor, memory: Tensor) -> Tensor:
        """(..., D), (..., H, d, d) -> (..., D): q contracts the key index."""
        shape = (*q.shape[:-1], self.num_heads, self.head_dim)
        return (q.reshape(shape)[..., :, None] * memory).sum(-2).flatten(-2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        q, k, v = zero_padding(self.project(x), mask).chunk(3, dim=-1)
        product = self._outer(fft_conv(k, self.shift_taps), v)  # (B, L, H, d, d)
        taps = self.kernel(x.shape[1])[0].repeat_interleave(self.head_dim**2, dim=0)
        memory = fft_conv(product.flatten(2), taps).view_as(product)
        memory = memory + self.skip.to(x.dtype)[:, None, None] * product
        out: Tensor = self.output(self._read(q, memory).to(q.dtype))
        return out

    def initial_state(self, batch_size: int) -> State:
        """(the last ``shift`` keys (B, D, shift), diagonal state (B, d², H, N/2))."""
        keys = self.shift_taps.new_zeros(batch_size, *self.shift_taps.shape)
        (h,) = self.kernel.initial_state(batch_size * self.head_dim**2)
        return keys, h.reshape(batch_size, self.head_dim**2, *h.shape[1:])

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        keys, h = self.initial_state(x.shape[0]) if state is None else state
        q, k, v = self.project(x).chunk(3, dim=-1)
        keys = torch.cat([k.to(keys.dtype)[..., None], keys[..., :-1]], dim=-1)  # newest first
        product = self._outer((keys * self.shift_taps).sum(-1).to(k.dtype), v)  # (B, H, d, d)
        drive = product.flatten(2).transpose(1, 2).flatten(0, 1)  # (B·d², H)
        y, (h_next,) = self.kernel.step(drive, (h.flatten(0, 1),))
        memory = y.view(x.shape[0], self.head_dim**2, self.num_heads)
        memory = memory.transpose(1, 2).view_as(product)
        memory = memory + self.skip.to(x.dtype)[:, None, None] * product
        return self.output(self._read(q, memory)), (keys, h_next.view_as(h))
