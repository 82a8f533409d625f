"""Two-sided decay in range by one causal call of a fused attention kernel over both triangles.

On Hopper and later GPUs cuDNN's kernels are so much faster than Triton's that computing two
triangles, each folded as causal decay is, beats one kernel that knows about the decay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.las.flash import flash_backward, flash_forward
from longlens.ops.las.operands import dense_rows
from longlens.ops.las.triton.prologue_op import MOST_SEQUENCES, empty_as, strides
from longlens.ops.launching import fused_operator, launch, meta, next_power_of_2

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


def _grid(q: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    B, H, n, D = q.shape
    width = next_power_of_2(D)
    block = max(16, 4096 // width)
    return (-(-n // block), B * H), dict(D=D, WIDTH=width, BLOCK=block)


Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Saved:
    """Attention (B, H, n, D), its log-sum-exp (B, H, n), and what the backward pass keeps."""
    from longlens.ops.las.triton.mirror import fold_both, merge_both

    out, lse, q2, k2, v2 = _outputs(q, k, v)
    q, k, v, alpha = dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(alpha)
    B, H, n, _ = q.shape
    grid, settings = _grid(q)
    half = q2.numel() // 2
    launch(
        fold_both, grid, [q, k, v, q2, k2, v2, alpha],
        [*strides(*map(meta, (q, k, v))), n, H, 0.5 * (n - 1), half], **settings,
    )  # fmt: skip
    out2, lse2 = _causal(q2, k2, v2, scale)
    launch(
        merge_both, grid, [out2.contiguous(), lse2.contiguous(), out, lse],
        [*strides(meta(out)), n, H, half, B * H * n], **settings,
    )  # fmt: skip
    return out, lse, q2, k2, v2


def _outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Saved:
    B, H, n, D = q.shape
    q2, k2, v2 = (q.new_empty(2 * B, H, n, D) for _ in range(3))
    return empty_as(q, [B, H, n, D]), q.new_empty(B, H, n, dtype=torch.float32), q2, k2, v2


def _backward(
    grad: Tensor, saved: list[Tensor], alpha: Tensor, scale: float, alpha_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and α's by row (B, H, n) where asked for (else of length 0).

    `saved` are q, k, v and all that `_forward` returned.
    """
    from longlens.ops.las.triton.mirror import split_both, unfold_both

    dq, dk, dv, rates = _gradients(grad, saved, alpha_gradient)
    q, k, _, out, lse, q2, k2, v2 = saved
    B, H, n, _ = q.shape
    q, k, grad, alpha = dense_rows(q), dense_rows(k), dense_rows(grad), dense_rows(alpha)
    grad2, out2 = torch.empty_like(q2), torch.empty_like(q2)
    lse2 = lse.new_empty(2 * B, H, n)
    grid, settings = _grid(q)
    half = q2.numel() // 2
    launch(
        split_both, grid, [grad, out, lse, grad2, out2, lse2],
        [*strides(*map(meta, (grad, out))), n, H, half, B * H * n], **settings,
    )  # fmt: skip
    found = _causal_backward(grad2, q2, k2, v2, out2, lse2, scale)
    launch(
        unfold_both, grid, [*(t.contiguous() for t in found), q, k, dq, dk, dv, rates, alpha],
        [*strides(*map(meta, (q, k, dq, dk, dv))), n, H, 0.5 * (n - 1), half],
        ALPHA_GRADIENT=alpha_gradient, **settings,
    )  # fmt: skip
    return dq, dk, dv, rates


def _gradients(
    grad: Tensor, saved: list[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (empty_as(t, list(t.shape)) for t in saved[:3])
    return dq, dk, dv, grad.new_empty(saved[4].shape if rest[-1] else 0, dtype=torch.float32)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, alpha, ctx.scale = inputs
    ctx.alpha_gradient = alpha.requires_grad
    ctx.save_for_backward(q, k, v, *output, alpha)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    *saved, alpha = ctx.saved_tensors
    dq, dk, dv, rates = backward(grads[0], saved, alpha, ctx.scale, ctx.alpha_gradient)
    d_alpha = rates.sum((0, 2)).to(alpha.dtype) if ctx.alpha_gradient else None
    return dq, dk, dv, d_alpha, None


las_mirrored, _apply = fused_operator(
    "las_mirrored", _forward, _backward, like=(_outputs, _gradients), setup=_setup,
    differentiate=_differentiate, outputs=1,
)  # fmt: skip


@register_flop_formula(torch.ops.longlens.las_mirrored)
def _(q: list[int], *_: Any, **__: Any) -> int:
    """What one two-sided softmax takes; the two triangles here are twice as much by that count."""
    return 4 * math.prod(q[:3]) * q[2] * q[3]


@register_flop_formula(torch.ops.longlens.las_mirrored_backward)
def _(_: Any, saved: Any, *__: Any, **___: Any) -> int:
    q: list[int] = saved[0]
    return 10 * math.prod(q[:3]) * q[2] * q[3]


def mirrored_attention(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, scale: float) -> Tensor:
    """Two-sided LaS attention over pooled values, all of shape (B, H, n, D), with α·n in range."""
    out: Tensor = _apply(q, k, v, alpha, scale)[0]
    return out
