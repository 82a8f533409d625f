"""Route `row`, a single query, as in decoding: one explicit row of scores, the cache read once.

Everywhere else smoothing averages the values, S·D numbers. One query has only S weights per head,
so here the weights are averaged instead, as Eq. 4 has it, and raw values serve as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.ops.las.call import Call
from longlens.ops.las.plan import Plan
from longlens.ops.las.smoothing import reach, window_sum
from longlens.ops.las.transforms import functional


def run(call: Call, plan: Plan) -> Tensor:
    """Causal LaS attention of one query (B, Hq, 1, D); shapes as in `las_attention`.

    Not for ``centered`` smoothing, whose windows reach past the query. Heads share keys by
    reshaping the query, so keys and values are never repeated.
    """
    query, key, value, key_mask, chunk = call.query, call.key, call.value, call.key_mask, call.chunk
    B, heads, _, D = query.shape
    kv_heads, first = key.shape[1], 0
    if isinstance(call.query_offset, Tensor):
        position = call.query_offset.reshape(-1, 1, 1, 1)
    else:  # leave out what the query cannot see, and its weights do not reach
        if call.local is not None and chunk is None:
            first = max(
                0, call.query_offset - call.local[0] - reach(call.window, call.smoothing)[0]
            )
        seen = slice(first, max(0, call.query_offset + 1))
        key, value = key[:, :, seen], value[:, :, seen]
        key_mask = None if key_mask is None else key_mask[:, seen]
        position = torch.full((1, 1, 1, 1), call.query_offset, device=query.device)
    j = torch.arange(first, first + key.shape[2], device=query.device)
    distance = position - j  # (B or 1, 1, 1, S)
    visible = distance >= 0
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
        value = value.masked_fill(~key_mask[:, None, :, None], 0)
    if chunk is not None:
        visible = visible & (j >= position.div(chunk, rounding_mode="floor") * chunk)
    takes = visible  # weights, after smoothing
    if call.local is not None:
        visible = visible & (distance <= call.local[0])

    grouped = query.reshape(B, kv_heads, heads // kv_heads, D)
    scores: Tensor = full_scores(grouped, key) * call.scale
    if call.alpha is not None:
        rate = call.alpha.to(scores.dtype).view(kv_heads, -1, 1)
        scores = scores * torch.exp(-rate * distance.abs())
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    weights = weights.masked_fill(~visible.any(-1, keepdim=True), 0)

    if call.window > 1:
        before, after = reach(call.window, call.smoothing)
        if call.edge == "zero":
            weights = weights / call.window
        else:
            real = takes.to(weights.dtype)
            weights = weights / _sum(real, before, after).clamp(min=1)
        weights = _sum(weights, after, before).masked_fill(~takes, 0)
    return (weights.to(value.dtype) @ value).reshape(B, heads, 1, -1)


def full_scores(query: Tensor, key: Tensor) -> Tensor:
    """Products of queries (B, Hkv, G, D) and keys (B, Hkv, S, D), float32 at least: (…, G, S).

    A product in half precision would round each score, to eight bits in bfloat16.
    """
    if query.dtype in (torch.float32, torch.float64):
        return query @ key.transpose(-2, -1)
    differentiated = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    if query.is_cuda and not differentiated and not functional():
        # reads the keys as they are, but has neither a gradient nor a rule for vmap
        flat = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), torch.float32)
        scores: Tensor = flat.unflatten(0, query.shape[:2])
        return scores
    return query.float() @ key.transpose(-2, -1).float()


def _sum(row: Tensor, before: int, after: int) -> Tensor:
    """Sums over windows along the last dimension."""
    return window_sum(row[..., None], before, after)[..., 0]
