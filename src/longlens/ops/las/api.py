"""`las_attention`: validation, choice of a path, and LaS-chunk on top of every path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.call import Call, make_call, pieces, widened
from longlens.ops.las.checks import IMPLEMENTATIONS, check_bound, may_read, read_alpha
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.fused import fused_attention
from longlens.ops.las.reference import reference, reference_weights
from longlens.ops.las.sdpa import (
    FUSED_ROUTES,
    WIDEST_BAND,
    choose_route,
    sdpa_attention,
    zero_rows,
)
from longlens.ops.las.transforms import exporting
from longlens.ops.las.triton import mirror_op, why_not
from longlens.ops.las.triton.attention_op import MOST_HEADS, NARROW, beats_sdpa
from longlens.ops.las.triton.prologue_op import LONGEST, MOST_SEQUENCES
from longlens.ops.rotary import rotate


@dataclass(frozen=True)
class Plan:
    """The path that a call takes and why; `print(plan)` reads well."""

    impl: str  # "reference" | "sdpa" | "triton"
    route: str  # of sdpa: "row" | "plain" | "folded" | "merged" | "rows"; of triton: "triton",
    # "narrow", as folded or plain, or "mirrored", where cuDNN's kernels do the work; else as impl
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        head = self.impl if self.impl == self.route else f"{self.impl}/{self.route}"
        return "\n  - ".join([head, *self.reasons])


@dataclass(frozen=True)
class _Decision:
    """What dispatch knows: the implementation, why, and what it may assume of α."""

    impl: str
    why: str = ""
    alpha_max: float | None = None
    equal_in_group: bool = False  # α is constant over the query heads of each key head
    mirrored: bool = False  # two-sided decay as one causal call over both triangles
    free: bool = False  # no implementation was asked for by name


def las_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: Tensor | None = None,
    window: int = 1,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    query_offset: int | Tensor | None = None,
    chunk: int | None = None,
    alpha_max: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Local-and-Smooth attention, exact, without a matrix of queries by keys.

    The score of query i and key j is multiplied by exp(-α·distance) before the softmax, and the
    attention row is averaged over a window after it (Zimerman & Wolf, ICML 2024, Eq. 4).

    Args:
        query: (B, Hq, L, D). Query i sits at position i + `query_offset`.
        key: (B, Hkv, S, D). Key j sits at position j.
        value: (B, Hkv, S, Dv).
        alpha: decay rate of each query head, (Hq,), at least 0; None for no decay. Differentiable.
        window: width P of the average; 1 for no smoothing.
        smoothing: "causal" (each key averages its last P values), "centered" (P odd; under a
            causal mask a query then sees up to P//2 values ahead) or "masked" (centered, cut at
            the query). None: "causal" if `is_causal` else "centered".
        edge: "zero" (divide by P everywhere) or "renormalize" (rows sum to 1).
        is_causal: whether key j must not lie after query i.
        key_mask: (B, S) bool, True for a real token.
        query_offset: position of the first query: an int, or a tensor of 1 or B integers.
            None: S - L, the queries are the last ones.
        chunk: attend only inside blocks of this many positions (LaS-chunk).
        alpha_max: a bound on `alpha` known without reading it. Compiled code and CUDA graphs want
            one; without it eager code reads `alpha` and compiled code takes a range-free path.
        scale: factor of the scores; None: 1/sqrt(D).
        enable_gqa: allow fewer key heads than query heads.
        dropout_p: for the sake of SDPA's signature; anything but 0 raises.
        impl: "auto", or "reference", "sdpa", "triton" by name. `explain` tells what auto takes.

    Returns:
        (B, Hq, L, Dv). A query with no key to attend to gets zeros.

    >>> q, k, v = (torch.randn(2, 8, 100, 32) for _ in range(3))
    >>> las_attention(q, k, v, alpha=decay_rates(8), window=5).shape
    torch.Size([2, 8, 100, 32])

    """
    if dropout_p != 0:
        raise ValueError(f"dropout_p must be 0: LaS attention has no dropout, got {dropout_p}")
    call = make_call(
        query,
        key,
        value,
        alpha=alpha,
        window=window,
        smoothing=smoothing,
        edge=edge,
        is_causal=is_causal,
        key_mask=key_mask,
        query_offset=query_offset,
        chunk=chunk,
        alpha_max=alpha_max,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    decision = _decide(call, impl)
    if decision.impl == "reference":
        return reference(call.query, call.key, call.value, **call.reading())
    if decision.impl == "sdpa":
        return _attend(widened(call), decision).to(call.query.dtype)
    return _attend(call, decision)


def las_attention_packed(
    packed: Tensor,
    num_heads: int,
    num_kv_heads: int,
    *,
    angles: tuple[Tensor, Tensor] | None = None,
    impl: str = "auto",
    **options: Any,
) -> Tensor:
    """`las_attention` on a projection's output, of which queries, keys and values are parts.

    Args:
        packed: (B, Hq + 2·Hkv, L, D), the heads of the queries, then of the keys and values.
        num_heads: Hq.
        num_kv_heads: Hkv.
        angles: cosines and sines of `rotary_angles`, by which queries and keys are still to be
            rotated; None: not at all.
        impl: as in `las_attention`.
        options: the other options of `las_attention`.

    Returns:
        (B, Hq, L, D). Where fused kernels serve the call, rotation and pooling are one pass over
        `packed`, and so is its gradient.

    >>> packed = torch.randn(2, 8 + 2 * 2, 100, 16)
    >>> las_attention_packed(packed, 8, 2, window=5).shape
    torch.Size([2, 8, 100, 16])

    """
    if packed.ndim != 4 or packed.shape[1] != num_heads + 2 * num_kv_heads:
        raise ValueError(
            f"packed must have shape (batch, {num_heads + 2 * num_kv_heads}, length, head_dim), "
            f"got {tuple(packed.shape)}"
        )
    q, k, v = packed.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    call = make_call(q, k, v, enable_gqa=True, **options)
    decision = _decide(call, impl)
    if packed.dtype == call.query.dtype and call.chunk is None and packed.numel():
        if decision.impl == "triton":
            return _attend_fused(call, decision, [packed], angles)
        if decision.impl == "sdpa" and _prologue_runs(call, decision):
            return _attend_sdpa(call, decision, [packed], angles)
    if angles is not None:
        q, k = rotate(q, *angles), rotate(k, *angles)
    return las_attention(q, k, v, enable_gqa=True, impl=impl, **options)


def explain(
    query: Tensor, key: Tensor, value: Tensor, *, impl: str = "auto", **options: Any
) -> Plan:
    """Say which path `las_attention` takes for the same arguments, and why.

    >>> q = torch.randn(1, 2, 100, 16)
    >>> print(explain(q, q, q, alpha=torch.tensor([0.0, 0.01])))
    sdpa/folded
      - causal decay with α·L <= 72, in range: one SDPA call
    """
    call = make_call(query, key, value, **options)
    decision = _decide(call, impl)
    if decision.impl != "sdpa":
        route = "mirrored" if decision.mirrored else decision.impl
        return Plan(decision.impl, route, (decision.why,))
    reasons = []
    call = widened(call)
    heads, kv_heads = call.query.shape[1], call.key.shape[1]
    if call.chunk is not None and isinstance(call.query_offset, int):
        calls = [piece for _, piece in pieces(call) if piece is not None]
        reasons.append(f"chunk of {call.chunk}: {len(calls)} call(s) over blocks")
        call = max(calls, key=lambda piece: piece.query.numel(), default=call)
    route, why = _route(call, decision)
    reasons.append(why)
    narrow = _kernel_runs(call, decision)
    if narrow:
        reasons.append(f"heads of at most {NARROW} columns: a Triton kernel in SDPA's place")
    if heads != kv_heads and route in ("folded", "merged"):
        shared = route == "folded" and decision.equal_in_group
        reasons.append(
            "α is equal inside each group: keys and values stay unrepeated"
            if shared
            else f"keys and values are repeated to {heads} heads"
        )
    return Plan("triton" if narrow else "sdpa", "narrow" if narrow else route, tuple(reasons))


def las_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """The smoothed attention matrix a' (B, Hq, L, S) itself, for small lengths: pictures, teaching.

    Takes the keyword arguments of `las_attention`. Columns of masked keys are zero.

    >>> q = torch.zeros(1, 1, 3, 4)
    >>> las_weights(q, q)[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    call = make_call(query, key, key, **options)
    return reference_weights(call.query, call.key, **call.reading())


def _decide(call: Call, impl: str) -> _Decision:
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")
    if impl == "reference":
        return _Decision("reference", "asked for by name")
    refusal = kernel_refusal(call)
    if impl == "triton":
        if refusal is not None:
            raise ValueError(f"impl='triton' is not possible: {refusal}; use 'auto'")
        return _Decision("triton", "asked for by name")
    device, dtype = call.query.device.type, call.query.dtype
    if device not in ("cpu", "cuda", "meta") or (device == "cuda" and dtype == torch.float64):
        why = f"PyTorch exposes no fused attention for {dtype} on {device}"
        if impl == "sdpa":
            raise ValueError(f"impl='sdpa' is not possible: {why}; use 'reference'")
        return _Decision("reference", why)
    alpha, alpha_max = call.alpha, call.alpha_max
    decision = _Decision("sdpa", alpha_max=alpha_max, free=impl == "auto")
    if alpha is not None and alpha_max is None and may_read(alpha):
        alpha_max, equal = read_alpha(alpha, call.key.shape[1])
        # Each head's α has a gradient of its own, so learning them rules sharing out.
        equal = equal and not alpha.requires_grad
        decision = replace(decision, alpha_max=alpha_max, equal_in_group=equal)
    elif alpha is not None and alpha_max is not None and alpha.is_cpu and may_read(alpha):
        check_bound(alpha, alpha_max)  # elsewhere reading would wait for the device
    if impl == "auto" and device == "cuda" and refusal is None and not exporting():
        route, why = _route(call, decision)
        if route in ("merged", "rows"):  # one kernel beats many calls
            why = why.partition(":")[0]
            if _mirrors(call, decision.alpha_max):
                return _Decision("triton", f"{why}: one call over two triangles", mirrored=True)
            return _Decision("triton", f"{why}: one fused kernel")
    return decision


def _mirrors(call: Call, alpha_max: float | None) -> bool:
    """Whether two-sided decay is best computed as two folded triangles."""
    _, H, n, _ = call.query.shape
    return (
        not call.is_causal
        and call.alpha is not None
        and alpha_max is not None
        and call.key_mask is None
        and call.chunk is None
        and isinstance(call.query_offset, int)
        and call.query_offset == 0
        and call.key.shape[1:3] == (H, n)
        and alpha_max * n <= FOLD_RANGE[call.query.dtype]
        and mirror_op.serves(call.query, call.value)
    )


def kernel_refusal(call: Call) -> str | None:
    """Why the Triton kernels cannot serve a call; None: they can."""
    width = max(call.query.shape[3], call.value.shape[3])
    reason = why_not(call.query.device, call.query.dtype, width)
    if reason is not None:
        return reason
    if call.formula:
        return "Triton kernels have no forward-mode and no second derivatives"
    if isinstance(call.query_offset, Tensor):
        return "Triton kernels take query_offset as an int, not as a tensor"
    blocks = 1 if call.chunk is None else -(-call.query.shape[2] // call.chunk)
    if call.query.shape[0] * call.query.shape[1] * blocks > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} heads, those of all sequences together"
    if call.smoothing == "masked" and call.window > 1:
        if call.window // 2 > WIDEST_BAND:
            return f"Triton kernels take masked windows up to {2 * WIDEST_BAND + 1}"
        if call.query_offset < 0 or call.query_offset + call.query.shape[2] > call.key.shape[2]:
            return "Triton kernels take masked smoothing for queries that lie among the keys"
    return None


def _prologue_runs(call: Call, decision: _Decision) -> bool:
    """Whether one Triton pass prepares Q, K and V for SDPA."""
    query, value = call.query, call.value
    return (
        query.is_cuda
        and not exporting()
        and why_not(query.device, query.dtype, max(query.shape[3], value.shape[3])) is None
        and _route(call, decision)[0] in FUSED_ROUTES
        and query.shape[0] <= MOST_SEQUENCES
        and query.shape[2] <= min(call.key.shape[2], LONGEST)
        and (call.is_causal or query.shape[2] == call.key.shape[2])
    )


def _kernel_runs(call: Call, decision: _Decision) -> bool:
    """Whether what the prologue has prepared goes to our kernel instead of SDPA's.

    Never without decay and smoothing: that is SDPA, bit for bit.
    """
    return (
        decision.free
        and call.is_causal
        and call.key_mask is None
        and (call.alpha is not None or call.window > 1)
        and beats_sdpa(call.query, call.value)
        and kernel_refusal(call) is None
        and _prologue_runs(call, decision)
    )


def _route(call: Call, decision: _Decision) -> tuple[str, str]:
    return choose_route(
        queries=call.query.shape[2],
        keys=call.key.shape[2],
        offset=call.query_offset,
        dtype=call.query.dtype,
        has_alpha=call.alpha is not None,
        alpha_max=decision.alpha_max,
        window=call.window,
        smoothing=call.smoothing,
        is_causal=call.is_causal,
        has_mask=call.key_mask is not None,
        formula=call.formula or (exporting() and call.chunk is not None),
    )


def _attend(call: Call, decision: _Decision) -> Tensor:
    width = call.value.shape[3]
    if call.query.numel() == 0 or call.value.numel() == 0:
        return zero_rows(call.query, width, call.key, call.value, call.alpha)
    if call.chunk is None or isinstance(call.query_offset, Tensor) or exporting():
        tensors = [call.query, call.key, call.value]
        if decision.impl == "triton":
            return _attend_fused(call, decision, tensors, None)
        return _attend_sdpa(call, decision, tensors, None)
    outs = []
    for rows, piece in pieces(call):
        if piece is None:
            outs.append(zero_rows(call.query[:, :, :rows], width, call.key, call.value, call.alpha))
        else:
            out = _attend(piece, decision)  # (B·blocks, H, chunk, Dv)
            out = out.unflatten(0, (call.query.shape[0], -1)).transpose(1, 2).flatten(2, 3)
            outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _attend_fused(
    call: Call, decision: _Decision, tensors: list[Tensor], angles: tuple[Tensor, Tensor] | None
) -> Tensor:
    reading = call.reading()
    del reading["chunk"]
    heads = (call.query.shape[1], call.key.shape[1])
    return fused_attention(tensors, heads, angles=angles, mirrored=decision.mirrored, **reading)


def _attend_sdpa(
    call: Call, decision: _Decision, tensors: list[Tensor], angles: tuple[Tensor, Tensor] | None
) -> Tensor:
    return sdpa_attention(
        tensors,
        (call.query.shape[1], call.key.shape[1]),
        route=_route(call, decision)[0],
        alpha_max=decision.alpha_max,
        equal_in_group=decision.equal_in_group,
        fused=_prologue_runs(call, decision),
        kernel=_kernel_runs(call, decision),
        angles=angles,
        **call.reading(),
    )
