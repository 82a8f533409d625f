"""LaS attention on PyTorch's fused kernels: pool the values, fold the decay, merge what must be.

`README.md` beside this file derives each step. There are five routes, from the cheapest:

- row: a single query, as in decoding; its row of scores is explicit
- plain: no decay; SDPA on pooled values
- folded: causal decay in range; one SDPA call on scaled queries and keys
- merged: everything else with static positions (a prefix and a square, decay out of range or
  two-sided, `masked` smoothing, a key mask under a causal mask), by `merged.merged_attention`
- rows: positions that only the device knows, very wide `masked` windows: the reference on blocks
  of rows, recomputed in backward, so that memory is linear in the number of keys
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.fused import folded_inputs, split_heads
from longlens.ops.las.merged import merged_attention, one_call
from longlens.ops.las.operands import separate_rows
from longlens.ops.las.parts import Parts, fold_square
from longlens.ops.las.reference import reference
from longlens.ops.las.row import row_attention
from longlens.ops.las.smoothing import pool_values
from longlens.ops.las.transforms import exporting, functional, known
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.numerics import full_precision

WIDEST_BAND = 32  # the largest p = P//2 of `masked` whose p products per row are written out
FUSED_ROUTES = ("plain", "folded")  # those with one call, whose inputs Triton can prepare
ROW_BLOCK = 128  # rows that the `rows` route holds at a time
_LIMIT = {
    dtype: f"{limit:g}" for dtype, limit in FOLD_RANGE.items()
}  # a compiler formats no number


def choose_route(
    *,
    queries: int,
    keys: int,
    offset: int | Tensor,
    dtype: torch.dtype,
    has_alpha: bool,
    alpha_max: float | None,
    window: int,
    smoothing: str,
    is_causal: bool,
    has_mask: bool,
    formula: bool,
) -> tuple[str, str]:
    """Return the route and the reason, from what is known without reading a tensor.

    Lengths may be symbolic here, so no reason holds a number that depends on them. `formula`: only
    the plain formula has the derivative that is asked for.
    """
    banded = smoothing == "masked" and window > 1
    if formula:
        return "rows", "a derivative that fused kernels lack (forward-mode, second): the formula"
    if known(queries == 1) and is_causal and (window == 1 or smoothing != "centered"):
        return "row", "one query: its row of scores is explicit, keys and values are read once"
    if isinstance(offset, Tensor):
        return "rows", "the query positions are a tensor"
    if banded and window // 2 > WIDEST_BAND:
        return "rows", f"masked smoothing over {window} positions, more than {2 * WIDEST_BAND + 1}"
    if banded and not known(offset + queries <= keys):
        return "rows", "masked smoothing with queries beyond the last key"
    if not has_alpha and not is_causal:
        return "plain", "no decay: SDPA on pooled values"
    if not is_causal:
        why = "two-sided decay: folded triangles or blocks"
    elif banded:
        why = f"masked smoothing: complete windows and a band of {window // 2}"
    elif has_mask:
        why = "a key mask under a causal mask: the operators below SDPA"
    elif not (known(offset == 0) and known(keys >= queries)):
        why = "queries and keys are not one square: prefix and square"
    elif not has_alpha:
        return "plain", "no decay: causal SDPA on pooled values"
    elif alpha_max is None:
        why = "no static bound on α: range-free tiles and folded blocks"
    elif known(alpha_max * queries <= FOLD_RANGE[dtype]):
        return "folded", f"causal decay with α·L <= {_LIMIT[dtype]}, in range: one SDPA call"
    else:
        why = f"causal decay with α·L > {_LIMIT[dtype]}, out of range: folded blocks"
    if exporting():
        return "rows", f"{why.partition(':')[0]}: exported as the formula"
    return "merged", f"{why}, merged"


def sdpa_attention(
    tensors: list[Tensor],
    heads: tuple[int, int],
    *,
    route: str,
    fused: bool,
    kernel: bool,
    angles: tuple[Tensor, Tensor] | None,
    alpha: Tensor | None,
    alpha_max: float | None,
    equal_in_group: bool,
    window: int,
    smoothing: str,
    edge: str,
    is_causal: bool,
    key_mask: Tensor | None,
    query_offset: int | Tensor,
    chunk: int | None,
    scale: float,
) -> Tensor:
    """LaS attention by one of the routes; shapes as in `las_attention`.

    `tensors` are query, key and value, of equal lengths if `fused`: then Triton prepares them for
    the routes ``folded`` and ``plain``, and they may be packed into one and not yet rotated by
    `angles`. With `kernel`, causal attention itself is Triton's on those routes. Only ``row`` and
    ``rows`` take a chunk: elsewhere the caller has cut the sequence into blocks.
    """
    pooling: dict[str, Any] = dict(window=window, smoothing=smoothing, edge=edge, key_mask=key_mask)
    if fused and route in FUSED_ROUTES:
        width = split_heads(tensors, heads)[2].shape[3]
        q, k, v, scale = folded_inputs(
            tensors, heads, alpha=alpha, alpha_max=alpha_max, equal_in_group=equal_in_group,
            scale=scale, angles=angles, **pooling,
        )  # fmt: skip
        if kernel:
            out, _ = kernel_attention(q, k, v, alpha=None, causal=True, scale=scale)
        else:
            out = _plain(q, k, v, is_causal=is_causal, key_mask=key_mask, scale=scale)
        return _narrow(out, width)
    assert angles is None
    query, key, value = tensors
    reading: dict[str, Any] = dict(
        alpha=alpha, window=window, smoothing=smoothing, edge=edge, is_causal=is_causal
    )
    where: dict[str, Any] = dict(key_mask=key_mask, chunk=chunk, scale=scale)
    if route == "row":
        del reading["is_causal"]
        return row_attention(query, key, value, query_offset=query_offset, **reading, **where)
    if route == "rows":
        return _rows(query, key, value, query_offset, **reading, **where)
    assert chunk is None and not isinstance(query_offset, Tensor)
    pooled = pool_values(value, **pooling)
    if is_causal:  # leave out what no query can see, now that pooling has taken its part
        seen = max(0, query_offset + query.shape[2])
        key, pooled, value = key[:, :, :seen], pooled[:, :, :seen], value[:, :, :seen]
        key_mask = None if key_mask is None else key_mask[:, :seen]

    if key_mask is not None:  # whatever it holds, a masked key takes no part
        key = key.masked_fill(~key_mask[:, None, :, None], 0)
    query, key, pooled, width = pad_heads(query, key, pooled)
    if route == "plain":
        out = _plain(query, key, pooled, is_causal=is_causal, key_mask=key_mask, scale=scale)
    elif route == "folded":
        assert alpha is not None and alpha_max is not None
        if not equal_in_group:
            key, pooled = repeat_heads(query, key, pooled)
        out = _folded(query, key, pooled, alpha=alpha, alpha_max=alpha_max, scale=scale)
    else:
        raw = F.pad(value, (0, pooled.shape[-1] - width)) if smoothing == "masked" else pooled
        key, pooled, raw = repeat_heads(query, key, pooled, raw)
        out = _merged(
            query, key, pooled, raw, alpha_max=alpha_max, key_mask=key_mask, offset=query_offset,
            scale=scale, **reading,
        )  # fmt: skip
    return _narrow(out, width)


def _narrow(x: Tensor, width: int) -> Tensor:
    """The first `width` columns; even a full slice would cost a copy in the backward pass."""
    return x if x.shape[-1] == width else x[..., :width]


def pad_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Zero-pad head dimensions until the fused kernels take them; also returns v's own width.

    All kernels want equal widths for q, k and v, and those on CUDA a multiple of 8.
    """
    width = v.shape[-1]
    common = max(q.shape[-1], width)
    if q.device.type == "cuda":
        common = -(-common // 8) * 8
    q, k, v = (
        F.pad(t, (0, common - t.shape[-1])) if t.shape[-1] < common else t for t in (q, k, v)
    )
    return q, k, v, width


def zero_rows(q: Tensor, width: int, *others: Tensor | None) -> Tensor:
    """The result of queries that see no key: zeros, but part of the graph as any other row."""
    zeros = q[..., :0].sum(-1, keepdim=True)
    for other in others:
        if other is not None and other.requires_grad:
            zeros = zeros + other[..., :0].sum().to(q.dtype)
    return zeros.expand(-1, -1, -1, width)


def repeat_heads(query: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Repeat key and value heads to the number of query heads."""
    heads = query.shape[1]
    return tuple(
        t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], dim=1)
        for t in tensors
    )


class _DenseGradient(torch.autograd.Function):
    """The identity, whose gradient lies in memory as the output does.

    cuDNN's attention (seen with torch 2.11, cuDNN 9.19) returns wrong gradients for an upstream
    gradient that is a slice of a larger tensor, such as the gradient of a concatenation.

    A compiler traces this before it knows how gradients will lie in memory, but decides about
    ``contiguous`` when it does: usually there is nothing to copy.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.heads_inside = output.stride(1) < output.stride(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if ctx.heads_inside:
            return grads[0].transpose(1, 2).contiguous().transpose(1, 2)
        return grads[0].contiguous()


def _laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if functional():  # our own rule for vmap: on a CPU SDPA has none
        k, v = repeat_heads(q, k, v)
        mask = options.pop("attn_mask", None)
        return one_call(q, k, v, mask=None if mask is None else mask[:, 0, 0], **options)
    if q.shape[1] != k.shape[1]:  # as a branch, since a compiler may hold the comparison symbolic
        options["enable_gqa"] = True
    q, k, v = separate_rows(q), separate_rows(k), separate_rows(v)
    out = F.scaled_dot_product_attention(q, k, v, **options)
    if out.is_cuda and out.requires_grad:
        if torch.compiler.is_compiling():
            out = _DenseGradient.apply(out)  # type: ignore[no-untyped-call]
        else:  # the same with less to do for the host
            strides = out.stride()
            out.register_hook(lambda grad: _laid_out(grad, strides))
    return out


def _plain(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, key_mask: Tensor | None, scale: float
) -> Tensor:
    mask = None if key_mask is None else key_mask[:, None, None, :]
    out = _sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    if mask is not None and q.device.type != "cpu":  # not every kernel gives zeros here
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0)
    return out


def _folded(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: Tensor, alpha_max: float, scale: float
) -> Tensor:
    """SDPA(q·u, k·w, v). Keys stay unrepeated where α is constant inside each group of heads."""
    q, k, scale = fold_square(q, k, alpha, alpha_max, scale)
    return _sdpa(q, k, v, is_causal=True, scale=scale)


def _merged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw: Tensor,
    *,
    alpha: Tensor | None,
    alpha_max: float | None,
    window: int,
    smoothing: str,
    edge: str,
    is_causal: bool,
    key_mask: Tensor | None,
    offset: int,
    scale: float,
) -> Tensor:
    """Attention over parts. Rows before the first key, among the keys and beyond them differ."""
    L, S = q.shape[2], k.shape[2]
    start = min(max(-offset, 0), L)
    stop = min(max(S - offset, start), L)
    lag = window // 2 if smoothing == "masked" else 0
    pieces = []
    if start:
        if is_causal:
            pieces.append(zero_rows(q[:, :, :start], v.shape[-1], k, v, alpha))
        else:
            parts = Parts(alpha, alpha_max, scale, key_mask)
            parts.keys_after(q[:, :, :start], k, v, row=0, gap=-offset - start, keys=0)
            pieces.append(merged_attention(parts.items, start))
    if stop > start:
        parts = Parts(alpha, alpha_max, scale, key_mask)
        parts.among_keys(
            q[:, :, start:stop], k, v, offset=offset + start, lag=lag, causal=is_causal
        )
        if lag:
            parts.band(q[:, :, start:stop], k, raw, offset + start, window, edge)
        pieces.append(merged_attention(parts.items, parts.rows)[:, :, : stop - start])
    if stop < L:
        parts = Parts(alpha, alpha_max, scale, key_mask)
        parts.keys_before(q[:, :, stop:], k, v, row=0, gap=offset + stop - S, keys=0)
        pieces.append(merged_attention(parts.items, L - stop))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)


def _rows(q: Tensor, k: Tensor, v: Tensor, offset: int | Tensor, **reading: Any) -> Tensor:
    """The reference on blocks of rows, in float32 at least: half precision would round scores."""
    dtype = q.dtype
    q, k, v = (full_precision(t) for t in (q, k, v))

    def block(rows: Tensor, first: int, k: Tensor, v: Tensor, alpha: Tensor | None) -> Tensor:
        changes: dict[str, Any] = {"alpha": alpha, "query_offset": offset + first}
        return reference(rows, k, v, **{**reading, **changes}).to(dtype)

    alpha = reading["alpha"]
    if functional() or exporting() or q.shape[2] <= ROW_BLOCK:  # the first two: no checkpoints
        return block(q, 0, k, v, alpha)
    outs = [
        checkpoint(block, rows, n * ROW_BLOCK, k, v, alpha, use_reentrant=False)
        for n, rows in enumerate(q.split(ROW_BLOCK, dim=2))
    ]
    return torch.cat(outs, dim=2)
