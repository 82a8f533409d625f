"""BigBird: Zaheer et al. 2020 (arXiv 2007.14062).

"Big Bird: Transformers for Longer Sequences". Block-sparse softmax attention: every block of
queries sees the global blocks at the start, a window of neighbouring blocks and a few random ones;
the global blocks see everything (the paper's ITC form).

Left open by the paper, chosen here: random blocks are drawn among those that hold a real token and
are not already seen, by a hash of (query block, draw, seed), so that padding changes nothing.
Bidirectional only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.heads import MultiHead


def scatter_hash(i: Tensor, j: Tensor, seed: int) -> Tensor:
    """Pseudo-random integers from pairs of integers, the same on every device.

    >>> scatter_hash(torch.tensor([1]), torch.tensor([2]), 0).shape
    torch.Size([1])
    """
    x = (i * 73856093) ^ (j * 19349663) ^ (seed * 83492791 + 1)
    for _ in range(2):  # multiply and fold the high bits down: neighbours end up far apart
        x = (x * 668265263) & 0x7FFFFFFF
        x = x ^ (x >> 15)
    return x


class BigBird(MultiHead):
    """Window, global and random blocks, linear in L.

    Args:
        dim: D.
        num_heads: H.
        block: positions per block.
        window_blocks: neighbouring blocks seen, own included (odd).
        global_blocks: blocks at the start that see and are seen by all.
        random_blocks: random blocks seen by each block.
        seed: which random blocks.

    >>> BigBird(8, num_heads=2, block=2)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        block: int = 64,
        window_blocks: int = 3,
        global_blocks: int = 2,
        random_blocks: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=True)
        check_positive(block=block, window_blocks=window_blocks)
        if window_blocks % 2 == 0:
            raise ValueError(f"window_blocks must be odd, got {window_blocks}")
        if min(global_blocks, random_blocks) < 0:
            raise ValueError(
                "global_blocks and random_blocks must not be negative, "
                f"got {global_blocks} and {random_blocks}"
            )
        self.block, self.radius = block, window_blocks // 2
        self.global_blocks, self.random_blocks, self.seed = global_blocks, random_blocks, seed

    def neighbours(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Key blocks of every query block.

        Args:
            real: (B, n), which blocks hold a real token.

        Returns:
            index (B, n, m) of key blocks and whether each counts (B, n, m).
        """
        batch, blocks = real.shape
        here = torch.arange(blocks, device=real.device)
        first = min(self.global_blocks, blocks)
        window = here[:, None] + torch.arange(-self.radius, self.radius + 1, device=real.device)
        in_window = (window >= first) & (window < blocks)
        fixed = torch.cat([here[:first].expand(blocks, -1), window.clamp(0, blocks - 1)], dim=1)
        counts = torch.cat([torch.ones_like(fixed[:, :first], dtype=torch.bool), in_window], dim=1)
        chosen, drawn = self._draw(real, first)
        index = torch.cat([fixed.expand(batch, -1, -1), chosen], dim=-1)
        return index, torch.cat([counts.expand(batch, -1, -1), drawn], dim=-1)

    def _draw(self, real: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Random blocks (B, n, r) among the real ones not yet seen, and whether there is one.

        The free blocks, in order, are cut into r equal parts and one is drawn from each: linear
        in n, and never the same block twice.
        """
        blocks = real.shape[1]
        here = torch.arange(blocks, device=real.device)
        before = F.pad(real.cumsum(1), (1, 0))  # real blocks before each block
        in_order = torch.argsort(here + blocks * ~real, dim=1)  # the real ones, then the others
        low = (here - self.radius).clamp(first, blocks)
        high = (here + self.radius + 1).clamp(first, blocks)
        skipped, near = before[:, first, None], before[:, high] - before[:, low]
        free = (before[:, -1:] - skipped - near)[..., None]  # (B, n, 1)
        part = torch.arange(self.random_blocks, device=real.device)
        start = part * free // max(1, self.random_blocks)
        width = (part + 1) * free // max(1, self.random_blocks) - start
        lot = scatter_hash(here[:, None], part, self.seed)
        rank = start + lot % width.clamp_min(1) + skipped[..., None]
        rank = rank + near[..., None] * (rank >= before[:, low][..., None])  # jump the window
        rank = rank.clamp_max(blocks - 1).flatten(1)
        return in_order.gather(1, rank).view_as(width), width > 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        batch, heads, length, width = q.shape
        size = self.block
        if mask is None:
            mask = torch.ones(batch, length, dtype=torch.bool, device=q.device)
        tokens = F.pad(mask, (0, -length % size)).view(batch, -1, size)
        index, counts = self.neighbours(tokens.any(-1))
        pick = torch.arange(batch, device=q.device)[:, None, None]

        def blocks(t: Tensor) -> Tensor:  # (B, H, L, d) -> (B, n, H, block, d)
            t = F.pad(t, (0, 0, 0, -length % size))
            return t.view(batch, heads, -1, size, width).transpose(1, 2)

        def gathered(t: Tensor) -> Tensor:  # -> (B·n, H, m·block, d)
            return blocks(t)[pick, index].transpose(2, 3).flatten(3, 4).flatten(0, 1)

        seen = (tokens[pick, index] & counts[..., None]).flatten(2).flatten(0, 1)[:, None, None]
        seen = seen | ~seen.any(-1, keepdim=True)  # padding alone still attends to something
        out = F.scaled_dot_product_attention(
            blocks(q).flatten(0, 1), gathered(k), gathered(v), attn_mask=seen
        )
        out = out.view(batch, -1, heads, size, width).transpose(1, 2).flatten(2, 3)
        first = min(self.global_blocks * size, length)
        if first:
            full = F.scaled_dot_product_attention(
                q[:, :, :first], k, v, attn_mask=mask[:, None, None]
            )
            out = torch.cat([full, out[:, :, first:]], dim=2)
        return out[:, :, :length]
