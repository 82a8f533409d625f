"""Causal attention with a decay added to its scores: s_ij + A_i - A_j - power·log(1 + i - j).

Levels fall along the sequence, however far. Where all keys of a row meet in one softmax A_i
cancels, so a tile costs no more than plain attention: -A_j is added where the scale is multiplied.
A level is the sum of two numbers of float32, in units of log 2. They are taken relative to that of
a block's own first query (or last key); tiles on the diagonal take the difference of each pair. So
near scores keep their digits, whatever the range, and nothing overflows. Far keys whose weights
vanish are not visited at all (`levels`: begin and end, by groups of GROUP positions). A power law
is no difference of levels: its logarithm is taken for every pair.

As in `ops/las/triton` one kernel walks along the keys for the output, one for the gradients of
queries, and one along the queries for those of keys and values; nothing is added atomically. With
ds the gradient of a score, A's is the sum of its row of ds less that of its column. The row's sum
is zero but for the rounding of the output; both together make every pair count by its distance,
where a column alone would count by its position. Scores are in units of log 2.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import LN_2, LOG2_E, load_rows, place

COUNTS = ["L", "S", "level_b", "mask_b", "heads", "group"]
# dp - δ cancels to nothing where a query sees few keys, so float32 is exact there
EXACT = tl.constexpr("ieee")


@triton.jit
def _levels(level, i, S, CHECK: tl.constexpr):
    """Levels of positions i, each the sum of two numbers; the second ones follow the first."""
    if CHECK:
        ok = i < S
        return tl.load(level + i, mask=ok, other=0.0), tl.load(level + S + i, mask=ok, other=0.0)
    return tl.load(level + i), tl.load(level + S + i)


@triton.jit
def _logarithms(pos, j):
    """log2(1 + distance) of keys j from queries at pos, one of them along each side of a tile."""
    return tl.log2(1.0 + tl.maximum(pos - j, 0).to(tl.float32))


@triton.jit
def _power(power, h, POWER: tl.constexpr):
    """The exponent of a head; without a power law nobody asks for it."""
    if POWER:
        return tl.load(power + h).to(tl.float32)
    return 0.0


@triton.jit
def _scores(
    q, k, level, base, high, low, mask, power, pos, j, scale, S,
    EDGE: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (BM, BN) of a tile; before the edge they lack A_i - base."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    key_high, key_low = _levels(level, j, S, EDGE)
    if EDGE:
        s = s * scale + _difference(high, low, key_high, key_low)
        s = tl.where(pos[:, None] >= j[None, :], s, float("-inf"))
    else:
        s = s * scale - ((key_high - base) + key_low)[None, :]
    if POWER:
        s -= power * _logarithms(pos[:, None], j[None, :])
    if HAS_MASK:
        real = tl.load(mask + j, mask=j < S, other=0) != 0
        s = tl.where(real[None, :], s, float("-inf"))
    return s


@triton.jit
def _difference(high, low, other_high, other_low):
    """A_i - A_j of every pair, exact where it is small, however large both are."""
    return (high[:, None] - other_high[None, :]) + (low[:, None] - other_low[None, :])


@triton.jit
def _walk(
    acc, top, total, q, k, v, level, base, high, low, mask, power, pos, scale, lo, hi, S, d, dv,
    k_l, v_l,
    EDGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys lo … hi-1; EDGE: some of them lie after a query."""
    for n in range(lo, hi, BN):
        j = n + tl.arange(0, BN)
        keys = load_rows(k, j, k_l, S, d, D, BD, EDGE)
        s = _scores(
            q, keys, level, base, high, low, mask, power, pos, j, scale, S, EDGE, HAS_MASK, POWER,
            PRECISION,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(s, 1))
        safe = new_top
        if HAS_MASK:  # rows that have seen no key yet; the first key of all is seen by every row
            safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(s - safe[:, None])
        keep = tl.exp2(top - safe)
        total = total * keep + tl.sum(p, 1)
        values = load_rows(v, j, v_l, S, dv, DV, BDV, EDGE)
        acc = acc * keep[:, None]
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
        top = new_top
    return acc, top, total


@triton.jit
def _first_key(
    begin, block, L, before, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Where a block of queries starts, a multiple of BN; GROUP 0: at the first key."""
    start = before * 0
    if GROUP > 0:
        COUNT: tl.constexpr = BM // GROUP if BM > GROUP else 1
        groups = tl.cdiv(L, GROUP)
        at = block * BM // GROUP + tl.arange(0, COUNT)
        begin += tl.program_id(1).to(tl.int64) * groups
        found = tl.min(tl.load(begin + at, mask=at < groups, other=2**30 // GROUP), 0)
        start = tl.minimum(found * GROUP // BN * BN, before)
    return tl.multiple_of(start, BN)


@triton.jit(do_not_specialize=COUNTS)
def added_forward(
    q, k, v, out, lse, level, mask, power, begin,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l,
    level_b, mask_b, L, S, scale, heads, group,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out (B, H, L, DV) and its natural log-sum-exp; a row without keys gets 0 and -inf."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows come first
    h, b = place(tl.program_id(1), heads)
    q += b * q_b + h * q_h
    k += b * k_b + (h // group) * k_h
    v += b * v_b + (h // group) * v_h
    level += b * level_b + h * 2 * S
    if HAS_MASK:
        mask += b * mask_b
    i = block * BM + tl.arange(0, BM)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    first = S - L + block * BM  # the queries are the last ones
    pos = S - L + i
    base = tl.load(level + first)
    rows = load_rows(q, i, q_l, L, d, D, BD, True)
    acc = tl.zeros((BM, BDV), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    before = (first + 1) // BN * BN
    scale_2 = scale * LOG2_E
    high, low = _levels(level, pos, S, True)
    exponent = _power(power, h, POWER)
    start = _first_key(begin, block, L, before, GROUP, BM, BN)
    acc, top, total = _walk(
        acc, top, total, rows, k, v, level, base, high, low, mask, exponent, pos, scale_2, start,
        before, S, d, dv, k_l, v_l, False, D, DV, BD, BDV, BN, HAS_MASK, POWER, PRECISION,
    )  # fmt: skip
    top += (high - base) + low
    acc, top, total = _walk(
        acc, top, total, rows, k, v, level, base, high, low, mask, exponent, pos, scale_2, before,
        tl.minimum(first + BM, S), S, d, dv, k_l, v_l,
        True, D, DV, BD, BDV, BN, HAS_MASK, POWER, PRECISION,
    )  # fmt: skip
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    found = top + tl.log2(tl.where(empty, 1.0, total))
    ok = i < L
    tl.store(lse + tl.program_id(1).to(tl.int64) * L + i, found * LN_2, mask=ok)
    at = out + b * o_b + h * o_h + i.to(tl.int64)[:, None] * o_l + dv[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=ok[:, None] & (dv < DV)[None, :])


@triton.jit
def _walk_keys(
    dq, sums, logs, q, do, k, v, level, base, high, low, mask, power, row_lse, row_delta, pos,
    scale, lo, hi, S, d, dv, k_l, v_l,
    EDGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr, SUMS: tl.constexpr,
    LOGS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for n in range(lo, hi, BN):
        j = n + tl.arange(0, BN)
        keys = load_rows(k, j, k_l, S, d, D, BD, EDGE)
        values = load_rows(v, j, v_l, S, dv, DV, BDV, EDGE)
        s = _scores(
            q, keys, level, base, high, low, mask, power, pos, j, scale, S, EDGE, HAS_MASK, POWER,
            PRECISION,
        )  # fmt: skip
        p = tl.exp2(s - row_lse[:, None])
        dp = tl.dot(do, tl.trans(values), input_precision=EXACT)
        ds = p * (dp - row_delta[:, None])
        if SUMS:
            sums += tl.sum(ds, 1)
        if LOGS:
            logs += tl.sum(ds * _logarithms(pos[:, None], j[None, :]), 1)
        dq = tl.dot(ds.to(keys.dtype), keys, dq, input_precision=PRECISION)
    return dq, sums, logs


@triton.jit(do_not_specialize=COUNTS)
def added_query_gradient(
    q, k, v, do, lse_2, delta, dq, d_level, d_power, level, mask, power, begin,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l, dq_b, dq_h, dq_l,
    level_b, mask_b, L, S, scale, heads, group,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr, GROUP: tl.constexpr,
    SUMS: tl.constexpr, LOGS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq; with SUMS the row sums of ds into d_level (B, H, S); with LOGS those of
    ds·log2(1 + distance) into d_power (B, H, L).
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b = place(tl.program_id(1), heads)
    q += b * q_b + h * q_h
    k += b * k_b + (h // group) * k_h
    v += b * v_b + (h // group) * v_h
    do += b * do_b + h * do_h
    level += b * level_b + h * 2 * S
    if HAS_MASK:
        mask += b * mask_b
    i = block * BM + tl.arange(0, BM)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    first = S - L + block * BM
    pos = S - L + i
    ok = i < L
    base = tl.load(level + first)
    rows = load_rows(q, i, q_l, L, d, D, BD, True)
    grads = load_rows(do, i, do_l, L, dv, DV, BDV, True)
    row_at = tl.program_id(1).to(tl.int64) * L + i
    row_lse = tl.load(lse_2 + row_at, mask=ok, other=float("inf"))
    high, low = _levels(level, pos, S, True)
    row_delta = tl.load(delta + row_at, mask=ok, other=0.0)
    total = tl.zeros((BM, BD), tl.float32)
    sums = tl.zeros((BM,), tl.float32)
    logs = tl.zeros((BM,), tl.float32)
    before = (first + 1) // BN * BN
    scale_2 = scale * LOG2_E
    exponent = _power(power, h, POWER)
    start = _first_key(begin, block, L, before, GROUP, BM, BN)
    total, sums, logs = _walk_keys(
        total, sums, logs, rows, grads, k, v, level, base, high, low, mask, exponent,
        row_lse - ((high - base) + low), row_delta, pos, scale_2, start, before, S, d, dv, k_l, v_l,
        False, D, DV, BD, BDV, BN, HAS_MASK, POWER, SUMS, LOGS, PRECISION,
    )  # fmt: skip
    total, sums, logs = _walk_keys(
        total, sums, logs, rows, grads, k, v, level, base, high, low, mask, exponent, row_lse,
        row_delta, pos, scale_2, before, tl.minimum(first + BM, S), S, d, dv, k_l, v_l,
        True, D, DV, BD, BDV, BN, HAS_MASK, POWER, SUMS, LOGS, PRECISION,
    )  # fmt: skip
    at = dq + b * dq_b + h * dq_h + i.to(tl.int64)[:, None] * dq_l + d[None, :]
    tl.store(at, (total * scale).to(dq.dtype.element_ty), mask=ok[:, None] & (d < D)[None, :])
    if SUMS:
        tl.store(d_level + tl.program_id(1).to(tl.int64) * S + pos, sums, mask=ok)
    if LOGS:
        tl.store(d_power + row_at, logs, mask=ok)


@triton.jit
def _walk_queries(
    dk, dv_total, sums, q, do, k, v, level, base, key_high, key_low, power, lse_2, delta, j, scale,
    lo, hi, L, S, d, dv, q_l, do_l,
    EDGE: tl.constexpr, CHECK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
    BDV: tl.constexpr, BM: tl.constexpr, POWER: tl.constexpr, SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with transposed tiles, (BN, BM), over queries lo … hi-1.

    Each row depends on its own key alone, so masked keys need no care before the end.
    """
    for m in range(lo, hi, BM):
        i = m + tl.arange(0, BM)
        rows = load_rows(q, i, q_l, L, d, D, BD, CHECK)
        grads = load_rows(do, i, do_l, L, dv, DV, BDV, CHECK)
        if CHECK:
            row_lse = tl.load(lse_2 + i, mask=i < L, other=float("inf"))
            row_delta = tl.load(delta + i, mask=i < L, other=0.0)
        else:
            row_lse = tl.load(lse_2 + i)
            row_delta = tl.load(delta + i)
        high, low = _levels(level, S - L + i, S, CHECK)
        s = tl.dot(k, tl.trans(rows), input_precision=PRECISION) * scale
        if POWER:
            s -= power * _logarithms((S - L + i)[None, :], j[:, None])
        if EDGE:
            s -= _difference(key_high, key_low, high, low)
            p = tl.exp2(s - row_lse[None, :])
            p = tl.where((S - L + i)[None, :] >= j[:, None], p, 0.0)
        else:
            shift = row_lse - ((high - base) + low)
            p = tl.exp2((s - shift[None, :]) - ((key_high - base) + key_low)[:, None])
        dv_total = tl.dot(p.to(grads.dtype), grads, dv_total, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(grads), input_precision=EXACT)
        ds = p * (dp - row_delta[None, :])
        if SUMS:
            sums += tl.sum(ds, 1)
        dk = tl.dot(ds.to(rows.dtype), rows, dk, input_precision=PRECISION)
    return dk, dv_total, sums


@triton.jit(do_not_specialize=COUNTS)
def added_key_gradient(
    q, k, v, do, lse_2, delta, dk, dv_out, d_level, level, mask, power, end,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l, dk_b, dk_h, dk_l,
    dv_b, dv_h, dv_l, level_b, mask_b, L, S, scale, heads,
    MEMBERS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, POWER: tl.constexpr,
    GROUP: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk and dv, summed over the query heads of a group, and finish d_level."""
    block = tl.program_id(0)
    h, b = place(tl.program_id(1), heads)
    j = block * BN + tl.arange(0, BN)
    d, dv = tl.arange(0, BD), tl.arange(0, BDV)
    keys = load_rows(k + b * k_b + h * k_h, j, k_l, S, d, D, BD, True)
    values = load_rows(v + b * v_b + h * v_h, j, v_l, S, dv, DV, BDV, True)
    first, last = block * BN, block * BN + BN - 1
    offset = S - L
    BE: tl.constexpr = BM if BM < BN else BN  # rows of tiles on the diagonal and at the end
    around = tl.maximum(first - offset, 0) // BE * BE  # queries before it see none of these keys
    after = tl.cdiv(tl.maximum(tl.minimum(last - offset, L), 0), BE) * BE  # from here on all
    real = j < S
    if HAS_MASK:
        real = tl.load(mask + b * mask_b + j, mask=real, other=0) != 0
    scale_2 = scale * LOG2_E
    dk_total = tl.zeros((BN, BD), tl.float32)
    dv_total = tl.zeros((BN, BDV), tl.float32)
    for member in range(MEMBERS):
        head = h * MEMBERS + member
        own_q = q + b * q_b + head * q_h
        own_do = do + b * do_b + head * do_h
        row = b * heads * MEMBERS + head
        own_lse, own_delta = lse_2 + row * L, delta + row * L
        own = level + b * level_b + head * 2 * S
        base = tl.load(own + tl.minimum(last, S - 1))
        key_high, key_low = _levels(own, j, S, True)
        exponent = _power(power, head, POWER)
        sums = tl.zeros((BN,), tl.float32)
        stop = L
        if GROUP > 0:
            COUNT: tl.constexpr = BN // GROUP if BN > GROUP else 1
            groups = tl.cdiv(S, GROUP)
            at = first // GROUP + tl.arange(0, COUNT)
            found = tl.load(end + row * groups + at, mask=at < groups, other=0)
            stop = tl.minimum(tl.maximum(tl.max(found, 0) * GROUP, after), L)
        whole = after + tl.maximum(stop - after, 0) // BM * BM
        dk_total, dv_total, sums = _walk_queries(
            dk_total, dv_total, sums, own_q, own_do, keys, values, own, base, key_high, key_low,
            exponent, own_lse, own_delta, j, scale_2, around, tl.minimum(after, L), L, S, d, dv,
            q_l, do_l, True, True, D, DV, BD, BDV, BE, POWER, SUMS, PRECISION,
        )  # fmt: skip
        dk_total, dv_total, sums = _walk_queries(
            dk_total, dv_total, sums, own_q, own_do, keys, values, own, base, key_high, key_low,
            exponent, own_lse, own_delta, j, scale_2, after, whole, L, S, d, dv, q_l, do_l,
            False, False, D, DV, BD, BDV, BM, POWER, SUMS, PRECISION,
        )  # fmt: skip
        dk_total, dv_total, sums = _walk_queries(
            dk_total, dv_total, sums, own_q, own_do, keys, values, own, base, key_high, key_low,
            exponent, own_lse, own_delta, j, scale_2, whole, stop, L, S, d, dv, q_l, do_l,
            False, True, D, DV, BD, BDV, BE, POWER, SUMS, PRECISION,
        )  # fmt: skip
        if SUMS:
            at = d_level + row * S + j
            rows = tl.load(at, mask=(j >= offset) & (j < S), other=0.0)
            tl.store(at, rows - tl.where(real, sums, 0.0), mask=j < S)
    dk_total = tl.where(real[:, None], dk_total * scale, 0.0)
    dv_total = tl.where(real[:, None], dv_total, 0.0)
    at, ok = j.to(tl.int64)[:, None], (j < S)[:, None]
    dk += b * dk_b + h * dk_h + at * dk_l + d[None, :]
    dv_out += b * dv_b + h * dv_h + at * dv_l + dv[None, :]
    tl.store(dk, dk_total.to(dk.dtype.element_ty), mask=ok & (d < D)[None, :])
    tl.store(dv_out, dv_total.to(dv_out.dtype.element_ty), mask=ok & (dv < DV)[None, :])
