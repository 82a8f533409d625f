"""Levels A of positions, from forget gates and slopes, the gradients of these from A's, and reach.

A program takes one head from end to end, in float64; there is one number per position only.

Reach: with |q|, |k| the longest query and key, a score is at most U = |q|·|k|·scale and a row's
log-sum-exp at least -U, the score of its own key. So the weight of a pair is at most
exp(2U + A_i - A_j), and keys whose level lies far enough above a query's need not be visited. It is
the bound of Lin et al. 2025 (arXiv 2504.06949), by groups of queries and of keys.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import LOG2_E, load_rows, place


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


@triton.jit(do_not_specialize=["L", "heads"])
def longest_rows(
    x, top, x_b, x_h, x_l, L, heads, D: tl.constexpr, BD: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The length of the longest row in each group of rows, (B, H, groups)."""
    h, b = place(tl.program_id(1), heads)
    i, d = tl.program_id(0) * GROUP + tl.arange(0, GROUP), tl.arange(0, BD)
    rows = load_rows(x + b * x_b + h * x_h, i, x_l, L, d, D, BD, True).to(tl.float32)
    found = tl.sqrt(tl.max(tl.sum(rows * rows, 1), 0))
    tl.store(top + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), found)


@triton.jit
def _lower(a, b):
    return tl.minimum(a, b)


@triton.jit
def _higher(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["level_b", "L", "S", "heads", "share"])
def level_reach(
    level, q_top, k_top, edges, begin, end, level_b, L, S, scale, heads, share, bits,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """For groups of queries how many groups of keys at the start they need not visit, and for
    groups of keys from which group of queries on none visits them: begin, end (B, H, groups).

    What is left out weighs at most 2^-bits of a row. `edges` (B, H, 2, groups) is scratch: the
    lowest level up to each group of keys, and the highest of b_i = A_i + 2U from each group of
    queries on, which are sorted whatever the levels are.
    """
    h, b = place(tl.program_id(0), heads)
    level += b * level_b + h * 2 * S
    rows, columns = tl.cdiv(L, GROUP), tl.cdiv(S, GROUP)
    g = tl.arange(0, GROUPS)
    lowest, highest = tl.full((GROUPS,), 1e30, tl.float32), tl.full((GROUPS,), -1e30, tl.float32)
    for n in range(GROUP):
        i = g * GROUP + n
        lowest = tl.minimum(lowest, tl.load(level + i, mask=i < S, other=1e30))
        query = tl.load(level + (S - L) + i, mask=i < L, other=-1e30)
        highest = tl.maximum(highest, query)
    # levels were rounded to float32
    lowest, highest = lowest - tl.abs(lowest) * 2e-7, highest + tl.abs(highest) * 2e-7
    own = tl.program_id(0).to(tl.int64)
    key_head = b * (heads // share) + h // share
    longest = tl.max(tl.load(k_top + key_head * columns + g, mask=g < columns, other=0.0), 0)
    highest += 2 * LOG2_E * scale * longest * tl.load(q_top + own * rows + g, g < rows, other=0.0)
    before, after = edges + own * 2 * columns, edges + own * 2 * columns + columns
    tl.store(before + g, tl.associative_scan(lowest, 0, _lower), mask=g < columns)
    tl.store(after + g, tl.associative_scan(highest, 0, _higher, reverse=True), mask=g < rows)
    tl.debug_barrier()
    low, high = tl.zeros((GROUPS,), tl.int32), tl.zeros((GROUPS,), tl.int32) + columns
    first, last = tl.zeros((GROUPS,), tl.int32), tl.zeros((GROUPS,), tl.int32) + rows
    for _ in range(STEPS):
        middle = (low + high) // 2
        far = highest - tl.load(before + middle, mask=middle < columns, other=0.0) < -bits
        open_ = low < high
        low, high = tl.where(open_ & far, middle + 1, low), tl.where(open_ & ~far, middle, high)
        middle = (first + last) // 2
        far = tl.load(after + middle, mask=middle < rows, other=0.0) - lowest < -bits
        open_ = first < last
        first, last = tl.where(open_ & ~far, middle + 1, first), tl.where(open_ & far, middle, last)
    tl.store(begin + own * rows + g, low, mask=g < rows)
    tl.store(end + own * columns + g, first, mask=g < columns)
