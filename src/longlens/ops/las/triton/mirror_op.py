"""Two-sided decay in range by one causal call of a fused attention kernel over both triangles.

On Hopper and later GPUs cuDNN's kernels are so much faster than Triton's that computing two
triangles, each folded as causal decay is, beats one kernel that knows about the decay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.las.flash import flash_backward, flash_forward
from longlens.ops.las.operands import dense_rows
from longlens.ops.las.triton.prologue_op import MOST_SEQUENCES, empty_as, strides
from longlens.ops.launching import next_power_of_2, on_device, watched

aten = torch.ops.aten
WIDTHS = (64, 128)  # narrower heads: one Triton kernel is as fast; wider: cuDNN has no backward
SHORTEST = 128  # a few tiles at least; cuDNN refuses a single position


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether this is the fastest way for tensors of such a kind (in range, square, unmasked)."""
    D = query.shape[3]
    return (
        query.is_cuda
        and query.dtype == torch.bfloat16
        and value.shape[3] == D
        and WIDTHS[0] <= D <= WIDTHS[1]
        and D % 8 == 0
        and query.shape[2] >= SHORTEST
        and query.shape[0] <= MOST_SEQUENCES // 2
        and torch.cuda.get_device_properties(query.device).major >= 9
        and not torch.are_deterministic_algorithms_enabled()  # cuDNN's backward uses atomics
    )


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention and its log-sum-exp, (N, H, n, 1) or (N, H, n)."""
    if not q.is_cuda:  # the interpreter's tests
        return flash_forward(q, k, v, True, None, scale)
    found = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, True, False, scale=scale
    )
    return found[0], found[1]


def _causal_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    if not q.is_cuda:
        return flash_backward(grad, q, k, v, out, lse, True, None, scale)
    n = q.shape[2]
    seed = torch.zeros((), dtype=torch.int64, device=q.device)  # only dropout would read it
    dq, dk, dv = aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, lse[..., None], seed, seed, None, None, None, n, n, 0.0, True,
        scale=scale,
    )  # fmt: skip
    return dq, dk, dv


def _launch(q: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    B, H, n, D = q.shape
    width = next_power_of_2(D)
    block = max(16, 4096 // width)
    return (-(-n // block), B * H), dict(D=D, WIDTH=width, BLOCK=block)


Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Saved:
    """Attention (B, H, n, D), its log-sum-exp (B, H, n), and what the backward pass keeps."""
    from longlens.ops.las.triton.mirror import fold_both, merge_both

    B, H, n, D = q.shape
    out = empty_as(q, [B, H, n, D])
    lse = q.new_empty(B, H, n, dtype=torch.float32)
    q, k, v, alpha = dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(alpha)
    q2, k2, v2 = (q.new_empty(2 * B, H, n, D) for _ in range(3))
    grid, settings = _launch(q)
    half = q2.numel() // 2
    with on_device(q):
        fold_both[grid](
            q, k, v, q2, k2, v2, alpha, *strides(q, k, v), n, H, 0.5 * (n - 1), half, **settings
        )
        out2, lse2 = _causal(q2, k2, v2, scale)
        merge_both[grid](
            out2.contiguous(), lse2.contiguous(), out, lse, *strides(out), n, H, half, B * H * n,
            **settings,
        )  # fmt: skip
    return out, lse, q2, k2, v2


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, out: Tensor, lse: Tensor,
    q2: Tensor, k2: Tensor, v2: Tensor, scale: float,
    alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and α's by row (B, H, n) where asked for (else of length 0)."""
    from longlens.ops.las.triton.mirror import split_both, unfold_both

    B, H, n, D = q.shape
    dq, dk, dv = (empty_as(t, [B, H, n, D]) for t in (q, k, v))
    rates = q.new_empty(lse.shape if alpha_gradient else 0, dtype=torch.float32)
    q, k, grad, alpha = dense_rows(q), dense_rows(k), dense_rows(grad), dense_rows(alpha)
    grad2, out2 = torch.empty_like(q2), torch.empty_like(q2)
    lse2 = lse.new_empty(2 * B, H, n)
    grid, settings = _launch(q)
    half = q2.numel() // 2
    with on_device(q):
        split_both[grid](
            grad, out, lse, grad2, out2, lse2, *strides(grad, out), n, H, half, B * H * n,
            **settings,
        )  # fmt: skip
        found = _causal_backward(grad2, q2, k2, v2, out2, lse2, scale)
        unfold_both[grid](
            *(t.contiguous() for t in found), q, k, dq, dk, dv, rates, alpha,
            *strides(q, k, dq, dk, dv), n, H, 0.5 * (n - 1), half, ALPHA_GRADIENT=alpha_gradient,
            **settings,
        )  # fmt: skip
    return dq, dk, dv, rates


@torch.library.custom_op("longlens::las_mirrored", mutates_args=())
def las_mirrored(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Saved:
    """The forward pass as compilers see it."""
    return _forward(q, k, v, alpha, scale)


@las_mirrored.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Saved:
    B, H, n, D = q.shape
    q2, k2, v2 = (q.new_empty(2 * B, H, n, D) for _ in range(3))
    return empty_as(q, [B, H, n, D]), q.new_empty(B, H, n, dtype=torch.float32), q2, k2, v2


@torch.library.custom_op("longlens::las_mirrored_backward", mutates_args=())
def las_mirrored_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, out: Tensor, lse: Tensor,
    q2: Tensor, k2: Tensor, v2: Tensor, scale: float,
    alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The backward pass as compilers see it."""
    return _backward(grad, q, k, v, alpha, out, lse, q2, k2, v2, scale, alpha_gradient)


@las_mirrored_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, out: Tensor, lse: Tensor,
    q2: Tensor, k2: Tensor, v2: Tensor, scale: float,
    alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rates = q.new_empty(lse.shape if alpha_gradient else 0, dtype=torch.float32)
    shape = list(q.shape)
    return empty_as(q, shape), empty_as(k, shape), empty_as(v, shape), rates


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, alpha, ctx.scale = inputs
    ctx.alpha_gradient = alpha.requires_grad
    ctx.save_for_backward(q, k, v, alpha, *output)


def _differentiate(ctx: Any, backward: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    dq, dk, dv, rates = backward(grad, *saved, ctx.scale, ctx.alpha_gradient)
    d_alpha = rates.sum((0, 2)).to(saved[3].dtype) if ctx.alpha_gradient else None
    return dq, dk, dv, d_alpha, None


def _op_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    return _differentiate(ctx, las_mirrored_backward, grad)


las_mirrored.register_autograd(_op_backward, setup_context=_setup)


@register_flop_formula(torch.ops.longlens.las_mirrored)
def _(q: list[int], *_: Any, **__: Any) -> int:
    """What one two-sided softmax takes; the two triangles here are twice as much by that count."""
    return 4 * math.prod(q[:3]) * q[2] * q[3]


@register_flop_formula(torch.ops.longlens.las_mirrored_backward)
def _(_: Any, q: list[int], *__: Any, **___: Any) -> int:
    return 10 * math.prod(q[:3]) * q[2] * q[3]


class _Eager(torch.autograd.Function):
    """The same without the operator's bookkeeping."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        outs = _forward(*inputs)
        _setup(ctx, inputs, outs)
        return outs[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _differentiate(ctx, _backward, grads[0])


def mirrored_attention(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Tensor:
    """Two-sided LaS attention over pooled values, all of shape (B, H, n, D), with α·n in range."""
    if torch.compiler.is_compiling() or watched():
        out: Tensor = las_mirrored(q, k, v, alpha, scale)[0]
    else:
        out = _Eager.apply(q, k, v, alpha, scale)  # type: ignore[no-untyped-call]
    return out
