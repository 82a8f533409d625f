"""Causal attention with a number per key added to its scores, on a CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longlens.ops.las.flash import flash_forward

BLOCK = 256  # queries and keys of a tile
TILE = 4 * BLOCK**2  # numbers of a tile for each thread, of several heads; more leave its cache


class _Biased(torch.autograd.Function):
    """The forward pass takes the numbers as the operator's bias, which costs nothing.

    The operator has no gradient of a bias. A column of the keys has one but widens all products,
    so the backward pass is our own.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        row = bias.to(q.dtype)[:, :, None, :].expand(*q.shape[:2], q.shape[2], k.shape[2])
        out, lse = flash_forward(q, k, v, True, row, scale)
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, bias, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, lse = ctx.saved_tensors
        rows = [t.flatten(0, 1).contiguous() for t in (q, k, v, grad)]
        delta = (grad * out).sum(-1)
        numbers = [t.expand_as(lse).flatten(0, 1).to(q.dtype) for t in (bias, lse, delta)]
        found, d_bias = _gradients(rows, numbers, ctx.scale)
        d_bias = d_bias.view(lse.shape).sum_to_size(bias.shape).to(bias.dtype)
        return *(g.view(q.shape) for g in found), d_bias, None


def _gradients(
    rows: list[Tensor], numbers: list[Tensor], scale: float
) -> tuple[list[Tensor], Tensor]:
    """Gradients of q, k, v (N, n, D) and of the bias (N, n), tile by tile.

    Tiles are of keys by queries, so that one product in five reads one across. What is added to
    rows and columns of a tile comes by further columns of its factors, which a product hardly
    notices. PyTorch's exp2 takes a third of the time of its exp, and far less where it underflows.

    Args:
        rows: q, k, v and the gradient of the output, (N, n, D).
        numbers: the bias, the log-sum-exp, and the products of output and gradient, (N, n).
        scale: of the scores.
    """
    (q, k, v, grad), (bias, lse, delta) = rows, numbers
    base = 1 / math.log(2)
    one = torch.ones_like(lse)
    keys = torch.cat([k, torch.stack([one, bias * base], -1)], -1)
    queries = torch.cat([q * (scale * base), torch.stack([lse * -base, one], -1)], -1).mT
    values, grads = torch.cat([v, one[..., None]], -1), torch.cat([grad, -delta[..., None]], -1).mT
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    d_bias = torch.zeros_like(bias, dtype=torch.float64)
    n = q.shape[1]
    heads = max(1, torch.get_num_threads() * TILE // min(n, BLOCK) ** 2)
    space = q.new_empty(2, heads * min(n, BLOCK) ** 2)
    blocks = [slice(first, min(n, first + BLOCK)) for first in range(0, n, BLOCK)]
    pairs = [(key, query) for number, key in enumerate(blocks) for query in blocks[number:]]
    for first in range(0, len(q), heads):
        h = slice(first, min(len(q), first + heads))
        for key, query in pairs:
            shape = [part.stop - part.start for part in (h, key, query)]
            weight, d_score = (t[: math.prod(shape)].view(shape) for t in space)
            torch.bmm(keys[h, key], queries[h, :, query], out=weight).exp2_()
            if key == query:
                weight.triu_()
            dv[h, key].baddbmm_(weight, grad[h, query])
            torch.bmm(values[h, key], grads[h, :, query], out=d_score).mul_(weight)
            dk[h, key].baddbmm_(d_score, q[h, query], alpha=scale)
            dq[h, query].baddbmm_(d_score.mT, k[h, key], alpha=scale)
            d_bias[h, key] += d_score.sum(2)
    return [dq, dk, dv], d_bias


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """q, k, v (B, H, n, D), bias (B or 1, H or 1, n) -> (B, H, n, D)."""
    out: Tensor = _Biased.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return out
