"""Triton kernel of the perceptron: a matrix product that ends with GELU, or with its derivative.

A matrix product of this kind writes far more than it reads and waits for memory; what is done to
its result before it is written costs next to nothing, a pass of its own as much as the product.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import math

import triton
import triton.language as tl

# tanh's form of GELU is h · σ(a (h + c h³)), and σ(z) = 1 / (1 + 2^(-z log2 e)).
A = tl.constexpr(2 * math.sqrt(2 / math.pi))
C = tl.constexpr(0.044715)
A_LOG2_E = tl.constexpr(2 * math.sqrt(2 / math.pi) * math.log2(math.e))


@triton.jit(do_not_specialize=["rows"])
def product_gelu_kernel(X, W, BIAS, H, OUT, SUMS, rows, N: tl.constexpr, K: tl.constexpr,
                        TRANSPOSED: tl.constexpr, BACKWARD: tl.constexpr, BM: tl.constexpr,
                        BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """One tile of P = X W: X (rows, K), W (K, N), stored as (N, K) where TRANSPOSED.

    Forward: H = P + BIAS, OUT = GELU(H). Backward: OUT = P · GELU'(H), and the tile's sums over
    rows go to SUMS (tiles of rows, N). Neighbouring programs share their rows of X.
    """
    program = tl.program_id(0)
    across: tl.constexpr = N // BN
    tile = program // across
    row = tile * BM + tl.arange(0, BM)
    column = (program % across) * BN + tl.arange(0, BN)
    inside = (row < rows)[:, None]
    k = tl.arange(0, BK)
    x_at = X + row[:, None].to(tl.int64) * K + k[None, :]
    if TRANSPOSED:
        w_at = W + k[:, None] + column[None, :] * K
    else:
        w_at = W + k[:, None] * N + column[None, :]
    product = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, K, BK, num_stages=STAGES):
        x = tl.load(x_at, mask=inside, other=0.0)
        product = tl.dot(x, tl.load(w_at), product, input_precision="ieee")
        x_at += BK
        w_at += BK if TRANSPOSED else BK * N
    at = row[:, None].to(tl.int64) * N + column[None, :]
    if BACKWARD:
        h = tl.load(H + at, mask=inside, other=0.0).to(tl.float32)
    else:
        rounded = (product + tl.load(BIAS + column)[None, :].to(tl.float32)).to(H.dtype.element_ty)
        tl.store(H + at, rounded, mask=inside)
        h = rounded.to(tl.float32)
    square = h * h
    gate = 1.0 / (1.0 + tl.exp2(-h * A_LOG2_E * (square * C + 1.0)))
    if BACKWARD:
        slope = gate + h * gate * (1.0 - gate) * (square * (3 * C) + 1.0) * A
        out = product * slope
        tl.store(SUMS + tile * N + column, tl.sum(out, 0))
    else:
        out = h * gate
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=inside)
