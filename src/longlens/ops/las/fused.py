"""LaS attention with Triton: a fused prologue before SDPA, and kernels for everything else.

Inputs come as a list: [q, k, v], or one packed projection that holds all their heads in a row.
Rotary positions, if any, have not been applied yet: the prologue does that on the way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.parts import Parts
from longlens.ops.las.smoothing import pool_values, reach, window_count
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.las.triton.mirror_op import mirrored_attention
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Plan, prologue

Angles = tuple[Tensor, Tensor] | None


def split_heads(tensors: list[Tensor], heads: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Views of either kind of input: q (B, Hq, L, D), k and v (B, Hkv, S, ·)."""
    if len(tensors) == 1:
        q, k, v = tensors[0].split([heads[0], heads[1], heads[1]], dim=1)
    else:
        q, k, v = tensors
    return q, k, v


def _prepare(
    tensors: list[Tensor],
    heads: tuple[int, int],
    *,
    window: int,
    smoothing: str,
    edge: str,
    key_mask: Tensor | None,
    angles: Angles,
    alpha: Tensor | None = None,
    factor: float = 1.0,
    copies: int = 1,
    rows: int | None = None,
    width: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate q and k and fold α into them, pool v: one pass over what has to change.

    Heads of k and v are repeated `copies` times; the first `rows` positions and `width` columns are
    written where these are given.
    """
    q, k, v = split_heads(tensors, heads)
    if window > WIDEST_WINDOW:
        v = pool_values(v, window, smoothing, edge, key_mask)
        tensors, window, key_mask = [q, k, v], 1, None
    scales = alpha is not None or angles is not None
    pools = window > 1 or key_mask is not None
    if not scales and not pools:
        return _cut(q, rows, width), _cut(k, rows, width), _cut(v, rows, width)
    before, after = reach(window, smoothing)
    S = v.shape[2]
    share = None
    if edge == "renormalize" and window > 1:
        like = v.new_empty(1, 1, S, 1, dtype=torch.float32)
        share = window_count(like, before, after, key_mask).reciprocal().reshape(-1, S)
    plan = Plan(
        heads[0] if scales else 0, heads[1] if scales else 0, heads[1], copies, before, after,
        S if rows is None else rows, v.shape[3] if width is None else width,
    )  # fmt: skip
    q_new, k_new, v_new = prologue(
        tensors if scales else [v], plan, alpha=alpha, mask=key_mask, share=share, angles=angles,
        scale=factor,
    )  # fmt: skip
    if scales:
        return q_new, k_new, v_new
    return _cut(q, rows, width), _cut(k, rows, width), v_new


def _cut(x: Tensor, rows: int | None, width: int | None) -> Tensor:
    """The first `rows` positions, with zeros up to `width` columns."""
    x = x if rows is None else x[:, :, :rows]
    return x if width is None or width == x.shape[3] else F.pad(x, (0, width - x.shape[3]))


def folded_inputs(
    tensors: list[Tensor],
    heads: tuple[int, int],
    *,
    alpha: Tensor | None,
    alpha_max: float | None,
    equal_in_group: bool,
    scale: float,
    **pooling: Any,
) -> tuple[Tensor, Tensor, Tensor, float]:
    """What SDPA takes for causal LaS in range: (q·u, k·w, pool(v)) and the scale of the scores.

    All three have as many positions as there are queries, and widths padded to a multiple of 8.
    Without α nothing is folded: rotation and pooling remain.
    """
    q, _, v = split_heads(tensors, heads)
    rows = q.shape[2]
    exponent = 0
    if alpha is not None and q.dtype == torch.float16:  # no factor above 1, so none can overflow
        assert alpha_max is not None
        exponent = -math.ceil(alpha_max * 0.5 * rows / math.log(2))
    folded = _prepare(
        tensors,
        heads,
        alpha=alpha,
        factor=2.0**exponent,
        copies=1 if alpha is None or equal_in_group else heads[0] // heads[1],
        rows=rows,
        width=-(-max(q.shape[3], v.shape[3]) // 8) * 8,
        **pooling,
    )
    return *folded, scale * 4.0**-exponent


def fused_attention(
    tensors: list[Tensor],
    heads: tuple[int, int],
    *,
    alpha: Tensor | None,
    window: int,
    smoothing: str,
    edge: str,
    is_causal: bool,
    key_mask: Tensor | None,
    query_offset: int,
    scale: float,
    angles: Angles = None,
    mirrored: bool = False,
) -> Tensor:
    """LaS attention by the Triton kernels, whatever α and the mask are: (B, Hq, L, Dv).

    `mirrored`: two-sided decay, in range, square and unmasked, by one causal call over both sides.
    """
    pooling = dict(window=window, smoothing=smoothing, edge=edge, key_mask=key_mask)
    q, k, v = _prepare(tensors, heads, angles=angles, **pooling)  # type: ignore[arg-type]
    if mirrored:
        assert alpha is not None
        return mirrored_attention(q, k, v, alpha, scale)
    banded = smoothing == "masked" and window > 1
    out, lse = kernel_attention(
        q, k, v, alpha=alpha, mask=key_mask, offset=query_offset, causal=is_causal, scale=scale,
        lag=window // 2 if banded else 0,
    )  # fmt: skip
    if not banded:
        return out
    raw = split_heads(tensors, heads)[2]
    copies = heads[0] // heads[1]
    if copies > 1:
        k, raw = (t.repeat_interleave(copies, dim=1) for t in (k, raw))
    parts = Parts(alpha, None, scale, key_mask)
    parts.band(q, k, raw, query_offset, window, edge)
    return _merge(out, lse, [tensors for _, tensors in parts.items])


def _merge(out: Tensor, lse: Tensor, band: list[list[Tensor]]) -> Tensor:
    """Add single keys, each with its score (B, H, 1, L) and value (B, H, 1, L, D), to a softmax."""
    scores = torch.stack([lse, *(score[:, :, 0] for score, _ in band)])
    top = scores.detach().amax(0)
    weights = torch.exp(scores - top.nan_to_num(neginf=0.0))
    total = weights.sum(0)
    weights = weights / total.masked_fill(total == 0, 1.0)
    merged = out * weights[0, ..., None]
    for (_, value), weight in zip(band, weights[1:], strict=True):
        merged = merged + value[:, :, 0] * weight[..., None]
    return merged.to(out.dtype)
