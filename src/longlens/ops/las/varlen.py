"""LaS attention on sequences of different lengths, packed one after the other without padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.api import las_attention
from longlens.ops.las.checks import check_reading
from longlens.ops.las.smoothing import reach
from longlens.ops.las.triton import why_not
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Plan, prologue


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
        cu_seqlens: (N+1,) integers: 0, then where each of the N sequences ends.
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
    smoothing = check_reading(window, smoothing, edge, is_causal, chunk, scale, alpha_max)
    T = query.shape[0]
    token = torch.arange(T, device=query.device)
    bounds = cu_seqlens.to(torch.int32).contiguous()
    sequence = torch.searchsorted(bounds, token, right=True) - 1
    starts, stops = bounds[sequence], bounds[sequence + 1]
    refusal = why_not(query.device, query.dtype, max(query.shape[2], value.shape[2]))
    if chunk is not None:
        refusal = refusal or "packed kernels take no chunk"
    elif smoothing == "masked" and window > 1:
        refusal = refusal or "packed kernels take no masked smoothing"
    elif window > WIDEST_WINDOW:
        refusal = refusal or f"packed kernels take windows up to {WIDEST_WINDOW}"
    if impl == "triton" and refusal is not None:
        raise ValueError(f"impl='triton' is not possible: {refusal}; use 'auto'")
    if impl == "triton" or (impl == "auto" and query.is_cuda and refusal is None and T > 0):
        q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))  # (1, H, T, D)
        if window > 1:
            v = _pool(v, window, smoothing, edge, starts, stops)
        scale = query.shape[2] ** -0.5 if scale is None else scale
        out, _ = kernel_attention(
            q, k, v, alpha=alpha, bounds=bounds, longest=max_seqlen, causal=is_causal, scale=scale
        )
        return out[0].transpose(0, 1)
    options: dict[str, Any] = dict(
        alpha=alpha, window=window, smoothing=smoothing, edge=edge, is_causal=is_causal,
        chunk=chunk, alpha_max=alpha_max, scale=scale, enable_gqa=enable_gqa, impl=impl,
    )  # fmt: skip
    place = torch.arange(max_seqlen, device=query.device)
    real = place < (bounds[1:] - bounds[:-1])[:, None]  # (N, longest)
    index = (bounds[:-1, None] + place).clamp(max=max(T - 1, 0))
    q, k, v = (t[index].transpose(1, 2) for t in (query, key, value))
    padded = las_attention(q, k, v, key_mask=real, query_offset=0, **options)
    return padded[sequence, :, token - starts]


def _check(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.ndim != 3 or t.shape[0] != query.shape[0]:
            raise ValueError(
                f"{name} must have shape (tokens, heads, head_dim) with the query's "
                f"{query.shape[0]} tokens, got {tuple(t.shape)}"
            )
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype.is_floating_point:
        raise ValueError(
            "cu_seqlens must be a tensor of N+1 integers for N >= 1 sequences, got "
            f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device != query.device:
        raise ValueError(f"cu_seqlens must be on {query.device}, got {cu_seqlens.device}")
    if not isinstance(longest, int) or longest < 1:
        raise ValueError(f"max_seqlen must be an integer >= 1, got {longest!r}")


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
