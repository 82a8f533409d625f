"""The forward kernel: attention whose scores decay with the distance, two-sided or causal, any α.

A program owns BM queries of one head and walks along the keys. Keys that all lie before its first
query (or after its last) form plain tiles: there exp(-α|i-j|) is a row vector times a column
vector, both at most 1, so the rows scale Q once and a tile costs BN exponentials, not BM·BN. Tiles
around the diagonal take the exponential of each distance. Scores are in units of log 2.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that are not worth a compilation of their own when divisible by 16 or equal to 1
COUNTS = ["L", "S", "offset", "lag", "left", "right", "lse_b", "lse_h", "mask_b", "heads", "group"]
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# How the keys of a tile lie to its queries
BEFORE = tl.constexpr(0)
AROUND = tl.constexpr(1)
AFTER = tl.constexpr(2)


@triton.jit
def load_rows(base, i, stride, limit, d, D: tl.constexpr, BD: tl.constexpr, CHECK: tl.constexpr):
    """Rows i < limit of one head, (rows, BD); zeros elsewhere. Without CHECK all rows exist."""
    at = base + i.to(tl.int64)[:, None] * stride + d[None, :]
    if CHECK:
        ok = (i < limit)[:, None]
        if D < BD:
            ok = ok & (d < D)[None, :]
        return tl.load(at, mask=ok, other=0.0)
    if D < BD:
        return tl.load(at, mask=(d < D)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def place(program, heads):
    """Head and sequence of a program, wide enough to be multiplied by any stride."""
    return (program % heads).to(tl.int64), (program // heads).to(tl.int64)


@triton.jit
def sequence(cu, b, L, S, VARLEN: tl.constexpr):
    """Where this sequence's rows start, and how many queries and keys it has."""
    if VARLEN:
        start = tl.load(cu + b).to(tl.int64)
        n = (tl.load(cu + b + 1) - start).to(tl.int32)
        return start, n, n
    return (b * 0).to(tl.int64), L, S


@triton.jit
def decay(distance, rate):
    """exp(-α·distance), with `rate` = α·log2(e)."""
    return tl.exp2(-rate * distance.to(tl.float32))


@triton.jit
def key_ranges(
    first, last, lag, left, right, S,
    BN: tl.constexpr, CAUSAL: tl.constexpr, LOCAL: tl.constexpr,
):  # fmt: skip
    """Split the keys by their place to queries at positions first … last.

    Returns (start, before_start, before_stop, around_stop, after_start, after_stop, stop): tiles
    start at multiples of BN; a query sees keys up to its position minus `lag`, if causal. Tiles
    from `start` to `before_start` and from `after_stop` to `stop` lie across an end of the sliding
    window of some query; there are none without LOCAL.
    """
    before_stop = tl.maximum(tl.minimum(first - lag + 1, S), 0) // BN * BN
    if CAUSAL:
        around_stop = tl.maximum(tl.minimum(last - lag + 1, S), 0)
        after_start = around_stop
    else:
        after_start = tl.cdiv(tl.maximum(tl.minimum(last, S), 0), BN) * BN
        after_start = tl.maximum(after_start, before_stop)
        around_stop = tl.minimum(after_start, S)
    start, before_start, after_stop, stop = 0, 0, S, S
    if LOCAL:
        start = tl.maximum(tl.minimum(first - left, S), 0) // BN * BN
        before_stop = tl.maximum(before_stop, start)
        before_start = tl.cdiv(tl.maximum(tl.minimum(last - left, S), 0), BN) * BN
        before_start = tl.minimum(tl.maximum(before_start, start), before_stop)
        if not CAUSAL:
            stop = tl.maximum(tl.minimum(last + right + 1, S), 0)
            after_stop = tl.maximum(tl.minimum(first + right + 1, S), 0) // BN * BN
            after_stop = tl.maximum(after_stop, after_start)
    return start, before_start, before_stop, around_stop, after_start, after_stop, stop


@triton.jit
def tile_scores(
    q, k, pos, j, edge, rate, scale, lag, left, right, S, mask,
    PLACE: tl.constexpr, CAUSAL: tl.constexpr, LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_MASK: tl.constexpr, CHECK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (BM, BN) of one tile, and the factor by which they and their gradients are scaled."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if HAS_ALPHA:
        if PLACE == AROUND:
            factor = decay(tl.abs(pos[:, None] - j[None, :]), rate)
        elif PLACE == BEFORE:
            factor = decay(edge - j, rate)[None, :]
        else:
            factor = decay(j - edge, rate)[None, :]
    else:
        factor = tl.full((1, 1), 1.0, tl.float32)
    s = s * (factor * scale)
    if PLACE == AROUND and CAUSAL:
        s = tl.where(pos[:, None] - lag >= j[None, :], s, float("-inf"))
    if PLACE == AROUND and LOCAL:
        s = tl.where(pos[:, None] - j[None, :] <= left, s, float("-inf"))
        if not CAUSAL:
            s = tl.where(j[None, :] - pos[:, None] <= right, s, float("-inf"))
    if HAS_MASK:
        real = tl.load(mask + j, mask=j < S, other=0) != 0
        s = tl.where(real[None, :], s, float("-inf"))
    elif CHECK:
        s = tl.where((j < S)[None, :], s, float("-inf"))
    return s, factor


@triton.jit
def _walk(
    acc, top, total, q, k, v, pos, edge, rate, scale, lag, left, right, lo, hi, S, mask, d, dv,
    k_l, v_l,
    PLACE: tl.constexpr, CHECK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys lo … hi-1."""
    for n in range(lo, hi, BN):
        j = n + tl.arange(0, BN)
        keys = load_rows(k, j, k_l, S, d, D, BD, CHECK)
        s, _ = tile_scores(
            q, keys, pos, j, edge, rate, scale, lag, left, right, S, mask,
            PLACE, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, CHECK, PRECISION,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # rows that have seen no key yet
        p = tl.exp2(s - safe[:, None])
        keep = tl.exp2(top - safe)
        total = total * keep + tl.sum(p, 1)
        values = load_rows(v, j, v_l, S, dv, DV, BDV, CHECK)
        acc = acc * keep[:, None]
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
        top = new_top
    return acc, top, total


@triton.jit
def scaled_rows(q, distance, rate, HAS_ALPHA: tl.constexpr):
    """Q with its rows scaled by exp(-α·distance), rounded once."""
    if HAS_ALPHA:
        return (q.to(tl.float32) * decay(distance, rate)[:, None]).to(q.dtype)
    return q


@triton.jit(do_not_specialize=COUNTS)
def forward_kernel(
    q, k, v, out, lse, alpha, mask, cu,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l, lse_b, lse_h, mask_b,
    L, S, offset, lag, left, right, scale, heads, group,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
    BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr, VARLEN: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out (B, H, L, DV) and its natural log-sum-exp; a row without keys gets 0 and -inf."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest causal rows come first
    h, b = place(tl.program_id(1), heads)
    start, L, S = sequence(cu, b, L, S, VARLEN)
    if block * BM < L:
        if VARLEN:
            b = b * 0
        q += b * q_b + h * q_h + start * q_l
        k += b * k_b + (h // group) * k_h + start * k_l
        v += b * v_b + (h // group) * v_h + start * v_l
        if HAS_MASK:
            mask += b * mask_b + start
        rate = 0.0
        if HAS_ALPHA:
            rate = tl.load(alpha + h).to(tl.float32) * LOG2_E
        i = block * BM + tl.arange(0, BM)
        d, dv = tl.arange(0, BD), tl.arange(0, BDV)
        pos = offset + i
        first, last = offset + block * BM, offset + block * BM + BM - 1
        rows = load_rows(q, i, q_l, L, d, D, BD, True)
        acc = tl.zeros((BM, BDV), tl.float32)
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        begin, before_start, before_stop, around_stop, after_start, after_stop, stop = key_ranges(
            first, last, lag, left, right, S, BN, CAUSAL, LOCAL
        )
        scale_2 = scale * LOG2_E
        if LOCAL:
            acc, top, total = _walk(
                acc, top, total, rows, k, v, pos, first, rate, scale_2, lag, left, right, begin,
                before_start, S, mask, d, dv, k_l, v_l,
                AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, PRECISION,
            )  # fmt: skip
        acc, top, total = _walk(
            acc, top, total, scaled_rows(rows, pos - first, rate, HAS_ALPHA), k, v, pos, first,
            rate, scale_2, lag, left, right, before_start, before_stop, S, mask, d, dv, k_l, v_l,
            BEFORE, False, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, PRECISION,
        )  # fmt: skip
        acc, top, total = _walk(
            acc, top, total, rows, k, v, pos, first, rate, scale_2, lag, left, right, before_stop,
            around_stop, S, mask, d, dv, k_l, v_l,
            AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, PRECISION,
        )  # fmt: skip
        if not CAUSAL:
            acc, top, total = _walk(
                acc, top, total, scaled_rows(rows, last - pos, rate, HAS_ALPHA), k, v, pos, last,
                rate, scale_2, lag, left, right, after_start, after_stop, S, mask, d, dv, k_l, v_l,
                AFTER, not (EVEN or LOCAL), D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK,
                PRECISION,
            )  # fmt: skip
            if LOCAL:
                acc, top, total = _walk(
                    acc, top, total, rows, k, v, pos, first, rate, scale_2, lag, left, right,
                    after_stop, stop, S, mask, d, dv, k_l, v_l,
                    AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, PRECISION,
                )  # fmt: skip
        empty = total == 0.0
        acc = acc / tl.where(empty, 1.0, total)[:, None]
        found = (top + tl.log2(tl.where(empty, 1.0, total))) * LN_2
        ok = i < L
        tl.store(lse + b * lse_b + h * lse_h + start + i, found, mask=ok)
        at = out + b * o_b + h * o_h + (start + i.to(tl.int64))[:, None] * o_l + dv[None, :]
        tl.store(at, acc.to(out.dtype.element_ty), mask=ok[:, None] & (dv < DV)[None, :])
