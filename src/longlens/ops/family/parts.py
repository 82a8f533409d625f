"""Cut causal attention with any decay into parts in range, for `merge_op.merged_attention`.

As in `ops/las/parts.py`: a block of keys wholly before a block of queries folds about the border
between them with factors of at most 1, whatever the decay, and halving leads down to small squares.
These are written out here, key by key, since a decay per channel has no product of matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.family.fold import Levels, columns, padded, scaled
from longlens.ops.las.flash import BAND, FLASH, Part
from longlens.ops.las.merge_op import Items

SQUARE = 16  # positions whose scores are written out


def folded_square(
    q: Tensor, k: Tensor, v: Tensor, levels: tuple[Levels, ...], scale: float
) -> list[Tensor]:
    """Queries, keys and values (B, H, G, n, ·) of causal squares, folded about their middles."""
    of_q, (m, a) = levels
    if m is not None and of_q.multiplied is not None:
        centre = 0.5 * (m[..., :1, :] + m[..., -1:, :]).detach()
        q, k = scaled(q, of_q.multiplied - centre), scaled(k, centre - m)
    if a is not None and of_q.added is not None:
        middle = 0.5 * (a[..., :1] + a[..., -1:]).detach()
        q = columns(q, [None, of_q.added - middle], scale)
        k = columns(k, [middle - a, None], scale)
    return equal_widths(q, k, v)


def equal_widths(*tensors: Tensor) -> list[Tensor]:
    """Operators take equal widths, on CUDA multiples of 8."""
    width = max(t.shape[-1] for t in tensors)
    if tensors[0].is_cuda:
        width = -(-width // 8) * 8
    return [padded(t, width) for t in tensors]


def square(
    q: Tensor, k: Tensor, v: Tensor, levels: tuple[Levels, Levels], mask: Tensor | None,
    scale: float, flipped: bool = False,
) -> Items:  # fmt: skip
    """A causal square in range as one part: q, k, v (B, H, n, ·), mask (B, n)."""
    lifted = tuple(Levels(_up(m, 2), _up(a, 2)) for m, a in levels)
    tensors = folded_square(q[:, :, None], k[:, :, None], v[:, :, None], lifted, scale)
    part = Part(FLASH, 0, q.shape[2], 0, True, mask is not None, flipped, scale)
    return [(part, tensors if mask is None else [*tensors, mask[:, None]])]


def _up(x: Tensor | None, dim: int) -> Tensor | None:
    return None if x is None else x.unsqueeze(dim)


def halved(
    q: Tensor, k: Tensor, v: Tensor, levels: Levels, mask: Tensor | None, scale: float
) -> Items:
    """A causal square whatever the range: blocks off the diagonal, small squares on it."""
    n, size, items = q.shape[2], SQUARE, []
    while size < n:
        size *= 2
    q, k, v = (F.pad(t, (0, 0, 0, size - n)) for t in (q, k, v))
    mask = None if mask is None else F.pad(mask, (0, size - n))
    half = size // 2
    while half >= SQUARE:
        items.append(_below_diagonal(q, k, v, levels.blocks(size), mask, half, scale))
        half //= 2
    whole = levels.blocks(size)
    flat = Levels(
        None if whole.multiplied is None else whole.multiplied.flatten(2, 3),
        None if whole.added is None else whole.added.flatten(2, 3),
    )
    items += [_near(q, k, v, flat, mask, r, scale) for r in range(min(SQUARE, n))]
    width = max(t.shape[-1] for _, own in items for t in own[:3] if t.ndim == 5)
    return [(p, [*own[:1], padded(own[1], width)] if p.kind == BAND else own) for p, own in items]


def _below_diagonal(
    q: Tensor, k: Tensor, v: Tensor, levels: Levels, mask: Tensor | None, half: int, scale: float
) -> tuple[Part, list[Tensor]]:
    """The second half of every block of 2·half positions attends to its first half."""

    def cut(x: Tensor, late: bool) -> Tensor:
        x = x.flatten(2, 3) if x.ndim == 5 else x
        block: Tensor = x.unflatten(2, (-1, 2 * half))
        return block[:, :, :, half:] if late else block[:, :, :, :half]

    early_q, early_k, early_v = cut(q, True), cut(k, False), cut(v, False)
    m, a = levels
    if m is not None:
        late, early = cut(m, True), cut(m, False)
        border = early[:, :, :, -1:].detach()
        early_q, early_k = scaled(early_q, late - border), scaled(early_k, border - early)
    if a is not None:
        flat = a.flatten(2, 3)[..., None]
        late, early = cut(flat, True)[..., 0], cut(flat, False)[..., 0]
        edge = early[:, :, :, -1:].detach()
        early_q = columns(early_q, [None, late - edge], scale)
        early_k = columns(early_k, [edge - early, None], scale)
    tensors = equal_widths(early_q, early_k, early_v)
    part = Part(FLASH, 0, 2 * half, half, False, mask is not None, False, scale)
    if mask is not None:
        tensors.append(mask.unflatten(1, (-1, 2 * half))[:, :, :half])
    return part, tensors


def _near(
    q: Tensor, k: Tensor, v: Tensor, levels: Levels, mask: Tensor | None, r: int, scale: float
) -> tuple[Part, list[Tensor]]:
    """The key r positions back, where it lies in the same small square."""

    def back(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, r, 0))[:, :, : x.shape[2]]

    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    place = torch.arange(q.shape[2], device=q.device)
    m, a = levels
    products = q.to(wide) * back(k)
    if m is not None:
        # before the first key the difference means nothing, and must not overflow
        products = scaled(products, (m - back(m)).clamp(max=0.0))
    score = products.sum(-1) * scale
    if a is not None:
        score = score + (a - back(a[..., None])[..., 0]).to(wide)
    present = place % SQUARE >= r
    if mask is not None:
        present = present & F.pad(mask, (r, 0))[:, None, : q.shape[2]]
    score = score.masked_fill(~present, float("-inf"))
    part = Part(BAND, 0, q.shape[2], 0, False, False, False, scale)
    return part, [score[:, :, None], back(v)[:, :, None]]
