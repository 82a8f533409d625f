"""LaS attention on sequences of different lengths, packed one after the other without padding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.api import kernel_refusal, las_attention
from longlens.ops.las.call import Call, make_call
from longlens.ops.las.checks import may_read
from longlens.ops.las.sdpa import zero_rows
from longlens.ops.las.smoothing import reach
from longlens.ops.las.triton.attention_op import MOST_HEADS, kernel_attention
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Plan, prologue

INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def las_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    alpha: Tensor | None = None,
    window: int = 1,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    chunk: int | None = None,
    alpha_max: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Every sequence attends to itself alone.

    Args:
        query: (T, Hq, D), all sequences in a row; T is the sum of their lengths.
        key: (T, Hkv, D).
        value: (T, Hkv, Dv).
        cu_seqlens: (N+1,) integers: 0, then where each of the N sequences ends, the last at T.
            Sequences may be empty. Eager code reads the numbers, to refuse wrong ones.
        max_seqlen: at least the length of the longest.
        alpha: as in `las_attention`, as are all further options.
        window: as in `las_attention`.
        smoothing: as in `las_attention`.
        edge: as in `las_attention`; the edges are those of each sequence.
        is_causal: as in `las_attention`.
        chunk: as in `las_attention`; blocks are counted from the start of each sequence.
        alpha_max: as in `las_attention`.
        scale: as in `las_attention`.
        enable_gqa: as in `las_attention`.
        impl: as in `las_attention`. On a GPU the kernels read the packed tensors as they are;
            elsewhere the batch is padded on the way.

    Returns:
        (T, Hq, Dv).

    >>> q, k, v = (torch.randn(30, 4, 16) for _ in range(3))
    >>> bounds = torch.tensor([0, 10, 30])
    >>> las_attention_varlen(q, k, v, bounds, 20, alpha=decay_rates(4), window=3).shape
    torch.Size([30, 4, 16])

    """
    _check(query, key, value, cu_seqlens, max_seqlen)
    options: dict[str, Any] = dict(
        alpha=alpha, window=window, smoothing=smoothing, edge=edge, is_causal=is_causal,
        chunk=chunk, alpha_max=alpha_max, scale=scale, enable_gqa=enable_gqa,
    )  # fmt: skip
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))  # (1, H, T, D)
    call = make_call(q, k, v, query_offset=0, **options)
    refusal = _refusal(call, cu_seqlens.shape[0] - 1)
    if impl == "triton" and refusal is not None:
        raise ValueError(f"impl='triton' is not possible: {refusal}; use 'auto'")
    T = query.shape[0]
    bounds = cu_seqlens.to(torch.int32).contiguous()
    _check_bounds(bounds, T, max_seqlen)
    if T == 0 or value.shape[2] == 0:
        return zero_rows(q, value.shape[2], k, v, alpha)[0].transpose(0, 1)
    token = torch.arange(T, device=query.device)
    sequence = torch.searchsorted(bounds, token, right=True) - 1
    starts, stops = bounds[sequence], bounds[sequence + 1]
    if impl == "triton" or (impl == "auto" and query.is_cuda and refusal is None):
        v = call.value
        if window > 1:
            v = _pool(v, window, call.smoothing, edge, starts, stops)
        out, _ = kernel_attention(
            call.query, call.key, v, alpha=alpha, bounds=bounds, longest=max_seqlen,
            causal=is_causal, scale=call.scale,
        )  # fmt: skip
        return out[0].transpose(0, 1)
    place = torch.arange(max_seqlen, device=query.device)
    real = place < (bounds[1:] - bounds[:-1])[:, None]  # (N, longest)
    index = (bounds[:-1, None] + place).clamp(max=T - 1)
    q, k, v = (
        t[index].masked_fill(~real[:, :, None, None], 0).transpose(1, 2)
        for t in (query, key, value)
    )
    padded = las_attention(q, k, v, key_mask=real, query_offset=0, impl=impl, **options)
    return padded[sequence, :, token - starts]


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.ndim != 3 or t.shape[0] != query.shape[0]:
            raise ValueError(
                f"{name} must have shape (tokens, heads, head_dim) with the query's "
                f"{query.shape[0]} tokens, got {tuple(t.shape)}"
            )
    if not isinstance(cu_seqlens, Tensor):
        raise ValueError(f"cu_seqlens must be a tensor of N+1 integers, got {cu_seqlens!r:.60}")
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype not in INTEGERS:
        raise ValueError(
            "cu_seqlens must be a tensor of N+1 integers for N sequences, got "
            f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device != query.device:
        raise ValueError(f"cu_seqlens must be on {query.device}, got {cu_seqlens.device}")
    if not isinstance(longest, int | torch.SymInt) or longest < 0:
        raise ValueError(f"max_seqlen must be an integer >= 0, got {longest!r}")


def _check_bounds(bounds: Tensor, tokens: int, longest: int) -> None:
    """Bounds that are none would have kernels read and write beyond the tensors."""
    if not may_read(bounds):  # compiled code and CUDA graphs check where they run
        lengths = bounds.diff()
        right = (bounds[0] == 0) & (bounds[-1] == tokens)
        right = right & (lengths >= 0).all() & (lengths <= longest).all()
        torch._assert_async(right, "cu_seqlens must rise from 0 to the number of tokens, by at "
                            "most max_seqlen at a time")  # fmt: skip
        return
    numbers = bounds.tolist()
    if numbers[0] != 0 or numbers[-1] != tokens:
        raise ValueError(
            f"cu_seqlens must start at 0 and end at the number of tokens, {tokens}, got "
            f"{numbers[0]} and {numbers[-1]}"
        )
    for start, stop in pairwise(numbers):
        if start > stop:
            raise ValueError(f"cu_seqlens must not decrease, got {start} before {stop}")
        if stop - start > longest:
            raise ValueError(
                f"max_seqlen must be at least the length of every sequence, got {longest} and a "
                f"sequence of {stop - start}"
            )


def _refusal(call: Call, sequences: int) -> str | None:
    """Why the kernels cannot serve a packed call; None: they can."""
    if call.chunk is not None:
        return "packed kernels take no chunk"
    if call.smoothing == "masked" and call.window > 1:
        return "packed kernels take no masked smoothing"
    if call.window > WIDEST_WINDOW:
        return f"packed kernels take windows up to {WIDEST_WINDOW}"
    if sequences * call.query.shape[1] > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} heads, those of all sequences together"
    return kernel_refusal(call)


def _pool(
    v: Tensor, window: int, smoothing: str, edge: str, starts: Tensor, stops: Tensor
) -> Tensor:
    """`pool_values` inside each sequence: v (1, H, T, Dv), starts and stops (T,)."""
    before, after = reach(window, smoothing)
    share = None
    if edge == "renormalize":
        token = torch.arange(v.shape[2], device=v.device)
        count = (token - starts).clamp(max=before) + (stops - 1 - token).clamp(max=after) + 1
        share = count.float().reciprocal()[None]
    plan = Plan(0, 0, v.shape[1], 1, before, after, v.shape[2], v.shape[3])
    return prologue([v], plan, share=share, limits=(starts, stops))[2]
