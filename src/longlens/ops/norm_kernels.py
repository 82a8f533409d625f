"""Triton kernels of batch normalisation: sums over the rows of (N, D) in one pass over memory.

Every program takes tiles of BR rows in turn and writes one row of partial results, so that sums are
added up in a fixed order: the same result every time.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

COUNTS = ["rows", "tiles"]  # not worth a compilation of their own where divisible by 16


@triton.jit(do_not_specialize=COUNTS)
def moments_kernel(X, REAL, COUNT, MEAN, SQUARE, rows, tiles, D: tl.constexpr, BD: tl.constexpr,
                   BR: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Count, mean and sum of squares around it, of this program's rows.

    Sums are of differences from the first row that a place of the tile sees: squares of values far
    from zero would cancel.
    """
    program = tl.program_id(0)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = column < D
    count = tl.zeros((BR,), tl.float32)
    pivot = tl.zeros((BR, BD), tl.float32)
    plain = tl.zeros((BR, BD), tl.float32)
    square = tl.zeros((BR, BD), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = (program * tiles + tile) * BR + tl.arange(0, BR)
        there = row < rows
        if MASKED:
            there = there & (tl.load(REAL + row, mask=there, other=0) != 0)
        seen = there[:, None] & inside[None, :]
        x = tl.load(X + row[:, None].to(tl.int64) * D + column[None, :], mask=seen, other=0.0)
        x = x.to(tl.float32)
        pivot = tl.where((there & (count == 0.0))[:, None], x, pivot)
        apart = tl.where(seen, x - pivot, 0.0)
        plain += apart
        square += apart * apart
        count += there.to(tl.float32)
    own = plain / tl.maximum(count, 1.0)[:, None]
    square = tl.maximum(square - plain * own, 0.0)
    mean = pivot + own
    total = tl.sum(count, 0)
    joint = tl.sum(mean * count[:, None], 0) / tl.maximum(total, 1.0)
    apart = mean - joint[None, :]
    square += apart * apart * count[:, None]
    tl.store(COUNT + program, total)
    tl.store(MEAN + program * D + column, joint, mask=inside)
    tl.store(SQUARE + program * D + column, tl.sum(square, 0), mask=inside)


@triton.jit(do_not_specialize=["programs"])
def join_moments_kernel(COUNT, MEAN, SQUARE, OUT, programs, D: tl.constexpr, BD: tl.constexpr,
                        BP: tl.constexpr):  # fmt: skip
    """Mean, variance and count (in every column) of everything, from what the programs found."""
    column = tl.program_id(0) * BD + tl.arange(0, BD)
    inside = column < D
    total = 0.0
    mean = tl.zeros((BD,), tl.float32)
    for first in range(0, programs, BP):
        p = first + tl.arange(0, BP)
        count = tl.load(COUNT + p, mask=p < programs, other=0.0)
        seen = (p < programs)[:, None] & inside[None, :]
        part = tl.load(MEAN + p[:, None] * D + column[None, :], mask=seen, other=0.0)
        total += tl.sum(count, 0)
        mean += tl.sum(part * count[:, None], 0)
    total = tl.maximum(total, 1.0)
    mean /= total
    square = tl.zeros((BD,), tl.float32)
    for first in range(0, programs, BP):
        p = first + tl.arange(0, BP)
        count = tl.load(COUNT + p, mask=p < programs, other=0.0)
        seen = (p < programs)[:, None] & inside[None, :]
        at = p[:, None] * D + column[None, :]
        apart = tl.load(MEAN + at, mask=seen, other=0.0) - mean[None, :]
        own = tl.load(SQUARE + at, mask=seen, other=0.0)
        square += tl.sum(own + apart * apart * count[:, None], 0)
    tl.store(OUT + column, mean, mask=inside)
    tl.store(OUT + D + column, square / total, mask=inside)
    tl.store(OUT + 2 * D + column, total, mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def scaled_sums_kernel(GRAD, X, MEAN, RATE, PART, rows, tiles, D: tl.constexpr, BD: tl.constexpr,
                       BR: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Sums over rows of the gradient, and of the gradient times the standardised input."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = column < D
    mean = tl.load(MEAN + column, mask=inside, other=0.0)
    rate = tl.load(RATE + column, mask=inside, other=0.0)
    plain = tl.zeros((BR, BD), tl.float32)
    scaled = tl.zeros((BR, BD), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = (program * tiles + tile) * BR + tl.arange(0, BR)
        seen = (row < rows)[:, None] & inside[None, :]
        at = row[:, None].to(tl.int64) * D + column[None, :]
        grad = tl.load(GRAD + at, mask=seen, other=0.0).to(tl.float32)
        x = tl.load(X + at, mask=seen, other=0.0).to(tl.float32)
        plain += grad
        scaled += grad * ((x - mean[None, :]) * rate[None, :])
    tl.store(PART + program * D + column, tl.sum(plain, 0), mask=inside)
    tl.store(PART + (programs + program) * D + column, tl.sum(scaled, 0), mask=inside)


@triton.jit(do_not_specialize=["programs"])
def join_sums_kernel(PART, OUT, programs, D: tl.constexpr, BD: tl.constexpr, BP: tl.constexpr):
    """PART (2, programs, D) -> OUT (2, D)."""
    which = tl.program_id(1)
    column = tl.program_id(0) * BD + tl.arange(0, BD)
    inside = column < D
    total = tl.zeros((BD,), tl.float32)
    for first in range(0, programs, BP):
        p = first + tl.arange(0, BP)
        seen = (p < programs)[:, None] & inside[None, :]
        at = (which * programs + p)[:, None] * D + column[None, :]
        total += tl.sum(tl.load(PART + at, mask=seen, other=0.0), 0)
    tl.store(OUT + which * D + column, total, mask=inside)
