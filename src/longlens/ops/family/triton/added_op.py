"""The kernels of `added` as a PyTorch operator, with gradients of q, k, v and the levels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.las.triton.attention_op import (
    FLOAT32_BLOCKS,
    HALF_BLOCKS,
    NARROW,
    NARROW_BLOCKS,
    Blocks,
)
from longlens.ops.las.triton.prologue_op import empty_as
from longlens.ops.launching import fused_operator, launch, next_power_of_2

# By width up to and kernel, as measured for the kernels of LaS; not yet compared for these.
BLOCKS = HALF_BLOCKS | {NARROW: NARROW_BLOCKS}


def _blocks(kernel: str, q: Tensor, v: Tensor) -> Blocks:
    table = FLOAT32_BLOCKS if q.dtype == torch.float32 else BLOCKS
    width = max(q.shape[3], v.shape[3])
    return next(table[limit] for limit in table if width <= limit)[kernel]


def _strides(*tensors: Tensor) -> list[int]:
    return [n for t in tensors for n in t.stride()[:3]]


def _numbers(
    q: Tensor, k: Tensor, level: Tensor, mask: Tensor | None, scale: float, heads: int
) -> list[int | float]:
    level_b = 0 if level.shape[0] == 1 else 2 * level.shape[1] * level.shape[2]
    mask_b = 0 if mask is None else mask.shape[1]
    return [level_b, mask_b, q.shape[2], k.shape[2], scale, heads]


def _settings(q: Tensor, v: Tensor, mask: Tensor | None, blocks: Blocks) -> dict[str, Any]:
    """What all kernels take by name: the numbers that they are compiled for."""
    D, DV = q.shape[3], v.shape[3]
    return dict(
        D=D, DV=DV, BD=max(16, next_power_of_2(D)), BDV=max(16, next_power_of_2(DV)),
        BM=blocks.queries, BN=blocks.keys, HAS_MASK=mask is not None,
        # float32 stays float32: three TF32 products make up one
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def _split(level: Tensor) -> Tensor:
    """Levels in units of log 2, (B or 1, H, 2, S): rounded to float32, and what that leaves."""
    exact = level * math.log2(math.e)
    high = exact.float()
    return torch.stack([high, (exact - high).float()], dim=2)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, level: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention (B, Hq, L, Dv) and its log-sum-exp (B, Hq, L), float32.

    The queries are the last of the keys' positions; level (B or 1, Hq, S) float64, mask (B, S).
    """
    from longlens.ops.family.triton.added import added_forward

    out, lse = _outputs(q, k, v)
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    sides = dense_sides(_split(level), mask)
    blocks, heads = _blocks("forward", q, v), q.shape[1]
    launch(
        added_forward, (-(-q.shape[2] // blocks.queries), q.shape[0] * heads),
        [q, k, v, out, lse, *sides],
        [*_strides(q, k, v, out), *_numbers(q, k, level, mask, scale, heads), heads // k.shape[1]],
        **_settings(q, v, mask, blocks),
    )  # fmt: skip
    return out, lse


def _outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    out = empty_as(q, [*q.shape[:3], v.shape[3]])
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], level: Tensor, mask: Tensor | None,
    scale: float, level_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and of the levels (B, Hq, S) where asked for (else of length 0).

    `saved` are q, k, v and both outputs.
    """
    from longlens.ops.family.triton.added import added_key_gradient, added_query_gradient
    from longlens.ops.las.triton.backward import delta_kernel

    dq, dk, dv, d_level = _gradients(grad, grad_lse, saved, level_gradient)
    *tensors, out, lse = saved
    q, k, v, grad = (dense_rows(t) for t in (*tensors, grad))
    sides = dense_sides(_split(level), mask)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    (B, heads, rows, _), kv_heads = q.shape, k.shape[1]
    delta, lse_2 = torch.empty_like(lse), torch.empty_like(lse)
    launch(
        delta_kernel, (-(-rows // 64), B * heads), [out, grad, lse, grad_lse, delta, lse_2],
        [*_strides(out, grad), rows, heads],
        DV=v.shape[3], BDV=max(16, next_power_of_2(v.shape[3])), BM=64,
        HAS_LSE_GRADIENT=grad_lse is not None,
    )  # fmt: skip
    blocks = _blocks("query", q, v)
    launch(
        added_query_gradient, (-(-rows // blocks.queries), B * heads),
        [q, k, v, grad, lse_2, delta, dq, d_level, *sides],
        [
            *_strides(q, k, v, grad, dq), *_numbers(q, k, level, mask, scale, heads),
            heads // kv_heads,
        ],
        SUMS=level_gradient, **_settings(q, v, mask, blocks),
    )  # fmt: skip
    blocks = _blocks("key", q, v)
    launch(
        added_key_gradient, (-(-k.shape[2] // blocks.keys), B * kv_heads),
        [q, k, v, grad, lse_2, delta, dk, dv, d_level, *sides],
        [*_strides(q, k, v, grad, dk, dv), *_numbers(q, k, level, mask, scale, kv_heads)],
        GROUP=heads // kv_heads, SUMS=level_gradient, **_settings(q, v, mask, blocks),
    )  # fmt: skip
    return dq, dk, dv, d_level


def _gradients(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, *_ = saved
    shape = [*q.shape[:2], k.shape[2]] if rest[-1] else [0]
    d_level = q.new_empty(shape, dtype=torch.float32)
    dq, dk, dv = (empty_as(t, list(t.shape)) for t in (q, k, v))
    return dq, dk, dv, d_level


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, level, mask, ctx.scale = inputs
    ctx.level_gradient = level.requires_grad
    ctx.save_for_backward(q, k, v, *output, level, mask)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    *saved, level, mask = ctx.saved_tensors
    grad, grad_lse = grads
    if grad is None:  # only the log-sum-exp was used
        grad = torch.zeros_like(saved[3])
    dq, dk, dv, d_level = backward(
        grad, grad_lse, saved, level, mask, ctx.scale, ctx.level_gradient
    )
    if not ctx.level_gradient:
        return dq, dk, dv, None, None, None
    if level.shape[0] < d_level.shape[0]:
        d_level = d_level.sum(0, keepdim=True)
    return dq, dk, dv, d_level.to(level.dtype), None, None


added_kernel, _apply = fused_operator(
    "added_kernel", _forward, _backward, like=(_outputs, _gradients), setup=_setup,
    differentiate=_differentiate, outputs=2,
)  # fmt: skip


def _products(q: list[int], k: list[int], v: list[int]) -> int:
    """As torch counts attention: the whole square, causal or not."""
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


@register_flop_formula(torch.ops.longlens.added_kernel)
def _(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _products(q, k, v)


@register_flop_formula(torch.ops.longlens.added_kernel_backward)
def _(_g: Any, _l: Any, saved: Any, *_: Any, **__: Any) -> int:
    return _products(*saved[:3]) * 5 // 2


def added_attention(
    q: Tensor, k: Tensor, v: Tensor, level: Tensor, *, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Causal attention with A_i - A_j added to scores, (B, Hq, L, Dv), and its log-sum-exp.

    level A (B or 1, Hq, S) float64; the queries are the last of the S positions; mask (B, S).
    """
    out, lse = _apply(q, k, v, level, mask, scale)
    return out, lse
