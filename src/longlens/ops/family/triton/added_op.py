"""The kernels of `added` and `levels` as a PyTorch operator, with all gradients."""

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
    Blocks,
)
from longlens.ops.las.triton.prologue_op import empty_as
from longlens.ops.launching import fused_operator, launch, next_power_of_2

LEVELS = 1024  # positions that the running sum of a head takes at a time
# From so many keys on, those whose weights are below 2^-BITS are not visited, by groups of GROUP:
# so few bits that no float32 sum shows them, whatever decides which groups are left out.
SHORTEST, BITS, GROUP = 2048, 64.0, 64
# The fastest of six settings or more on an H200, by width up to and kernel; as LaS's beyond 64.
BLOCKS = HALF_BLOCKS | {
    32: dict(forward=Blocks(64, 128, 4, 3), query=Blocks(64, 32, 4, 2), key=Blocks(128, 64, 4, 2)),
    64: dict(forward=Blocks(128, 64, 4, 3), query=Blocks(64, 32, 4, 3), key=Blocks(64, 64, 4, 3)),
}


def _blocks(kernel: str, q: Tensor, v: Tensor) -> Blocks:
    table = FLOAT32_BLOCKS if q.dtype == torch.float32 else BLOCKS
    width = max(q.shape[3], v.shape[3])
    return next(table[limit] for limit in table if width <= limit)[kernel]


def _strides(*tensors: Tensor) -> list[int]:
    return [n for t in tensors for n in t.stride()[:3]]


def _numbers(
    q: Tensor, k: Tensor, level: Tensor, mask: Tensor | None, scale: float, heads: int
) -> list[int | float]:
    level_b = 0 if level.shape[0] == 1 else level.stride(0)
    mask_b = 0 if mask is None else mask.shape[1]
    return [level_b, mask_b, q.shape[2], k.shape[2], scale, heads]


def _settings(
    q: Tensor, v: Tensor, mask: Tensor | None, power: Tensor | None, blocks: Blocks
) -> dict[str, Any]:
    """What all kernels take by name: the numbers that they are compiled for."""
    D, DV = q.shape[3], v.shape[3]
    return dict(
        D=D, DV=DV, BD=max(16, next_power_of_2(D)), BDV=max(16, next_power_of_2(DV)),
        BM=blocks.queries, BN=blocks.keys, HAS_MASK=mask is not None, POWER=power is not None,
        # float32 stays float32: three TF32 products make up one
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def _forward(
    q: Tensor, k: Tensor, v: Tensor, forget: Tensor | None, slopes: Tensor | None,
    power: Tensor | None, mask: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention (B, Hq, L, Dv), its log-sum-exp (B, Hq, L), and levels and reach for backward.

    The queries are the last of the keys' positions; forget (B, Hq, S), slopes and power (Hq,), mask
    (B, S).
    """
    from longlens.ops.family.triton.added import added_forward
    from longlens.ops.family.triton.levels import level_sums

    out, lse, level, reach = _outputs(q, k, v, forget, slopes, power, mask)
    launch(
        level_sums, (level.shape[0] * level.shape[1],),
        [level if forget is None else forget, *dense_sides(slopes), level],
        [*_strides(level if forget is None else forget), k.shape[2], q.shape[1]],
        FORGETS=forget is not None, SLOPES=slopes is not None, BLOCK=LEVELS,
    )  # fmt: skip
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    if reach.numel():
        _find_reach(q, k, level, reach, scale)
    blocks, heads = _blocks("forward", q, v), q.shape[1]
    launch(
        added_forward, (-(-q.shape[2] // blocks.queries), q.shape[0] * heads),
        [q, k, v, out, lse, level, *dense_sides(mask, power), _parted(reach, q)[0]],
        [*_strides(q, k, v, out), *_numbers(q, k, level, mask, scale, heads), heads // k.shape[1]],
        **_settings(q, v, mask, power, blocks), GROUP=GROUP if reach.numel() else 0,
    )  # fmt: skip
    return out, lse, level, reach


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, forget: Tensor | None, slopes: Any, power: Any, mask: Any,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    out = empty_as(q, [*q.shape[:3], v.shape[3]])
    (B, heads, L), S = q.shape[:3], k.shape[2]
    lse = q.new_empty(B, heads, L, dtype=torch.float32)
    level = lse.new_empty(1 if forget is None else B, heads, 2, S)
    groups = -(-L // GROUP) - (-S // GROUP) if finds_reach(S, mask, power) else 0
    return out, lse, level, lse.new_empty(B * heads * groups, dtype=torch.int32)


def finds_reach(keys: int, mask: Tensor | None, power: Tensor | None) -> bool:
    """Whether far keys are looked for.

    A masked key says nothing of its row's log-sum-exp, and a learned power law may rise.
    """
    return mask is None and power is None and keys >= SHORTEST


def _parted(reach: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Where groups of queries begin, and where groups of keys end."""
    queries = q.shape[0] * q.shape[1] * -(-q.shape[2] // GROUP)
    return reach[:queries], reach[queries:]


def _find_reach(q: Tensor, k: Tensor, level: Tensor, reach: Tensor, scale: float) -> None:
    from longlens.ops.family.triton.levels import level_reach, longest_rows

    tops = []
    for x in (q, k):
        B, heads, n, D = x.shape
        tops.append(level.new_empty(B * heads * -(-n // GROUP)))
        launch(
            longest_rows, (-(-n // GROUP), B * heads), [x, tops[-1]], [*_strides(x), n, heads],
            D=D, BD=next_power_of_2(D), GROUP=GROUP,
        )  # fmt: skip
    (B, heads, L), (kv_heads, S) = q.shape[:3], k.shape[1:3]
    groups = next_power_of_2(-(-S // GROUP))
    launch(
        level_reach, (B * heads,),
        [level, *tops, level.new_empty(B * heads * 2 * groups), *_parted(reach, q)],
        [0 if level.shape[0] == 1 else level.stride(0), L, S, scale, heads, heads // kv_heads,
         BITS],
        GROUP=GROUP, GROUPS=groups, STEPS=groups.bit_length(),
    )  # fmt: skip


def _backward(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], forget: Tensor | None,
    power: Tensor | None, mask: Tensor | None, scale: float, asked: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v; asked & 1: of the gates; asked & 2: shares (B, Hq) of slopes';
    asked & 4: what -log 2 times the sum of is a power's, (B, Hq, L).

    `saved` are q, k, v and all outputs. What is not asked for is of length 0.
    """
    from longlens.ops.family.triton.added import added_key_gradient, added_query_gradient
    from longlens.ops.family.triton.levels import level_gradient
    from longlens.ops.las.triton.backward import delta_kernel

    dq, dk, dv, d_forget, d_slopes, d_power = _gradients(grad, grad_lse, saved, forget, asked)
    *tensors, out, lse, level, reach = saved
    q, k, v, grad = (dense_rows(t) for t in (*tensors, grad))
    sides, group = [level, *dense_sides(mask, power)], GROUP if reach.numel() else 0
    begin, end = _parted(reach, q)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    (B, heads, rows, _), (kv_heads, S) = q.shape, k.shape[1:3]
    delta, lse_2 = torch.empty_like(lse), torch.empty_like(lse)
    sums = bool(asked & 3)
    d_level = lse.new_empty([B, heads, S] if sums else [0])
    launch(
        delta_kernel, (-(-rows // 64), B * heads), [out, grad, lse, grad_lse, delta, lse_2],
        [*_strides(out, grad), rows, heads],
        DV=v.shape[3], BDV=max(16, next_power_of_2(v.shape[3])), BM=64,
        HAS_LSE_GRADIENT=grad_lse is not None,
    )  # fmt: skip
    blocks = _blocks("query", q, v)
    launch(
        added_query_gradient, (-(-rows // blocks.queries), B * heads),
        [q, k, v, grad, lse_2, delta, dq, d_level, d_power, *sides, begin],
        [
            *_strides(q, k, v, grad, dq), *_numbers(q, k, level, mask, scale, heads),
            heads // kv_heads,
        ],
        GROUP=group, SUMS=sums, LOGS=bool(asked & 4), **_settings(q, v, mask, power, blocks),
    )  # fmt: skip
    blocks = _blocks("key", q, v)
    launch(
        added_key_gradient, (-(-S // blocks.keys), B * kv_heads),
        [q, k, v, grad, lse_2, delta, dk, dv, d_level, *sides, end],
        [*_strides(q, k, v, grad, dk, dv), *_numbers(q, k, level, mask, scale, kv_heads)],
        MEMBERS=heads // kv_heads, GROUP=group, SUMS=sums,
        **_settings(q, v, mask, power, blocks),
    )  # fmt: skip
    if sums:
        launch(
            level_gradient, (B * heads,), [d_level, d_forget, d_slopes],
            [*_strides(d_forget if asked & 1 else d_level), S, heads],
            FORGETS=bool(asked & 1), SLOPES=bool(asked & 2), BLOCK=LEVELS,
        )  # fmt: skip
    return dq, dk, dv, d_forget, d_slopes, d_power


def _gradients(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], forget: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v, _, lse, *_ = saved
    dq, dk, dv = (empty_as(t, list(t.shape)) for t in (q, k, v))
    asked = rest[-1]
    d_forget = lse.new_empty(0) if forget is None or not asked & 1 else torch.empty_like(forget)
    d_slopes = lse.new_empty(q.shape[:2] if asked & 2 else 0)
    return dq, dk, dv, d_forget, d_slopes, lse.new_empty(q.shape[:3] if asked & 4 else 0)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, forget, slopes, power, mask, ctx.scale = inputs
    learned = [t is not None and t.requires_grad for t in (forget, slopes, power)]
    ctx.asked = learned[0] + 2 * learned[1] + 4 * learned[2]
    ctx.save_for_backward(q, k, v, *output, forget, slopes, power, mask)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    *saved, forget, slopes, power, mask = ctx.saved_tensors
    grad, grad_lse = grads
    if grad is None:  # only the log-sum-exp was used
        grad = torch.zeros_like(saved[3])
    dq, dk, dv, d_forget, d_slopes, d_power = backward(
        grad, grad_lse, saved, forget, power, mask, ctx.scale, ctx.asked
    )
    d_forget = d_forget if ctx.asked & 1 else None
    d_slopes = d_slopes.sum(0).to(slopes.dtype) if ctx.asked & 2 else None
    d_power = (-math.log(2) * d_power.sum((0, 2))).to(power.dtype) if ctx.asked & 4 else None
    return dq, dk, dv, d_forget, d_slopes, d_power, None, None


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
    q: Tensor, k: Tensor, v: Tensor, *, log_forget: Tensor | None, slopes: Tensor | None,
    power: Tensor | None, mask: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Causal attention, (B, Hq, L, Dv), and its log-sum-exp; to its scores are added A_i - A_j and
    -power·log(1 + distance), power (Hq,).

    A is the running sum of log_forget (B, Hq, S) less slopes (Hq,) times positions. The queries
    are the last of the S positions; mask (B, S).
    """
    out, lse = _apply(q, k, v, log_forget, slopes, power, mask, scale)
    return out, lse
