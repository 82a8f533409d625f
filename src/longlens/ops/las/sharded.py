"""LaS attention over a sequence that is split across processes, equal to one process to rounding.

Each rank holds a contiguous piece of queries, keys and values, of any length, in the order of the
ranks. Two exchanges give the same result:

- gather: each rank fetches the keys and values that its queries can see, then attends as usual.
  One exchange; every option of `las_attention`; memory for the keys of the whole sequence.
- ring: each rank pools its own values with a halo of its neighbours', and the pieces of keys and
  pooled values visit one after the other (`ring.py`). Memory in proportion to the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longlens.ops.las.call import Call, cast, check, sides
from longlens.ops.las.checks import read_alpha
from longlens.ops.las.decay import FOLD_RANGE, fold
from longlens.ops.las.exchange import (
    Pieces,
    Span,
    agree,
    check_group,
    extended,
    fetch,
    fetch_mask,
    fetch_pair,
    known_pieces,
)
from longlens.ops.las.plan import IMPLEMENTATIONS
from longlens.ops.las.prepare import repeat_heads
from longlens.ops.las.ring import ring_attention
from longlens.ops.las.routes import attend
from longlens.ops.las.smoothing import pool_values, reach
from longlens.ops.las.transforms import functional, needs_formula
from longlens.ops.numerics import keep_dtypes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

EXCHANGES = ("gather", "ring")


def las_attention_sharded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: ProcessGroup | DeviceMesh,
    lengths: Sequence[int] | None = None,
    exchange: str = "gather",
    alpha: Tensor | None = None,
    window: int = 1,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    chunk: int | None = None,
    local: int | tuple[int, int] | None = None,
    alpha_max: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    impl: str = "auto",
) -> Tensor:
    """`las_attention` over a sequence of which each rank of `group` holds a contiguous piece.

    Every rank must make the call, and run its backward pass where gradients are wanted. Gradients
    of query, key and value are complete on the rank that holds them. The gradient of `alpha`, as
    that of any parameter, is each rank's share: that of its own queries; the sum over the ranks is
    the whole (see `docs/long_sequences.md` for what DDP's average makes of it).

    Args:
        query: (B, Hq, n, D), this rank's positions; n may differ between ranks, and is at least 1.
        key: (B, Hkv, n, D), the same positions.
        value: (B, Hkv, n, Dv).
        group: the ranks that share the sequence, in the order of its pieces: a process group or a
            device mesh of one dimension.
        lengths: n of every rank, where they are known. None: the ranks ask each other and compare
            their arguments, which costs one exchange of a few numbers.
        exchange: "gather" (the keys and values that a rank can see come to it) or "ring" (they
            visit piece by piece: memory in proportion to a rank's own piece).
        alpha: as in `las_attention`, the same on every rank.
        window: as in `las_attention`; so are all that follow.
        smoothing: "causal", "centered" or "masked".
        edge: "zero" or "renormalize".
        is_causal: whether a key must not lie after the query.
        key_mask: (B, n) bool, of this rank's positions.
        chunk: attend inside blocks of this many positions of the whole sequence. A block may
            straddle ranks. With "gather" only.
        local: a sliding window, of which a rank fetches no more than it sees. With "gather" only.
        alpha_max: a bound on `alpha` known without reading it.
        scale: factor of the scores; None: 1/sqrt(D).
        enable_gqa: allow fewer key heads than query heads.
        impl: as in `las_attention` with "gather"; "ring" runs on the operators of "sdpa" only.

    Returns:
        (B, Hq, n, Dv): the output at this rank's positions.

    >>> import torch.distributed as dist  # one process here; `torchrun` starts many
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q, k, v = (torch.randn(2, 8, 100, 32) for _ in range(3))
    >>> options = dict(alpha=decay_rates(8), window=5)
    >>> out = las_attention_sharded(q, k, v, group=dist.group.WORLD, **options)
    >>> torch.allclose(out, las_attention(q, k, v, **options), atol=1e-6)
    True
    >>> dist.destroy_process_group()

    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange must be one of {EXCHANGES}, got {exchange!r}")
    if functional() or needs_formula(query, key, value, alpha):
        raise NotImplementedError(
            "a sequence split across ranks has gradients alone: no forward-mode derivatives, no "
            "transforms of torch.func"
        )
    if impl not in IMPLEMENTATIONS or (exchange == "ring" and impl not in ("auto", "sdpa")):
        allowed = ("auto", "sdpa") if exchange == "ring" else IMPLEMENTATIONS
        raise ValueError(f"impl must be one of {allowed} with exchange={exchange!r}, got {impl!r}")
    call = Call(
        query, key, value, alpha, window, smoothing, edge, is_causal, key_mask, None, chunk,
        alpha_max, scale, enable_gqa, local=local,
    )  # fmt: skip
    cast(call)
    check(call).local = sides(local, is_causal)  # wider than a piece it may still be a window
    pieces = _pieces(call, group, lengths, exchange)
    if exchange == "ring":
        with keep_dtypes(call.query):
            out: Tensor = ring_attention(call, pieces)
        return out
    wanted = [_visible(call, span, pieces.total) for span in pieces.spans]
    call.key, call.value = fetch_pair(call.key, call.value, pieces, wanted)
    call.key_mask = fetch_mask(key_mask, pieces, wanted)
    call.query_offset = pieces.span[0] - wanted[pieces.rank][0]
    return attend(call, impl)


def _pieces(
    call: Call,
    group: ProcessGroup | DeviceMesh,
    lengths: Sequence[int] | None,
    exchange: str,
) -> Pieces:
    if call.query.shape[2] != call.key.shape[2]:
        raise ValueError(
            "query and key must hold the same positions of the sequence, got "
            f"{call.query.shape[2]} and {call.key.shape[2]}"
        )
    group = check_group(group)
    length = call.query.shape[2]
    if lengths is not None:
        return known_pieces(group, lengths, length)
    tensors = {"query": call.query, "key": call.key, "value": call.value, "alpha": call.alpha}
    grad = torch.is_grad_enabled()
    return agree(
        group,
        length,
        call.query.device,
        exchange=exchange,
        batch_size=call.query.shape[0],
        heads=(call.query.shape[1], call.key.shape[1]),
        head_dims=(call.query.shape[3], call.value.shape[3]),
        dtype=call.query.dtype,
        alpha_or_none="None" if call.alpha is None else "a tensor",
        key_mask_or_none="None" if call.key_mask is None else "a tensor",
        requires_grad=[n for n, t in tensors.items() if grad and t is not None and t.requires_grad],
        window=call.window,
        smoothing=call.smoothing,
        edge=call.edge,
        is_causal=call.is_causal,
        chunk=call.chunk,
        local=call.local,
        scale=call.scale,
    )


def _visible(call: Call, span: Span, total: int) -> Span:
    """The positions whose keys or values the queries of `span` depend on, and that edges need."""
    first, last = 0, total
    if call.is_causal:
        ahead = reach(call.window, call.smoothing)[1] if call.smoothing == "centered" else 0
        last = min(last, span[1] + ahead)
    if call.chunk is not None:
        first = span[0] // call.chunk * call.chunk
        last = min(last, -(-span[1] // call.chunk) * call.chunk)
    if call.local is not None:
        before, after = reach(call.window, call.smoothing)
        near = span[0] - call.local[0] - before
        if call.chunk is not None:  # keys begin with a block, since blocks are counted from them
            near = near // call.chunk * call.chunk
        first = max(first, near)
        last = min(last, span[1] + call.local[1] + after)
    return first, last


def folded_inputs_sharded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: ProcessGroup | DeviceMesh,
    alpha: Tensor,
    lengths: Sequence[int] | None = None,
    window: int = 1,
    smoothing: str = "causal",
    edge: str = "zero",
    alpha_max: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """What turns causal LaS attention into plain causal attention over the whole sequence.

    Returns this rank's pieces of q·u, k·w and pool(v): decay factors of the global positions, and
    values averaged with those of the neighbouring ranks. Any causal attention over split sequences
    takes them from there, PyTorch's `context_parallel` for one (`docs/long_sequences.md`).

    Args and shapes are those of `las_attention_sharded`. α times the length of the *whole* sequence
    must be in range (72 in float32 and bfloat16); `las_attention_sharded` has no such limit.

    Returns:
        query, key and value, (B, Hq, n, ·) all three: heads of a group have different factors.

    >>> import torch.distributed as dist
    >>> from torch.nn.functional import scaled_dot_product_attention
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q, k, v = (torch.randn(2, 8, 100, 32) for _ in range(3))
    >>> options = dict(alpha=decay_rates(8), window=5)
    >>> folded = folded_inputs_sharded(q, k, v, group=dist.group.WORLD, **options)
    >>> out = scaled_dot_product_attention(*folded, is_causal=True)
    >>> torch.allclose(out, las_attention(q, k, v, **options), atol=1e-6)
    True
    >>> dist.destroy_process_group()

    """
    if smoothing == "masked":
        raise ValueError(
            "smoothing must be 'causal' or 'centered', got 'masked': it does not move to the "
            "values; use las_attention_sharded"
        )
    call = Call(query, key, value, alpha, window, smoothing, edge, enable_gqa=enable_gqa)
    call.alpha_max = alpha_max
    cast(call)
    pieces = _pieces(check(call), group, lengths, "fold")
    if alpha_max is None:
        alpha_max, _ = read_alpha(alpha, key.shape[1])
    dtype = call.query.dtype
    if dtype == torch.float16 or alpha_max * pieces.total > FOLD_RANGE[dtype]:
        raise ValueError(
            f"alpha_max times the length must be at most {FOLD_RANGE[torch.float32]:g} in float32 "
            f"and bfloat16 (float64: {FOLD_RANGE[torch.float64]:g}; float16 is not taken), got "
            f"{alpha_max:g}·{pieces.total} in {dtype}; las_attention_sharded has no such limit"
        )
    before, after = reach(window, smoothing)
    wanted = extended(pieces, before, after)
    start, stop = pieces.span
    first = wanted[pieces.rank][0]
    pooled = pool_values(fetch(call.value, pieces, wanted), window, smoothing, edge, None)
    q, k, v = call.query, call.key, pooled[:, :, start - first : stop - first]
    k, v = repeat_heads(q, k, v)
    place = torch.arange(start, stop, dtype=torch.float64, device=q.device)
    position = place - 0.5 * (pieces.total - 1)
    return fold(q, alpha, position), fold(k, alpha, -position), v
