"""LaS attention on sequences of different lengths, packed one after the other without padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from longlens.ops.las.call import Call, Packing, cast, check
from longlens.ops.las.checks import may_read
from longlens.ops.las.kernel import with_sink
from longlens.ops.las.plan import Assumed, Plan, Route, always, check_impl, choose
from longlens.ops.las.prepare import zero_rows
from longlens.ops.las.routes import attend, kernel_refusal
from longlens.ops.las.smoothing import reach
from longlens.ops.las.triton.attention_op import MOST_HEADS, kernel_attention
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Arguments, Layout, prologue

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
    local: int | tuple[int, int] | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
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
        local: as in `las_attention`.
        softcap: as in `las_attention`.
        sink: as in `las_attention`.
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
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))  # (1, H, T, D)
    call = Call(
        q, k, v, alpha, window, smoothing, edge, is_causal, None, 0, chunk, alpha_max, scale,
        enable_gqa, local=local, softcap=softcap, sink=sink,
    )  # fmt: skip
    cast(call)
    check_impl(impl)
    call.packing = Packing(cu_seqlens.to(torch.int32).contiguous(), max_seqlen)
    route = choose(ROUTES, check(call), impl, Assumed(alpha_max))
    _check_bounds(call.packing.bounds, query.shape[0], max_seqlen)
    if query.shape[0] == 0 or value.shape[2] == 0:
        out = zero_rows(q, value.shape[2], k, v, alpha, sink)
    else:
        out = route.run(call, Plan(impl, route.name))
    return out[0].transpose(0, 1)


def _run_kernel(call: Call, plan: Plan) -> Tensor:
    """By kernels that read the packed tensors as they are: (1, Hq, T, Dv)."""
    v = call.value if call.window == 1 else _pool(call)
    out, lse = kernel_attention(
        call.query, call.key, v, alpha=call.alpha, packing=call.packing,
        lag=0 if call.is_causal else None, local=call.local, scale=call.scale,
    )  # fmt: skip
    return out if call.sink is None else with_sink(out, lse, call.sink)


def _run_padded(call: Call, plan: Plan) -> Tensor:
    """As a batch of sequences with padding after them: (1, Hq, T, Dv)."""
    assert call.packing is not None
    bounds, T = call.packing.bounds, call.query.shape[2]
    place = torch.arange(call.packing.longest, device=bounds.device)
    real = place < (bounds[1:] - bounds[:-1])[:, None]  # (N, longest)
    index = (bounds[:-1, None] + place).clamp(max=T - 1)
    q, k, v = (
        t[0].transpose(0, 1)[index].masked_fill(~real[:, :, None, None], 0).transpose(1, 2)
        for t in (call.query, call.key, call.value)
    )
    padded = replace(call, query=q, key=k, value=v, key_mask=real, packing=None)
    out = attend(padded, plan.impl)
    sequence, starts, _ = call.packing.places(T)
    token = torch.arange(T, device=bounds.device)
    return out[sequence, :, token - starts].transpose(0, 1)[None]


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


def _no_kernel(call: Call, assumed: Assumed) -> str | None:
    """Why the kernels cannot serve a packed call; None: they can."""
    assert call.packing is not None
    if call.chunk is not None:
        return "packed kernels take no chunk"
    if call.banded:
        return "packed kernels take no masked smoothing"
    if call.window > WIDEST_WINDOW:
        return f"packed kernels take windows up to {WIDEST_WINDOW}"
    if (call.packing.bounds.shape[0] - 1) * call.query.shape[1] > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} heads, those of all sequences together"
    return kernel_refusal(call)


ROUTES = (
    Route("triton", "varlen", _no_kernel, "one fused kernel", _run_kernel, ["forward_kernel"]),
    Route("sdpa", "padded", always, "as a padded batch", _run_padded, ["attend"]),
    Route("reference", "padded", always, "as a padded batch", _run_padded, ["attend"]),
)


def _pool(call: Call) -> Tensor:
    """`pool_values` inside each sequence: (1, H, T, Dv)."""
    assert call.packing is not None
    v = call.value
    before, after = reach(call.window, call.smoothing)
    _, starts, stops = call.packing.places(v.shape[2])
    share = None
    if call.edge == "renormalize":
        token = torch.arange(v.shape[2], device=v.device)
        count = (token - starts).clamp(max=before) + (stops - 1 - token).clamp(max=after) + 1
        share = count.float().reciprocal()[None]
    layout = Layout(0, 0, v.shape[1], 1, before, after, v.shape[2], v.shape[3])
    limits = torch.stack([starts, stops])
    return prologue(Arguments(v, share=share, limits=limits, numbers=list(layout)))[2]
