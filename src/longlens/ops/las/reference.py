"""Eq. 4 of the LaS paper, written plainly: the specification of every fast form.

One L×S matrix per head, every step visible, any float dtype. Notation: B batch, H query heads,
L queries, S keys, D head dimension; query i sits at position i + query_offset, key j at j.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call


def reference_weights(call: Call) -> Tensor:
    """The smoothed attention matrix a', (B, H, L, S). Columns of masked keys are zero."""
    query, key, alpha, offset = call.query, call.key, call.alpha, call.query_offset
    window, smoothing, chunk, key_mask = call.window, call.smoothing, call.chunk, call.key_mask
    L, S = query.shape[2], key.shape[2]
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    j = torch.arange(S, device=query.device)
    offset = offset.reshape(-1, 1, 1, 1) if isinstance(offset, Tensor) else offset
    position = torch.arange(L, device=query.device)[None, None, :, None] + offset
    # (B or 1, 1, L, 1)

    scores = (query @ key.transpose(-2, -1)) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if alpha is not None:
        rate = alpha.to(torch.promote_types(scores.dtype, torch.float32))[:, None, None]
        scores = scores * torch.exp(-rate * (position - j).abs()).to(scores.dtype)

    real = torch.ones_like(j, dtype=torch.bool) if key_mask is None else key_mask[:, None, None, :]
    visible = real & (position >= j if call.is_causal else torch.ones_like(position >= j))
    if chunk is not None:
        visible = visible & (position.div(chunk, rounding_mode="floor") == j // chunk)
    if call.local is not None:
        left, right = call.local
        visible = visible & (position - j <= left) & (j - position <= right)
    scores = scores.masked_fill(~visible, float("-inf"))
    if call.sink is None:
        attention = scores.softmax(dim=-1)
    else:  # one more key, whose value is zero
        sink = call.sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        attention = torch.cat([sink, scores], dim=-1).softmax(dim=-1)[..., 1:]
    attention = torch.where(visible.any(-1, keepdim=True), attention, 0)

    if window == 1:
        return attention
    offsets = range(window) if smoothing == "causal" else range(-(window // 2), window // 2 + 1)

    def shifted(x: Tensor, t: int) -> Tensor:
        """Column j takes what column j + t holds, zero beyond the ends."""
        return F.pad(x, (window, window))[..., window + t : window + t + S]

    def reached(t: int) -> Tensor:
        """Whether a[i, k] may be given to column k - t: (B or 1, 1, L or 1, S)."""
        target = j - t
        inside = (target >= 0) & (target < S) & shifted(real, -t)
        if chunk is not None:
            inside = inside & (target.div(chunk, rounding_mode="floor") == j // chunk)
        return inside & (target <= position) if smoothing == "masked" else inside

    if call.edge == "zero":
        share = attention / window
    else:
        none = torch.zeros((), device=query.device)
        receivers = sum((reached(t).to(attention.dtype) for t in offsets), none)
        share = attention / receivers.to(attention.dtype).clamp(min=1)

    smooth = torch.zeros_like(attention)
    for t in offsets:
        smooth = smooth + shifted(share * reached(t), t)
    return smooth


def reference(call: Call) -> Tensor:
    """LaS attention as the product of that matrix and the values: (B, H, L, Dv)."""
    value = call.value
    if call.key_mask is not None:
        value = value.masked_fill(~call.key_mask[:, None, :, None], 0)
    copies = call.query.shape[1] // value.shape[1]
    return reference_weights(call) @ value.repeat_interleave(copies, dim=1)
