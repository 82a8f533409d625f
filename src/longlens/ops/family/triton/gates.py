"""A decay per channel folded into queries and keys: q·exp(M - c), k·exp(c - M), and its adjoint.

M is the running sum of logarithms of gates and c half of its last value. The sum runs in two
steps, so that programs need not wait for each other: sums of blocks, then inside each block. The
gradient of a gate is the sum of M's from its position on, again in two steps. Arithmetic is in
float32 and rounds once.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from longlens.ops.las.triton.forward import load_rows, place

COUNTS = ["S", "heads", "blocks"]


@triton.jit
def _place(heads, BLOCK: tl.constexpr, BD: tl.constexpr):
    """Head, sequence, rows and columns of a program."""
    h, b = place(tl.program_id(1), heads)
    return h, b, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BD)


@triton.jit
def _store(base, x, i, stride, S, d, OUT: tl.constexpr):
    at = base + i.to(tl.int64)[:, None] * stride + d[None, :]
    tl.store(at, x.to(base.dtype.element_ty), mask=(i < S)[:, None] & (d < OUT)[None, :])


@triton.jit
def _add_blocks(sums, blocks, first, stop, d, D: tl.constexpr, BD: tl.constexpr):
    """The sum over some blocks of this program's head: (BD,)."""
    own = sums + tl.program_id(1).to(tl.int64) * blocks * D
    total = tl.zeros((BD,), tl.float32)
    for n in range(first, stop, 32):
        block = n + tl.arange(0, 32)
        total += tl.sum(load_rows(own, block, D, stop, d, D, BD, True), 0)
    return total


@triton.jit
def _levels(gate, sums, blocks, i, g_l, S, d, D: tl.constexpr, BD: tl.constexpr):
    """M - c of rows i, (BLOCK, BD)."""
    before = _add_blocks(sums, blocks, 0, tl.program_id(0), d, D, BD)
    rest = _add_blocks(sums, blocks, tl.program_id(0), blocks, d, D, BD)
    own = tl.cumsum(load_rows(gate, i, g_l, S, d, D, BD, True).to(tl.float32), 0)
    return own + 0.5 * (before - rest)[None, :]


@triton.jit(do_not_specialize=COUNTS)
def gate_sums(
    gate, sums, g_b, g_h, g_l, S, heads, blocks,
    D: tl.constexpr, BD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of each block of rows, (B, H, blocks, D)."""
    h, b, i, d = _place(heads, BLOCK, BD)
    rows = load_rows(gate + b * g_b + h * g_h, i, g_l, S, d, D, BD, True).to(tl.float32)
    at = (tl.program_id(1).to(tl.int64) * blocks + tl.program_id(0)) * D + d
    tl.store(sums + at, tl.sum(rows, 0), mask=d < D)


@triton.jit(do_not_specialize=COUNTS)
def gate_fold(
    q, k, gate, q_out, k_out, sums,
    q_b, q_h, q_l, k_b, k_h, k_l, g_b, g_h, g_l, qo_b, qo_h, qo_l, ko_b, ko_h, ko_l,
    S, heads, blocks,
    D: tl.constexpr, BD: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scaled queries and keys, with zeros from column D to OUT."""
    h, b, i, d = _place(heads, BLOCK, BD)
    m = _levels(gate + b * g_b + h * g_h, sums, blocks, i, g_l, S, d, D, BD)
    rows = load_rows(q + b * q_b + h * q_h, i, q_l, S, d, D, BD, True).to(tl.float32)
    _store(q_out + b * qo_b + h * qo_h, rows * tl.exp(m), i, qo_l, S, d, OUT)
    rows = load_rows(k + b * k_b + h * k_h, i, k_l, S, d, D, BD, True).to(tl.float32)
    _store(k_out + b * ko_b + h * ko_h, rows * tl.exp(-m), i, ko_l, S, d, OUT)


@triton.jit(do_not_specialize=COUNTS)
def gate_unfold(
    dq_out, dk_out, q, k, gate, dq, dk, d_gate, sums, d_sums,
    qo_b, qo_h, qo_l, ko_b, ko_h, ko_l, q_b, q_h, q_l, k_b, k_h, k_l, g_b, g_h, g_l,
    dq_b, dq_h, dq_l, dk_b, dk_h, dk_l, dg_b, dg_h, dg_l, S, heads, blocks,
    D: tl.constexpr, BD: tl.constexpr, BLOCK: tl.constexpr, GATE_GRADIENT: tl.constexpr,
):  # fmt: skip
    """dq, dk, and for the gates the sums of M's gradient from each row to the end of its block."""
    h, b, i, d = _place(heads, BLOCK, BD)
    m = _levels(gate + b * g_b + h * g_h, sums, blocks, i, g_l, S, d, D, BD)
    own = load_rows(dq_out + b * qo_b + h * qo_h, i, qo_l, S, d, D, BD, True).to(tl.float32)
    own *= tl.exp(m)
    _store(dq + b * dq_b + h * dq_h, own, i, dq_l, S, d, D)
    if GATE_GRADIENT:
        rows = load_rows(q + b * q_b + h * q_h, i, q_l, S, d, D, BD, True).to(tl.float32)
        change = rows * own
    own = load_rows(dk_out + b * ko_b + h * ko_h, i, ko_l, S, d, D, BD, True).to(tl.float32)
    own *= tl.exp(-m)
    _store(dk + b * dk_b + h * dk_h, own, i, dk_l, S, d, D)
    if GATE_GRADIENT:
        rows = load_rows(k + b * k_b + h * k_h, i, k_l, S, d, D, BD, True).to(tl.float32)
        change -= rows * own
        total = tl.sum(change, 0)
        at = (tl.program_id(1).to(tl.int64) * blocks + tl.program_id(0)) * D + d
        tl.store(d_sums + at, total, mask=d < D)
        later = total[None, :] - tl.cumsum(change, 0) + change
        _store(d_gate + b * dg_b + h * dg_h, later, i, dg_l, S, d, D)


@triton.jit(do_not_specialize=COUNTS)
def gate_finish(
    d_gate, d_sums, g_b, g_h, g_l, S, heads, blocks,
    D: tl.constexpr, BD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the sums of all later blocks to each row, in place."""
    h, b, i, d = _place(heads, BLOCK, BD)
    d_gate += b * g_b + h * g_h
    later = _add_blocks(d_sums, blocks, tl.program_id(0) + 1, blocks, d, D, BD)
    rows = load_rows(d_gate, i, g_l, S, d, D, BD, True)
    _store(d_gate, rows + later[None, :], i, g_l, S, d, D)
