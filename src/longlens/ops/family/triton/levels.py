"""Levels A of positions, from forget gates and slopes, and the gradients of these from A's.

A program takes one head from end to end, in float64; there is one number per position only.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import LOG2_E, place


@triton.jit(do_not_specialize=["S", "heads"])
def level_sums(
    forget, slopes, level, f_b, f_h, f_l, S, heads,
    FORGETS: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A_i = Σ log_forget up to i - slope·i, in units of log 2, as the sum of two float32.

    level (B or 1, H, 2, S): the number rounded to float32, and what that leaves.
    """
    h, b = place(tl.program_id(0), heads)
    level += tl.program_id(0).to(tl.int64) * 2 * S
    before = tl.zeros((BLOCK,), tl.float64)
    for n in range(0, S, BLOCK):
        i = n + tl.arange(0, BLOCK)
        ok = i < S
        found = tl.zeros((BLOCK,), tl.float64)
        if FORGETS:
            at = forget + b * f_b + h * f_h + i.to(tl.int64) * f_l
            gates = tl.load(at, mask=ok, other=0.0).to(tl.float64)
            found = before + tl.cumsum(gates, 0)
            before += tl.sum(gates, 0)
        if SLOPES:
            found -= tl.load(slopes + h).to(tl.float64) * i
        found *= LOG2_E
        high = found.to(tl.float32)
        tl.store(level + i, high, mask=ok)
        tl.store(level + S + i, (found - high).to(tl.float32), mask=ok)


@triton.jit(do_not_specialize=["S", "heads"])
def level_gradient(
    d_level, d_forget, d_slopes, f_b, f_h, f_l, S, heads,
    FORGETS: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From d_level (B, H, S): the gates' gradient, and each sequence's share (B, H) of slopes'."""
    h, b = place(tl.program_id(0), heads)
    d_level += tl.program_id(0).to(tl.int64) * S
    later = tl.zeros((BLOCK,), tl.float64)
    share = tl.zeros((BLOCK,), tl.float64)
    for n in range(0, S, BLOCK):
        i = S - 1 - n - tl.arange(0, BLOCK)
        ok = i >= 0
        found = tl.load(d_level + i, mask=ok, other=0.0).to(tl.float64)
        if FORGETS:
            at = d_forget + b * f_b + h * f_h + i.to(tl.int64) * f_l
            sums = later + tl.cumsum(found, 0)
            tl.store(at, sums.to(d_forget.dtype.element_ty), mask=ok)
            later += tl.sum(found, 0)
        if SLOPES:
            share -= found * i
    if SLOPES:
        tl.store(d_slopes + tl.program_id(0), tl.sum(share, 0).to(tl.float32))
