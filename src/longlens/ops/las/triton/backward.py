"""The backward kernels: one walks along the keys for the gradients of Q and α, one along the
queries for those of K and V. Nothing is added atomically: results are the same every time.

With p the attention weights, dp = <dO_i, v_j> and δ_i = <dO_i, o_i> - dlse_i:
ds = p·(dp - δ), dq_i = Σ_j ds·f·k_j, dk_j = Σ_i ds·f·q_i, dα = -Σ ds·s·|i-j|, where f is the decay
times the scale. In plain tiles f is again a row vector times a column vector.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import (
    AFTER,
    AROUND,
    BEFORE,
    COUNTS,
    LN_2,
    LOG2_E,
    decay,
    key_ranges,
    load_rows,
    place,
    scaled_rows,
    sequence,
    tile_scores,
)

# dp - δ cancels to nothing where a query sees few keys, so float32 is exact there
EXACT = tl.constexpr("ieee")


@triton.jit(do_not_specialize=["L", "heads"])
def delta_kernel(
    out, grad, lse, grad_lse, delta, lse_2, o_b, o_h, o_l, g_b, g_h, g_l, L, heads,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, HAS_LSE_GRADIENT: tl.constexpr,
):  # fmt: skip
    """δ = <dO, O> - dlse, and the log-sum-exp in units of log 2, +inf for rows without keys.

    The last turns each weight of such a row into exp2(s - inf) = 0.
    """
    h, b = place(tl.program_id(1), heads)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    dv = tl.arange(0, BDV)
    o = load_rows(out + b * o_b + h * o_h, i, o_l, L, dv, DV, BDV, True).to(tl.float32)
    g = load_rows(grad + b * g_b + h * g_h, i, g_l, L, dv, DV, BDV, True).to(tl.float32)
    at, ok = tl.program_id(1).to(tl.int64) * L + i, i < L
    found = tl.load(lse + at, mask=ok, other=0.0) * LOG2_E
    tl.store(lse_2 + at, tl.where(found == float("-inf"), float("inf"), found), mask=ok)
    found = tl.sum(o * g, 1)
    if HAS_LSE_GRADIENT:
        found -= tl.load(grad_lse + at, mask=ok, other=0.0)
    tl.store(delta + at, found, mask=ok)


@triton.jit
def _walk_keys(
    dq, dalpha, inner, moment, q, do, k, v, row_lse, row_delta, pos, edge, rate, scale, lag,
    left, right, lo, hi, S, mask, d, dv, k_l, v_l,
    PLACE: tl.constexpr, CHECK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr,
    ALPHA_GRADIENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for n in range(lo, hi, BN):
        j = n + tl.arange(0, BN)
        keys = load_rows(k, j, k_l, S, d, D, BD, CHECK)
        values = load_rows(v, j, v_l, S, dv, DV, BDV, CHECK)
        s, factor = tile_scores(
            q, keys, pos, j, edge, rate, scale, lag, left, right, S, mask,
            PLACE, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, CHECK, PRECISION,
        )  # fmt: skip
        p = tl.exp2(s - row_lse[:, None])
        dp = tl.dot(do, tl.trans(values), input_precision=EXACT)
        ds = p * (dp - row_delta[:, None])
        if ALPHA_GRADIENT:
            distance = tl.abs(pos[:, None] - j[None, :]).to(tl.float32)
            lever = tl.where(p > 0.0, s * distance, 0.0)
            dalpha += tl.sum(ds * lever, 1)
            inner += tl.sum(p * dp, 1)
            moment += tl.sum(p * lever, 1)
        dq = tl.dot((ds * factor).to(keys.dtype), keys, dq, input_precision=PRECISION)
    return dq, dalpha, inner, moment


@triton.jit(do_not_specialize=COUNTS)
def query_kernel(
    q, k, v, do, lse_2, delta, dlse, dq, dalpha, alpha, mask, cu,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l, dq_b, dq_h, dq_l,
    lse_b, lse_h, mask_b, L, S, offset, lag, left, right, scale, heads, group,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
    BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr, VARLEN: tl.constexpr,
    EVEN: tl.constexpr, ALPHA_GRADIENT: tl.constexpr, HAS_LSE_GRADIENT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq, and for each row its share of α's gradient.

    δ comes from an output that was rounded, and distances are long levers, so α's gradient gets
    the exact Σ p·dp instead, by a correction at the end.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    h, b = place(tl.program_id(1), heads)
    start, L, S = sequence(cu, b, L, S, VARLEN)
    if block * BM < L:
        if VARLEN:
            b = b * 0
        q += b * q_b + h * q_h + start * q_l
        k += b * k_b + (h // group) * k_h + start * k_l
        v += b * v_b + (h // group) * v_h + start * v_l
        do += b * do_b + h * do_h + start * do_l
        dq += b * dq_b + h * dq_h + start * dq_l
        row_at = b * lse_b + h * lse_h + start
        if HAS_MASK:
            mask += b * mask_b + start
        rate = 0.0
        if HAS_ALPHA:
            rate = tl.load(alpha + h).to(tl.float32) * LOG2_E
        i = block * BM + tl.arange(0, BM)
        d, dv = tl.arange(0, BD), tl.arange(0, BDV)
        ok = i < L
        pos = offset + i
        first, last = offset + block * BM, offset + block * BM + BM - 1
        rows = load_rows(q, i, q_l, L, d, D, BD, True)
        grads = load_rows(do, i, do_l, L, dv, DV, BDV, True)
        row_lse = tl.load(lse_2 + row_at + i, mask=ok, other=float("inf"))
        row_delta = tl.load(delta + row_at + i, mask=ok, other=0.0)
        total = tl.zeros((BM, BD), tl.float32)
        rates = tl.zeros((BM,), tl.float32)
        inner = tl.zeros((BM,), tl.float32)  # Σ p·dp
        moment = tl.zeros((BM,), tl.float32)  # Σ p·s·distance
        begin, before_start, before_stop, around_stop, after_start, after_stop, stop = key_ranges(
            first, last, lag, left, right, S, BN, CAUSAL, LOCAL
        )
        scale_2 = scale * LOG2_E
        total, rates, inner, moment = _walk_keys(
            total, rates, inner, moment, scaled_rows(rows, pos - first, rate, HAS_ALPHA), grads,
            k, v, row_lse, row_delta, pos, first, rate, scale_2, lag, left, right, before_start,
            before_stop, S, mask, d, dv, k_l, v_l,
            BEFORE, False, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, ALPHA_GRADIENT,
            PRECISION,
        )  # fmt: skip
        if HAS_ALPHA:
            total *= decay(pos - first, rate)[:, None]
        total, rates, inner, moment = _walk_keys(
            total, rates, inner, moment, rows, grads, k, v, row_lse, row_delta, pos, first, rate,
            scale_2, lag, left, right, before_stop, around_stop, S, mask, d, dv, k_l, v_l,
            AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK, ALPHA_GRADIENT,
            PRECISION,
        )  # fmt: skip
        if LOCAL:
            total, rates, inner, moment = _walk_keys(
                total, rates, inner, moment, rows, grads, k, v, row_lse, row_delta, pos, first,
                rate, scale_2, lag, left, right, begin, before_start, S, mask, d, dv, k_l, v_l,
                AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK,
                ALPHA_GRADIENT, PRECISION,
            )  # fmt: skip
        if not CAUSAL:
            later = tl.zeros((BM, BD), tl.float32)
            later, rates, inner, moment = _walk_keys(
                later, rates, inner, moment, scaled_rows(rows, last - pos, rate, HAS_ALPHA), grads,
                k, v, row_lse, row_delta, pos, last, rate, scale_2, lag, left, right, after_start,
                after_stop, S, mask, d, dv, k_l, v_l,
                AFTER, not (EVEN or LOCAL), D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK,
                ALPHA_GRADIENT, PRECISION,
            )  # fmt: skip
            if HAS_ALPHA:
                later *= decay(last - pos, rate)[:, None]
            total += later
            if LOCAL:
                total, rates, inner, moment = _walk_keys(
                    total, rates, inner, moment, rows, grads, k, v, row_lse, row_delta, pos, first,
                    rate, scale_2, lag, left, right, after_stop, stop, S, mask, d, dv, k_l, v_l,
                    AROUND, True, D, DV, BD, BDV, BN, CAUSAL, LOCAL, HAS_ALPHA, HAS_MASK,
                    ALPHA_GRADIENT, PRECISION,
                )  # fmt: skip
        at = dq + i.to(tl.int64)[:, None] * dq_l + d[None, :]
        fits = ok[:, None] & (d < D)[None, :]
        tl.store(at, (total * scale).to(dq.dtype.element_ty), mask=fits)
        if ALPHA_GRADIENT:
            rounded = row_delta
            if HAS_LSE_GRADIENT:
                rounded += tl.load(dlse + row_at + i, mask=ok, other=0.0)
            rates += (rounded - inner) * moment
            tl.store(dalpha + row_at + i, -rates * LN_2, mask=ok)


@triton.jit
def _walk_queries(
    dk, dv_total, q, do, k, v, lse_2, delta, j, edge, rate, scale, offset, lag, left, right, lo,
    hi, L, d, dv, q_l, do_l,
    PLACE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, CAUSAL: tl.constexpr, LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr,
    CHECK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with transposed tiles, (BN, BM).

    Each row depends on its own key alone, so masked keys need no care before the end.
    """
    for m in range(lo, hi, BM):
        i = m + tl.arange(0, BM)
        pos = offset + i
        rows = load_rows(q, i, q_l, L, d, D, BD, CHECK)
        grads = load_rows(do, i, do_l, L, dv, DV, BDV, CHECK)
        if CHECK:
            row_lse = tl.load(lse_2 + i, mask=i < L, other=float("inf"))
            row_delta = tl.load(delta + i, mask=i < L, other=0.0)
        else:
            row_lse = tl.load(lse_2 + i)
            row_delta = tl.load(delta + i)
        s = tl.dot(k, tl.trans(rows), input_precision=PRECISION)
        if HAS_ALPHA:
            if PLACE == AROUND:
                factor = decay(tl.abs(pos[None, :] - j[:, None]), rate)
            elif PLACE == BEFORE:
                factor = decay(pos - edge, rate)[None, :]
            else:
                factor = decay(edge - pos, rate)[None, :]
        else:
            factor = tl.full((1, 1), 1.0, tl.float32)
        p = tl.exp2(s * (factor * scale) - row_lse[None, :])
        if PLACE == AROUND and CAUSAL:
            p = tl.where(pos[None, :] - lag >= j[:, None], p, 0.0)
        if PLACE == AROUND and LOCAL:
            p = tl.where(pos[None, :] - j[:, None] <= left, p, 0.0)
            if not CAUSAL:
                p = tl.where(j[:, None] - pos[None, :] <= right, p, 0.0)
        dv_total = tl.dot(p.to(grads.dtype), grads, dv_total, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(grads), input_precision=EXACT)
        ds = p * (dp * factor - row_delta[None, :] * factor)  # one fused operation in plain tiles
        dk = tl.dot(ds.to(rows.dtype), rows, dk, input_precision=PRECISION)
    return dk, dv_total


@triton.jit(do_not_specialize=COUNTS)
def key_kernel(
    q, k, v, do, lse_2, delta, dk, dv_out, alpha, mask, cu,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l, dk_b, dk_h, dk_l,
    dv_b, dv_h, dv_l, lse_b, lse_h, mask_b, L, S, offset, lag, left, right, scale, heads,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    LOCAL: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr, VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk and dv; all query heads of a group are summed here."""
    block = tl.program_id(0)
    h, b = place(tl.program_id(1), heads)
    start, L, S = sequence(cu, b, L, S, VARLEN)
    if block * BN < S:
        if VARLEN:
            b = b * 0
        j = block * BN + tl.arange(0, BN)
        d, dv = tl.arange(0, BD), tl.arange(0, BDV)
        keys = load_rows(k + b * k_b + h * k_h + start * k_l, j, k_l, S, d, D, BD, True)
        values = load_rows(v + b * v_b + h * v_h + start * v_l, j, v_l, S, dv, DV, BDV, True)
        first, last = block * BN, block * BN + BN - 1
        # Queries that come after all of these keys, before all of them, and the rest between.
        after_start = tl.cdiv(tl.maximum(tl.minimum(last + lag - offset, L), 0), BM) * BM
        if CAUSAL:
            before_stop = tl.maximum(tl.minimum(first + lag - offset, L), 0) // BM * BM
        else:
            before_stop = tl.maximum(tl.minimum(first - offset + 1, L), 0) // BM * BM
        after_start = tl.maximum(after_start, before_stop)
        whole = L // BM * BM  # blocks from here on are partly filled
        whole = tl.maximum(after_start, whole)
        before_start = 0
        if LOCAL:  # from `whole` to `stop`, and from `begin` to `before_start`, windows end
            stop = tl.maximum(tl.minimum(last + left - offset + 1, L), 0)
            inside = tl.maximum(tl.minimum(first + left - offset + 1, L), 0) // BM * BM
            whole = tl.minimum(tl.maximum(after_start, inside), whole)
            begin = tl.maximum(tl.minimum(first - right - offset, L), 0) // BM * BM
            before_start = tl.cdiv(tl.maximum(tl.minimum(last - right - offset, L), 0), BM) * BM
            before_start = tl.minimum(before_start, before_stop)
        scale_2 = scale * LOG2_E
        dk_total = tl.zeros((BN, BD), tl.float32)
        dv_total = tl.zeros((BN, BDV), tl.float32)
        for member in range(GROUP):
            head = h * GROUP + member
            own_q = q + b * q_b + head * q_h + start * q_l
            own_do = do + b * do_b + head * do_h + start * do_l
            row_at = b * lse_b + head * lse_h + start
            rate = 0.0
            if HAS_ALPHA:
                rate = tl.load(alpha + head).to(tl.float32) * LOG2_E
            near = scaled_rows(keys, last - j, rate, HAS_ALPHA)
            part = tl.zeros((BN, BD), tl.float32)
            part, dv_total = _walk_queries(
                part, dv_total, own_q, own_do, near, values, lse_2 + row_at, delta + row_at, j,
                last, rate, scale_2, offset, lag, left, right, after_start, whole, L, d, dv, q_l,
                do_l, BEFORE, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, False, PRECISION,
            )  # fmt: skip
            if not LOCAL:
                part, dv_total = _walk_queries(
                    part, dv_total, own_q, own_do, near, values, lse_2 + row_at, delta + row_at, j,
                    last, rate, scale_2, offset, lag, left, right, whole, L, L, d, dv, q_l, do_l,
                    BEFORE, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, True, PRECISION,
                )  # fmt: skip
            if HAS_ALPHA:
                part *= decay(last - j, rate)[:, None]
            if LOCAL:
                part, dv_total = _walk_queries(
                    part, dv_total, own_q, own_do, keys, values, lse_2 + row_at, delta + row_at, j,
                    last, rate, scale_2, offset, lag, left, right, whole, stop, L, d, dv, q_l, do_l,
                    AROUND, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, True, PRECISION,
                )  # fmt: skip
            part, dv_total = _walk_queries(
                part, dv_total, own_q, own_do, keys, values, lse_2 + row_at, delta + row_at, j,
                last, rate, scale_2, offset, lag, left, right, before_stop,
                tl.minimum(after_start, L), L, d, dv, q_l, do_l,
                AROUND, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, True, PRECISION,
            )  # fmt: skip
            dk_total += part
            if not CAUSAL:
                part = tl.zeros((BN, BD), tl.float32)
                part, dv_total = _walk_queries(
                    part, dv_total, own_q, own_do, scaled_rows(keys, j - first, rate, HAS_ALPHA),
                    values, lse_2 + row_at, delta + row_at, j, first, rate, scale_2, offset, lag,
                    left, right, before_start, before_stop, L, d, dv, q_l, do_l,
                    AFTER, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, False, PRECISION,
                )  # fmt: skip
                if HAS_ALPHA:
                    part *= decay(j - first, rate)[:, None]
                if LOCAL:
                    part, dv_total = _walk_queries(
                        part, dv_total, own_q, own_do, keys, values, lse_2 + row_at,
                        delta + row_at, j, first, rate, scale_2, offset, lag, left, right, begin,
                        before_start, L, d, dv, q_l, do_l,
                        AROUND, D, DV, BD, BDV, BM, CAUSAL, LOCAL, HAS_ALPHA, True, PRECISION,
                    )  # fmt: skip
                dk_total += part
        dk_total *= scale
        if HAS_MASK:
            real = tl.load(mask + b * mask_b + start + j, mask=j < S, other=0) != 0
            dk_total = tl.where(real[:, None], dk_total, 0.0)
            dv_total = tl.where(real[:, None], dv_total, 0.0)
        ok = (j < S)[:, None]
        at = start + j.to(tl.int64)[:, None]
        dk += b * dk_b + h * dk_h
        dv_out += b * dv_b + h * dv_h
        tl.store(
            dk + at * dk_l + d[None, :], dk_total.to(dk.dtype.element_ty),
            mask=ok & (d < D)[None, :],
        )  # fmt: skip
        tl.store(
            dv_out + at * dv_l + dv[None, :], dv_total.to(dv_out.dtype.element_ty),
            mask=ok & (dv < DV)[None, :],
        )  # fmt: skip
