"""Inputs of fused attention: rotated, folded and pooled, by Triton in one pass or by PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call
from longlens.ops.las.decay import fold_square
from longlens.ops.las.plan import Plan
from longlens.ops.las.smoothing import pool_values, reach, window_count
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Arguments, Layout, prologue


def pool(call: Call) -> Tensor:
    """The call's values, averaged over windows and zero at masked keys."""
    if not call.pools:
        return call.value
    return pool_values(call.value, call.window, call.smoothing, call.edge, call.key_mask)


def pooled_inputs(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key and pooled value, of equal widths that fused kernels take, and the key mask.

    Keys that no query can see are left out, now that pooling has taken its part.
    """
    query, key, pooled, mask = call.query, call.key, pool(call), call.key_mask
    if call.is_causal:
        assert not isinstance(call.query_offset, Tensor)
        seen = max(0, call.query_offset + query.shape[2])
        key, pooled = key[:, :, :seen], pooled[:, :, :seen]
        mask = None if mask is None else mask[:, :seen]
    if mask is not None:  # whatever it holds, a masked key takes no part
        key = key.masked_fill(~mask[:, None, :, None], 0)
    query, key, pooled = pad_heads(query, key, pooled)
    return query, key, pooled, mask


def folded_inputs(call: Call, plan: Plan) -> tuple[Tensor, Tensor, Tensor, float]:
    """What SDPA takes for causal LaS in range: (q·u, k·w, pool(v)) and the scale of the scores.

    Without α nothing is folded: rotation and pooling remain.
    """
    alpha, (alpha_max, equal, _) = call.alpha, plan.assumed
    if plan.prologue:
        copies, exponent, scale = folding(call, plan)
        return *prologue_inputs(call, fold=True, copies=copies, exponent=exponent), scale
    query, key, pooled, _ = pooled_inputs(call)
    if alpha is None:
        return query, key, pooled, call.scale
    if not equal:
        key, pooled = repeat_heads(query, key, pooled)
    assert alpha_max is not None
    query, key, scale = fold_square(query, key, alpha, alpha_max, call.scale)
    return query, key, pooled, scale


def folding(call: Call, plan: Plan) -> tuple[int, int, float]:
    """Copies of each key head, the exponent of two in q and k, and the scale of their scores."""
    exponent = 0
    if call.alpha is not None and call.query.dtype == torch.float16:  # no factor above 1 overflows
        assert plan.assumed.alpha_max is not None
        exponent = -math.ceil(plan.assumed.alpha_max * 0.5 * call.query.shape[2] / math.log(2))
    heads, kv_heads = call.heads
    shared = call.alpha is None or plan.assumed.equal_in_group
    return 1 if shared else heads // kv_heads, exponent, call.scale * 4.0**-exponent


def scales(call: Call, fold: bool) -> bool:
    """Whether queries and keys change, and not values alone."""
    return (fold and call.alpha is not None) or call.angles is not None


def prologue_inputs(
    call: Call, *, fold: bool, copies: int = 1, exponent: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys, pool values: one pass over what has to change.

    With `fold`, α is folded into queries and keys, which are multiplied by two to the `exponent`;
    heads of keys and values are written `copies` times, and as many positions as there are
    queries, of a width that SDPA takes.
    """
    q, k, v = call.query, call.key, call.value
    rows = call.query.shape[2] if fold else v.shape[2]
    width = -(-call.width // 8) * 8 if fold else v.shape[3]
    if "prologue_forward" in prologue_steps(call, fold=fold):
        prepared = prologue(prologue_arguments(call, fold=fold, copies=copies, exponent=exponent))
        if scales(call, fold):
            return prepared
        v = prepared[2]
    elif call.window > WIDEST_WINDOW:
        v = pool(call)
    return _cut(q, fold, rows, width), _cut(k, fold, rows, width), _cut(v, fold, rows, width)


def prologue_arguments(call: Call, *, fold: bool, copies: int, exponent: int) -> Arguments:
    """What the pass takes; see `prologue_inputs`."""
    tensors, v, window, mask = call.tensors, call.value, call.window, call.key_mask
    if window > WIDEST_WINDOW:
        v = pool(call)
        tensors, window, mask = [call.query, call.key, v], 1, None
    before, after = reach(window, call.smoothing)
    share = call.taps
    if share is None and call.edge == "renormalize" and window > 1:
        like = v.new_empty(1, 1, v.shape[2], 1, dtype=torch.float32)
        share = window_count(like, before, after, mask).reciprocal().reshape(-1, v.shape[2])
    rows, width = v.shape[2:]
    if fold:
        rows, width = call.query.shape[2], -(-call.width // 8) * 8
    heads, kv_heads = call.heads
    both = (heads, kv_heads) if scales(call, fold) else (0, 0)
    layout = Layout(
        *both, kv_heads, copies, before, after, rows, width, exponent, int(call.taps is not None)
    )
    given: list[Any] = tensors if scales(call, fold) else [v]
    first, k, v = given if len(given) == 3 else (*given, None, None)
    alpha, (cos, sin) = call.alpha if fold else None, call.angles or (None, None)
    return Arguments(first, k, v, alpha, mask, share, cos, sin, None, list(layout))


def _cut(x: Tensor, fold: bool, rows: int, width: int) -> Tensor:
    """The first `rows` positions, with zeros up to `width` columns, where SDPA is to take them."""
    if not fold:
        return x
    x = x if x.shape[2] == rows else x[:, :, :rows]
    return x if width == x.shape[3] else F.pad(x, (0, width - x.shape[3]))


def prologue_steps(call: Call, *, fold: bool) -> list[str]:
    """What `prologue_inputs` runs."""
    wide = call.window > WIDEST_WINDOW
    scales = (fold and call.alpha is not None) or call.angles is not None
    kernel = scales or (call.pools and not wide)
    return ["pool_values"] * wide + ["prologue_forward"] * kernel


def pad_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zero-pad head dimensions until the fused kernels take them.

    All kernels want equal widths for q, k and v, and those on CUDA a multiple of 8.
    """
    common = max(q.shape[-1], v.shape[-1])
    if q.device.type == "cuda":
        common = -(-common // 8) * 8
    q, k, v = (
        F.pad(t, (0, common - t.shape[-1])) if t.shape[-1] < common else t for t in (q, k, v)
    )
    return q, k, v


def narrow(x: Tensor, width: int) -> Tensor:
    """The first `width` columns; even a full slice would cost a copy in the backward pass."""
    return x if x.shape[-1] == width else x[..., :width]


def repeat_heads(query: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Repeat key and value heads to the number of query heads."""
    heads = query.shape[1]
    return tuple(
        t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], dim=1)
        for t in tensors
    )


def zero_rows(q: Tensor, width: int, *others: Tensor | None) -> Tensor:
    """The result of queries that see no key: zeros, but part of the graph as any other row."""
    zeros = q[..., :0].sum(-1, keepdim=True)
    for other in others:
        if other is not None and other.requires_grad:
            zeros = zeros + other[..., :0].sum().to(q.dtype)
    return zeros.expand(-1, -1, -1, width)
