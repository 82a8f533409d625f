"""What the attention layers of the zoo share: projections, heads, chunks and masks.

Shapes: B batch, H heads, L length, d head width, D = H·d.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import (
    Mixer,
    State,
    check_divides,
    check_positive,
    check_step,
    zero_padding,
)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, D) -> (B, H, L, d).

    >>> split_heads(torch.zeros(2, 5, 8), 4).shape
    torch.Size([2, 4, 5, 2])
    """
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, d) -> (B, L, D).

    >>> merge_heads(torch.zeros(2, 4, 5, 2)).shape
    torch.Size([2, 5, 8])
    """
    return x.transpose(1, 2).flatten(2)


def fold_chunks(x: Tensor, size: int) -> Tensor:
    """Cut (B, H, L, d) into blocks of ``size``, the last one padded: (B·blocks, H, size, d).

    >>> fold_chunks(torch.zeros(2, 4, 5, 3), 4).shape
    torch.Size([4, 4, 4, 3])
    """
    blocks: Tensor = F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
    return blocks.transpose(1, 2).flatten(0, 1)


def unfold_chunks(x: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of :func:`fold_chunks`: (B·blocks, H, size, d) -> (B, H, L, d).

    >>> unfold_chunks(torch.zeros(4, 4, 4, 3), 2, 5).shape
    torch.Size([2, 4, 5, 3])
    """
    blocks: Tensor = x.unflatten(0, (batch, -(-length // x.shape[2])))
    return blocks.transpose(1, 2).flatten(2, 3)[:, :, :length]


def fold_mask(
    mask: Tensor | None, batch: int, length: int, size: int, device: torch.device
) -> Tensor | None:
    """The key mask of :func:`fold_chunks`, (B·blocks, size); None where every key is real.

    >>> fold_mask(None, 1, 3, 2, torch.device("cpu"))
    tensor([[ True,  True],
            [ True, False]])
    """
    if mask is None and length % size == 0:
        return None
    if mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool, device=device)
    blocks: Tensor = F.pad(mask, (0, -length % size)).unflatten(1, (-1, size))
    return blocks.flatten(0, 1)


def visible(mask: Tensor | None, length: int, causal: bool, device: torch.device) -> Tensor | None:
    """Which key each query may see, (B or 1, 1, L, L); None where that is all of them.

    A query always sees itself: a padded position then attends to something and stays finite.

    >>> visible(None, 2, True, torch.device("cpu"))[0, 0]
    tensor([[ True, False],
            [ True,  True]])
    """
    if mask is None and not causal:
        return None
    order = torch.arange(length, device=device)
    seen = (order[:, None] >= order if causal else order[:, None] >= 0)[None, None]
    if mask is not None:
        seen = seen & mask[:, None, None, :]
    return seen | (order[:, None] == order)


class MultiHead(Mixer):
    """Query, key and value projections, an attention that subclasses define, an output projection.

    Args:
        dim: D.
        num_heads: H, a divisor of D.
        bidirectional: attend to both sides.
        share_qk: one projection for queries and keys.
    """

    def __init__(
        self, dim: int, num_heads: int, *, bidirectional: bool, share_qk: bool = False
    ) -> None:
        super().__init__()
        check_positive(dim=dim)
        check_divides("num_heads", num_heads, "dim", dim)
        self.causal = not bidirectional
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = None if share_qk else nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        raise NotImplementedError

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """X (B, L, D) -> q, k, v, each (B, H, L, d)."""
        q = split_heads(self.query(x), self.num_heads)
        k = q if self.key is None else split_heads(self.key(x), self.num_heads)
        v = split_heads(self.value(x), self.num_heads)
        return q, k, v

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        if x.shape[1] == 0:  # there is no block of no positions
            return self.output(x)  # type: ignore[no-any-return]
        x = zero_padding(x, mask)  # a weight of 0 takes away no NaN
        out: Tensor = self.output(merge_heads(self.attend(*self.project(x), mask)))
        return out


class CachedAttention(MultiHead):
    """A multi-head attention with a key-value cache: adds ``step``."""

    def initial_state(self, batch_size: int) -> State:
        """An empty cache: keys and values (B, H, 0, d)."""
        check_step(self)
        weight = self.value.weight
        empty = weight.new_zeros(batch_size, self.num_heads, 0, len(weight) // self.num_heads)
        return empty, empty

    def keep(self, seen: int) -> int:
        """How many of ``seen`` cached positions the next query still needs."""
        return seen

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The newest query against the cache, itself included: (B, H, 1, d) -> (B, H, 1, d)."""
        return F.scaled_dot_product_attention(q, k, v)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        q, k_new, v_new = self.project(x[:, None])
        k = torch.cat([state[0].to(k_new.dtype), k_new], dim=2)
        v = torch.cat([state[1].to(v_new.dtype), v_new], dim=2)
        y = self.output(merge_heads(self.attend_one(q, k, v)))[:, 0]
        first = k.shape[2] - self.keep(k.shape[2])
        return y, (k[:, :, first:], v[:, :, first:])
