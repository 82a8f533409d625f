"""Decoding kernels: one query per head over a long cache, whose keys many programs share.

A program reads a stretch of one key head's keys and values once, for all query heads that share
them, and leaves an unfinished softmax: its maximum, sum and weighted values. A second kernel joins
the stretches. Scores are in units of log 2.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import LOG2_E, load_rows, place


@triton.jit(do_not_specialize=["n", "stretch", "kv_heads", "mask_b"])
def stretch_kernel(
    q, k, v, alpha, mask, out, top, total,
    q_b, q_h, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, n, stretch, kv_heads, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BG: tl.constexpr, BD: tl.constexpr,
    BDV: tl.constexpr, BN: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The newest of n tokens attends to a stretch of keys; results (B·Hkv, stretches, GROUP, ·)."""
    h, b = place(tl.program_id(1), kv_heads)
    g, d, dv = tl.arange(0, BG), tl.arange(0, BD), tl.arange(0, BDV)
    rows = load_rows(q + b * q_b + h * GROUP * q_h, g, q_h, GROUP, d, D, BD, True)
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    if HAS_ALPHA:
        rate = tl.load(alpha + h * GROUP + g, mask=g < GROUP, other=0.0).to(tl.float32) * LOG2_E
    acc = tl.zeros((BG, BDV), tl.float32)
    highest = tl.full((BG,), float("-inf"), tl.float32)
    weight = tl.zeros((BG,), tl.float32)
    lo = tl.program_id(0) * stretch
    hi = tl.minimum(lo + stretch, n)
    for start in range(lo, hi, BN):
        j = start + tl.arange(0, BN)
        keys = load_rows(k, j, k_l, hi, d, D, BD, True)
        s = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
        if HAS_ALPHA:
            s *= tl.exp2(-rate[:, None] * (n - 1 - j).to(tl.float32)[None, :])
        real = j < hi
        if HAS_MASK:
            real = real & (tl.load(mask + b * mask_b + j, mask=j < hi, other=0) != 0)
        s = tl.where(real[None, :], s, float("-inf"))
        new = tl.maximum(highest, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(s - safe[:, None])
        keep = tl.exp2(highest - safe)
        weight = weight * keep + tl.sum(p, 1)
        values = load_rows(v, j, v_l, hi, dv, DV, BDV, True)
        acc = tl.dot(p.to(values.dtype), values, acc * keep[:, None], input_precision=PRECISION)
        highest = new
    at = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * GROUP + g
    ok = g < GROUP
    tl.store(top + at, highest, mask=ok)
    tl.store(total + at, weight, mask=ok)
    tl.store(out + at[:, None] * DV + dv[None, :], acc, mask=ok[:, None] & (dv < DV)[None, :])


@triton.jit(do_not_specialize=["stretches"])
def join_kernel(
    part, top, total, out, stretches, GROUP: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr
):
    """Join the stretches of one query head: out (B·Hkv·GROUP, DV); no key at all gives zeros."""
    head = tl.program_id(0).to(tl.int64)
    first = head // GROUP * stretches * GROUP + head % GROUP
    dv = tl.arange(0, BDV)
    acc = tl.zeros((BDV,), tl.float32)
    highest = tl.full((), float("-inf"), tl.float32)
    weight = tl.full((), 0.0, tl.float32)
    for number in range(stretches):
        at = first + number * GROUP
        own = tl.load(top + at)
        new = tl.maximum(highest, own)
        safe = tl.where(new == float("-inf"), 0.0, new)
        keep, add = tl.exp2(highest - safe), tl.exp2(own - safe)
        weight = weight * keep + tl.load(total + at) * add
        acc = acc * keep + tl.load(part + at * DV + dv, mask=dv < DV, other=0.0) * add
        highest = new
    acc = acc / tl.where(weight == 0.0, 1.0, weight)
    tl.store(out + head * DV + dv, acc.to(out.dtype.element_ty), mask=dv < DV)
