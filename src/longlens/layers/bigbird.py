"""BigBird: Zaheer et al. 2020 (arXiv 2007.14062).

"Big Bird: Transformers for Longer Sequences". Block-sparse softmax attention: every block of
queries sees the first and the last block, a window of neighbouring blocks and a few random ones,
which differ from head to head and from layer to layer; the first and the last block see everything
(the paper's ITC form, as its code computes it).

Left open by the paper, chosen here: the last block is the last that holds a real token, and random
blocks are drawn among those that hold one and are not already seen, by a hash of (query block,
draw, head, seed), so that padding changes nothing; one is drawn from each of r equal parts of them,
where the authors' code draws freely and, in sequences of many blocks, from the first ones alone.
Bidirectional only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.heads import MultiHead
from longlens.ops.masked import safe_with


def scatter_hash(i: Tensor, j: Tensor, seed: Tensor) -> Tensor:
    """Pseudo-random integers from pairs of integers and a seed, the same on every device.

    >>> scatter_hash(torch.tensor([1]), torch.tensor([2]), torch.tensor([0])).shape
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
        window_blocks: neighbouring blocks seen, its own included (odd).
        global_blocks: blocks at each end that see and are seen by all.
        random_blocks: random blocks seen by each block.
        seed: which random blocks; None: drawn like a weight, so that every layer has its own.

    >>> BigBird(8, num_heads=2, block=2)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)
    seeds: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        block: int = 64,
        window_blocks: int = 3,
        global_blocks: int = 1,
        random_blocks: int = 3,
        seed: int | None = None,
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
        self.global_blocks, self.random_blocks = global_blocks, random_blocks
        first = torch.randint(2**24, ()) if seed is None else torch.tensor(seed)
        self.register_buffer("seeds", first * 1009 + torch.arange(num_heads))  # one a head

    def neighbours(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Key blocks of every query block.

        Args:
            real: (B, n), which blocks hold a real token.

        Returns:
            index (B, H, n, m) of key blocks and whether each counts (B, H, n, m).
        """
        batch, blocks = real.shape
        here = torch.arange(blocks, device=real.device)
        size = min(self.global_blocks, blocks)
        start = self._last(real)[:, None, None]  # of the global blocks at the end, (B, 1, 1)
        last = start + torch.arange(size, device=real.device)
        window = here[:, None] + torch.arange(-self.radius, self.radius + 1, device=real.device)
        # Each block counts once: as one of the first, else of the last, else of the window.
        index = torch.cat(
            [
                here[:size].expand(batch, blocks, -1),
                last.expand(-1, blocks, -1),
                window.expand(batch, -1, -1),
            ],
            dim=-1,
        ).clamp(0, blocks - 1)  # the whole: torch 2.11 compiles no clamped part on CUDA
        counts = torch.cat(
            [
                torch.ones(batch, blocks, size, dtype=torch.bool, device=real.device),
                (last < blocks).expand(-1, blocks, -1),
                (window >= size) & (window < start),
            ],
            dim=-1,
        )
        chosen, drawn = self._draw(real, start[..., 0])
        shape = (-1, self.num_heads, -1, -1)
        return (
            torch.cat([index[:, None].expand(shape), chosen], dim=-1),
            torch.cat([counts[:, None].expand(shape), drawn[:, None].expand(shape)], dim=-1),
        )

    def _last(self, real: Tensor) -> Tensor:
        """Where the global blocks at the end start, after those at the beginning: (B,)."""
        blocks = real.shape[1]
        end = blocks - real.flip(1).int().argmax(1)  # one past the last real block
        return (end - self.global_blocks).clamp(min(self.global_blocks, blocks), blocks)

    def _draw(self, real: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Random blocks (B, H, n, r) among the real ones not yet seen, and whether there is one.

        The free blocks, in order, are cut into r equal parts and one is drawn from each: linear
        in n, and never the same block twice. ``start`` (B, 1): of the global blocks at the end.
        """
        blocks = real.shape[1]
        here = torch.arange(blocks, device=real.device)
        first = min(self.global_blocks, blocks)
        before = F.pad(real.cumsum(1), (1, 0))  # real blocks before each block
        in_order = torch.argsort(here + blocks * ~real, dim=1)  # the real ones, then the others
        low = torch.minimum((here - self.radius).clamp(first, blocks), start)  # (B, n)
        high = torch.minimum((here + self.radius + 1).clamp(first, blocks), start)
        skipped = before[:, first, None]
        near = before.gather(1, high) - before.gather(1, low)
        free = (before.gather(1, start) - skipped - near)[..., None]  # (B, n, 1)
        part = torch.arange(self.random_blocks, device=real.device)
        begin = part * free // max(1, self.random_blocks)
        width = (part + 1) * free // max(1, self.random_blocks) - begin  # (B, n, r)
        lot = scatter_hash(here[:, None], part, self.seeds[:, None, None])  # (H, n, r)
        rank = (begin + skipped[..., None])[:, None] + lot % width.clamp_min(1)[:, None]
        jump = near[:, None, :, None]  # over the window
        rank = rank + jump * (rank >= before.gather(1, low)[:, None, :, None])
        rank = rank.clamp_max(blocks - 1).flatten(1)
        chosen = in_order.gather(1, rank).view(len(real), self.num_heads, *width.shape[1:])
        return chosen, width > 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        batch, heads, length, _ = q.shape
        size = self.block
        if mask is None:
            mask = torch.ones(batch, length, dtype=torch.bool, device=q.device)
        tokens: Tensor = F.pad(mask, (0, -length % size)).unflatten(1, (-1, size))
        real = tokens.any(-1)
        index, counts = self.neighbours(real)
        example = torch.arange(batch, device=q.device)[:, None, None, None]
        head = torch.arange(heads, device=q.device)[:, None, None]

        def blocks(t: Tensor) -> Tensor:  # (B, H, L, d) -> (B, H, n, block, d)
            blocked: Tensor = F.pad(t, (0, 0, 0, -length % size)).unflatten(2, (-1, size))
            return blocked

        def gathered(t: Tensor) -> Tensor:  # -> (B, H, n, m·block, d)
            return blocks(t)[example, head, index].flatten(3, 4)

        seen = (tokens[example, index] & counts[..., None]).flatten(3)[..., None, :]
        seen = seen | ~seen.any(-1, keepdim=True)  # padding alone still attends to something
        with safe_with(seen, q):
            out: Tensor = F.scaled_dot_product_attention(
                blocks(q).flatten(0, 1),
                gathered(k).flatten(0, 1),
                gathered(v).flatten(0, 1),
                attn_mask=seen.flatten(0, 1),
            )
        out = out.unflatten(0, (batch, heads)).flatten(2, 3)
        return self._everything(out, q, k, v, mask, real)[:, :, :length]

    def _everything(
        self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, real: Tensor
    ) -> Tensor:
        """Put the rows of the global blocks at both ends, which attend to all keys, into ``out``.

        ``out`` is (B, H, n·block, d), with a spare row more when it comes back; q, k, v are
        (B, H, L, d), mask (B, L) and real (B, n).
        """
        heads, length, width = q.shape[1:]
        total = out.shape[2]
        first = torch.arange(min(self.global_blocks * self.block, total), device=q.device)
        last = (self._last(real) * self.block)[:, None] + first
        # Rows beyond the end, where there are few blocks, all become the spare one.
        rows = torch.cat([first.expand_as(last), last], dim=1).clamp_max(total)
        rows = rows[:, None, :, None].expand(-1, heads, -1, width)
        query = F.pad(q, (0, 0, 0, total + 1 - length)).gather(2, rows)
        with safe_with(mask, query):
            full = F.scaled_dot_product_attention(query, k, v, attn_mask=mask[:, None, None])
        return F.pad(out, (0, 0, 0, 1)).scatter(2, rows, full)
