"""Causal attention with a number per key added to its scores, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from longlens.ops.las.flash import flash_backward, flash_forward


class _Biased(torch.autograd.Function):
    """The forward pass takes the numbers as the operator's bias, which costs nothing.

    The operator has no gradient of a bias, so the backward pass takes them as a column of the keys
    that meets ones in the queries.
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
        D = q.shape[3]
        wide = -(-(D + 1) // 4) * 4  # what the products of matrices on a CPU take without a rest
        q, k, v, out, grad = (F.pad(t, (0, wide - D)) for t in (q, k, v, out, grad))
        q[..., D] = 1.0
        k[..., D] = bias / ctx.scale
        dq, dk, dv = flash_backward(grad, q, k, v, out, lse, True, None, ctx.scale)
        d_bias = (dk[..., D].double() / ctx.scale).to(bias.dtype)
        for dim in range(2):
            if bias.shape[dim] == 1 and d_bias.shape[dim] > 1:
                d_bias = d_bias.sum(dim, keepdim=True)
        return dq[..., :D], dk[..., :D], dv[..., :D], d_bias, None


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """q, k, v (B, H, n, D), bias (B or 1, H or 1, n) -> (B, H, n, D)."""
    out: Tensor = _Biased.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return out
