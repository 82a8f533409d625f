"""Passes around the two triangles of two-sided decay, so that one causal call computes both.

Read from its end, the strict upper triangle is causal again: the mirrored query r = n-2-i sees the
mirrored keys n-1-j <= r. The last query has no key there; its mirrored row n-1 is empty and fills
the square up. Tensors that hold both triangles, (2, B, H, n, D), are contiguous.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.prologue import _load, _store


@triton.jit
def _place(n, heads, BLOCK: tl.constexpr, D: tl.constexpr, both):
    """Batch, head, rows i, and where this head starts in either triangle's half."""
    bh = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    lower = bh * n * D
    return bh // heads, bh % heads, i, lower, lower + both


@triton.jit
def _mirrored_query(i, n):
    """Where a query's row lies in the upper triangle; the last one's fills the empty row."""
    return tl.where(i == n - 1, i, n - 2 - i)


@triton.jit
def fold_both(
    q, k, v, q2, k2, v2, alpha, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, n, heads, centre, both,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scale the rows of q and k for the lower and, mirrored, for the upper triangle; copy v."""
    b, h, i, lower, upper = _place(n, heads, BLOCK, D, both)
    d = tl.arange(0, WIDTH)
    there = i < n
    factor = tl.exp(-tl.load(alpha + h).to(tl.float32) * (i.to(tl.float32) - centre))[:, None]
    x = _load(q + b * q_b + h * q_h, i, q_l, there, d, D, WIDTH)
    _store(q2 + lower, x * factor, i, D, there, d, D, WIDTH)
    mirrored = tl.where((i < n - 1)[:, None], x / factor, 0.0)
    _store(q2 + upper, mirrored, _mirrored_query(i, n), D, there, d, D, WIDTH)
    x = _load(k + b * k_b + h * k_h, i, k_l, there, d, D, WIDTH)
    _store(k2 + lower, x / factor, i, D, there, d, D, WIDTH)
    _store(k2 + upper, x * factor, n - 1 - i, D, there, d, D, WIDTH)
    x = _load(v + b * v_b + h * v_h, i, v_l, there, d, D, WIDTH)
    _store(v2 + lower, x, i, D, there, d, D, WIDTH)
    _store(v2 + upper, x, n - 1 - i, D, there, d, D, WIDTH)


@triton.jit
def unfold_both(
    dq2, dk2, dv2, q, k, dq, dk, dv, rates, alpha, q_b, q_h, q_l, k_b, k_h, k_l, dq_b, dq_h, dq_l,
    dk_b, dk_h, dk_l, dv_b, dv_h, dv_l, n, heads, centre, both, D: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ALPHA_GRADIENT: tl.constexpr,
):  # fmt: skip
    """The adjoint of `fold_both`; `rates` (B·H, n) takes each row's share of α's gradient."""
    b, h, i, lower, upper = _place(n, heads, BLOCK, D, both)
    d = tl.arange(0, WIDTH)
    there = i < n
    distance = i.to(tl.float32) - centre
    factor = tl.exp(-tl.load(alpha + h).to(tl.float32) * distance)[:, None]
    low = _load(dq2 + lower, i, D, there, d, D, WIDTH) * factor
    up = _load(dq2 + upper, n - 2 - i, D, i < n - 1, d, D, WIDTH) / factor
    _store(dq + b * dq_b + h * dq_h, low + up, i, dq_l, there, d, D, WIDTH)
    rate = tl.zeros_like(distance)
    if ALPHA_GRADIENT:
        x = _load(q + b * q_b + h * q_h, i, q_l, there, d, D, WIDTH)
        rate += distance * tl.sum((up - low) * x, 1)
    low = _load(dk2 + lower, i, D, there, d, D, WIDTH) / factor
    up = _load(dk2 + upper, n - 1 - i, D, there, d, D, WIDTH) * factor
    _store(dk + b * dk_b + h * dk_h, low + up, i, dk_l, there, d, D, WIDTH)
    if ALPHA_GRADIENT:
        x = _load(k + b * k_b + h * k_h, i, k_l, there, d, D, WIDTH)
        rate += distance * tl.sum((low - up) * x, 1)
        tl.store(rates + tl.program_id(1).to(tl.int64) * n + i, rate, mask=there)
    low = _load(dv2 + lower, i, D, there, d, D, WIDTH)
    up = _load(dv2 + upper, n - 1 - i, D, there, d, D, WIDTH)
    _store(dv + b * dv_b + h * dv_h, low + up, i, dv_l, there, d, D, WIDTH)


@triton.jit
def merge_both(
    out2, lse2, out, lse, o_b, o_h, o_l, n, heads, both, rows, D: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One softmax from the two triangles', by their log-sum-exp; `rows` = B·H·n."""
    b, h, i, lower, upper = _place(n, heads, BLOCK, D, both)
    d = tl.arange(0, WIDTH)
    there = i < n
    row = tl.program_id(1).to(tl.int64) * n
    low = tl.load(lse2 + row + i, mask=there, other=0.0)
    up = tl.load(lse2 + rows + row + n - 2 - i, mask=i < n - 1, other=float("-inf"))
    top = tl.maximum(low, up)
    merged = top + tl.log(tl.exp(low - top) + tl.exp(up - top))
    x = _load(out2 + lower, i, D, there, d, D, WIDTH) * tl.exp(low - merged)[:, None]
    x += _load(out2 + upper, n - 2 - i, D, i < n - 1, d, D, WIDTH) * tl.exp(up - merged)[:, None]
    _store(out + b * o_b + h * o_h, x, i, o_l, there, d, D, WIDTH)
    tl.store(lse + row + i, merged, mask=there)


@triton.jit
def split_both(
    grad, out, lse, grad2, out2, lse2, g_b, g_h, g_l, o_b, o_h, o_l, n, heads, both, rows,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Merged results and their gradient for both triangles; zeros in the empty row."""
    b, h, i, lower, upper = _place(n, heads, BLOCK, D, both)
    d = tl.arange(0, WIDTH)
    there = i < n
    mirrored = _mirrored_query(i, n)
    real = (i < n - 1)[:, None]
    x = _load(grad + b * g_b + h * g_h, i, g_l, there, d, D, WIDTH)
    _store(grad2 + lower, x, i, D, there, d, D, WIDTH)
    _store(grad2 + upper, tl.where(real, x, 0.0), mirrored, D, there, d, D, WIDTH)
    x = _load(out + b * o_b + h * o_h, i, o_l, there, d, D, WIDTH)
    _store(out2 + lower, x, i, D, there, d, D, WIDTH)
    _store(out2 + upper, tl.where(real, x, 0.0), mirrored, D, there, d, D, WIDTH)
    row = tl.program_id(1).to(tl.int64) * n
    s = tl.load(lse + row + i, mask=there, other=0.0)
    tl.store(lse2 + row + i, s, mask=there)
    tl.store(lse2 + rows + row + mirrored, tl.where(i < n - 1, s, 0.0), mask=there)
