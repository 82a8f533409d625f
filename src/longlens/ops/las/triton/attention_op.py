"""The attention kernels as a PyTorch operator with gradients of q, k, v and α, and of both outputs.

Shapes as in `las_attention`; values come pooled. The log-sum-exp is an output too, so that further
keys can be merged in by ordinary differentiable code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.las.call import Packing
from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.las.triton.prologue_op import empty_as, strides
from longlens.ops.launching import fused_operator, launch, next_power_of_2


class Blocks(NamedTuple):
    """Tile sizes and launch settings of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


# The fastest of ten settings each on an H200 (bfloat16, two-sided), by width up to and kernel.
_HALF = {
    32: dict(forward=Blocks(128, 64, 4, 3), query=Blocks(128, 64, 4, 3), key=Blocks(64, 128, 4, 2)),
    64: dict(forward=Blocks(128, 128, 8, 3), query=Blocks(128, 32, 4, 3), key=Blocks(64, 64, 4, 3)),
    128: dict(
        forward=Blocks(128, 64, 8, 3), query=Blocks(128, 64, 8, 3), key=Blocks(64, 128, 8, 3)
    ),
    256: dict(forward=Blocks(64, 32, 4, 2), query=Blocks(64, 32, 4, 1), key=Blocks(32, 64, 4, 1)),
}
_FLOAT32 = {
    64: dict(forward=Blocks(64, 32, 4, 2), query=Blocks(32, 32, 4, 1), key=Blocks(32, 32, 4, 1)),
    256: dict(forward=Blocks(32, 32, 4, 1), query=Blocks(32, 32, 4, 1), key=Blocks(32, 32, 4, 1)),
}

MOST_HEADS = 65_535  # a limit of CUDA on the second axis of a grid
# Causal attention without decay and mask, by heads narrower than cuDNN's tiles of 64: forward and
# backward 563 us at (50, 8, 1024, 32), cuDNN 647 us; ahead at 2,048 positions, too, behind at 8,192
# (results/ops_narrow_h200.csv). That is time on the device: called eagerly, the host takes longer.
NARROW, LONGEST_NARROW = 32, 2048
_NARROW = dict(forward=Blocks(64, 64, 4, 3), query=Blocks(64, 32, 4, 3), key=Blocks(128, 64, 4, 2))


def beats_sdpa(query: Tensor, value: Tensor) -> bool:
    """Whether causal attention without decay and mask is faster here than by SDPA."""
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and max(query.shape[3], value.shape[3]) <= NARROW
        and query.shape[2] <= LONGEST_NARROW
        and torch.cuda.get_device_properties(query.device).major >= 9
    )


def _plain(numbers: Numbers, sides: list[Tensor | None]) -> bool:
    """Causal, without a lag, sliding window, decay, mask or packing."""
    return (
        bool(numbers.causal)
        and numbers.lag == 0
        and numbers.left < 0
        and all(side is None for side in sides)
    )


def _blocks(kernel: str, q: Tensor, v: Tensor, plain: bool) -> Blocks:
    table = _FLOAT32 if q.dtype == torch.float32 else _HALF
    width = max(q.shape[3], v.shape[3])
    if plain and width <= NARROW and q.dtype != torch.float32:
        return _NARROW[kernel]
    return next(table[limit] for limit in table if width <= limit)[kernel]


def _numbers(
    q: Tensor, k: Tensor, mask: Tensor | None, numbers: Numbers, scale: float, heads: int
) -> list[int | float]:
    """The numbers after the strides of tensors: those of side inputs, lengths, head counts."""
    H, L = q.shape[1:3]
    mask_b = 0 if mask is None else mask.shape[1]  # it is dense by now
    _, offset, lag, _, left, right = numbers
    return [H * L, L, mask_b, L, k.shape[2], offset, lag, left, right, scale, heads]


def _settings(
    q: Tensor, v: Tensor, sides: list[Tensor | None], numbers: Numbers, blocks: Blocks
) -> dict[str, Any]:
    """What all kernels take by name: the numbers that they are compiled for."""
    alpha, mask, bounds = sides
    D, DV = q.shape[3], v.shape[3]
    return dict(
        D=D, DV=DV, BD=max(16, next_power_of_2(D)), BDV=max(16, next_power_of_2(DV)),
        BM=blocks.queries, BN=blocks.keys, CAUSAL=bool(numbers.causal), LOCAL=numbers.left >= 0,
        HAS_ALPHA=alpha is not None,
        HAS_MASK=mask is not None, VARLEN=bounds is not None,
        # float32 stays float32: three TF32 products make up one
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def _even(S: int, blocks: Blocks, bounds: Tensor | None) -> bool:
    return bounds is None and S % blocks.keys == 0


def _like(x: Tensor, width: int) -> Tensor:
    """An output as x, with another width, in x's order of heads and positions."""
    return empty_as(x, [*x.shape[:3], width])


def _sequences(q: Tensor, bounds: Tensor | None) -> int:
    return q.shape[0] if bounds is None else bounds.shape[0] - 1


class Numbers(NamedTuple):
    """What else decides; operators take flat lists, so it travels as ints."""

    longest: int  # queries of a sequence
    offset: int
    lag: int  # a causal query sees keys up to its position minus this
    causal: int  # 0 or 1
    left: int = -1  # keys before a query's own position that it sees; -1: all
    right: int = -1  # those after it, unless causal


def _forward(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, mask: Tensor | None,
    bounds: Tensor | None, numbers: list[int], scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention (B, Hq, L, Dv) and its log-sum-exp (B, Hq, L), float32.

    `bounds` (N+1,) cuts one long row into N sequences (B is 1 then).
    """
    from longlens.ops.las.triton.forward import forward_kernel

    out, lse = _outputs(q, k, v)
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    sides, n = dense_sides(alpha, mask, bounds), Numbers(*numbers)
    blocks = _blocks("forward", q, v, _plain(n, sides))
    heads = q.shape[1]
    launch(
        forward_kernel, (-(-n.longest // blocks.queries), _sequences(q, bounds) * heads),
        [q, k, v, out, lse, *sides],
        [*strides(q, k, v, out), *_numbers(q, k, mask, n, scale, heads), heads // k.shape[1]],
        EVEN=_even(k.shape[2], blocks, bounds), **_settings(q, v, sides, n, blocks),
    )  # fmt: skip
    return out, lse


def _outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], alpha: Tensor | None,
    mask: Tensor | None, bounds: Tensor | None, numbers: list[int], scale: float,
    alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and α's by row (B, Hq, L) where asked for (else of length 0).

    `saved` are q, k, v and both outputs.
    """
    from longlens.ops.las.triton.backward import delta_kernel, key_kernel, query_kernel

    dq, dk, dv, rates = _gradients(grad, grad_lse, saved, alpha_gradient)
    q, k, v, out, lse = saved
    q, k, v, grad = dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(grad)
    sides, n = dense_sides(alpha, mask, bounds), Numbers(*numbers)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    heads, rows = q.shape[1], q.shape[2]
    delta, lse_2 = torch.empty_like(lse), torch.empty_like(lse)
    count, plain = _sequences(q, bounds), _plain(n, sides)
    launch(
        delta_kernel, (-(-rows // 64), q.shape[0] * heads),
        [out, grad, lse, grad_lse, delta, lse_2], [*strides(out, grad), rows, heads],
        DV=v.shape[3], BDV=max(16, next_power_of_2(v.shape[3])), BM=64,
        HAS_LSE_GRADIENT=grad_lse is not None,
    )  # fmt: skip
    blocks = _blocks("query", q, v, plain)
    launch(
        query_kernel, (-(-n.longest // blocks.queries), count * heads),
        [q, k, v, grad, lse_2, delta, grad_lse, dq, rates, *sides],
        [
            *strides(q, k, v, grad, dq), *_numbers(q, k, mask, n, scale, heads),
            heads // k.shape[1],
        ],
        EVEN=_even(k.shape[2], blocks, bounds), ALPHA_GRADIENT=alpha_gradient,
        HAS_LSE_GRADIENT=grad_lse is not None, **_settings(q, v, sides, n, blocks),
    )  # fmt: skip
    blocks = _blocks("key", q, v, plain)
    keys, kv_heads = n.longest if bounds is not None else k.shape[2], k.shape[1]
    launch(
        key_kernel, (-(-keys // blocks.keys), count * kv_heads),
        [q, k, v, grad, lse_2, delta, dk, dv, *sides],
        [*strides(q, k, v, grad, dk, dv), *_numbers(q, k, mask, n, scale, kv_heads)],
        GROUP=heads // kv_heads, **_settings(q, v, sides, n, blocks),
    )  # fmt: skip
    return dq, dk, dv, rates


def _gradients(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, _, lse = saved
    rates = q.new_empty(lse.shape if rest[-1] else 0, dtype=torch.float32)
    return _like(q, q.shape[3]), _like(k, k.shape[3]), _like(v, v.shape[3]), rates


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, alpha, mask, bounds, numbers, ctx.scale = inputs
    ctx.numbers = list(numbers)
    ctx.alpha_gradient = alpha is not None and alpha.requires_grad
    ctx.save_for_backward(q, k, v, *output, alpha, mask, bounds)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    *saved, alpha, mask, bounds = ctx.saved_tensors
    grad, grad_lse = grads
    if grad is None:  # only the log-sum-exp was used
        grad = torch.zeros_like(saved[3])
    dq, dk, dv, rates = backward(
        grad, grad_lse, saved, alpha, mask, bounds, ctx.numbers, ctx.scale, ctx.alpha_gradient
    )
    d_alpha = rates.sum((0, 2)).to(alpha.dtype) if ctx.alpha_gradient else None
    return dq, dk, dv, d_alpha, None, None, None, None


las_kernel, _apply = fused_operator(
    "las_kernel", _forward, _backward, like=(_outputs, _gradients), setup=_setup,
    differentiate=_differentiate, outputs=2,
)  # fmt: skip


def _products(q: list[int], k: list[int], v: list[int], bounds: Any, numbers: list[int]) -> int:
    """As torch counts attention: the whole square, causal or not; packed, as many of them.

    Of a sliding window, as many keys as it is wide.
    """
    n = Numbers(*numbers)
    keys = k[2] if bounds is None else n.longest
    if n.left >= 0:
        keys = min(keys, n.left + 1 + max(n.right, 0))
    return 2 * math.prod(q[:3]) * keys * (q[3] + v[3])


@register_flop_formula(torch.ops.longlens.las_kernel)
def _(
    q: Any, k: Any, v: Any, _a: Any, _m: Any, bounds: Any, numbers: list[int], *_: Any, **__: Any
) -> int:
    return _products(q, k, v, bounds, numbers)


@register_flop_formula(torch.ops.longlens.las_kernel_backward)
def _(
    _g: Any, _l: Any, saved: Any, _a: Any, _m: Any, bounds: Any, numbers: list[int], *_: Any,
    **__: Any,
) -> int:  # fmt: skip
    return _products(saved[0], saved[1], saved[2], bounds, numbers) * 5 // 2


def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: Tensor | None,
    mask: Tensor | None = None,
    packing: Packing | None = None,
    offset: int = 0,
    lag: int | None,
    local: tuple[int, int] | None = None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention over pooled values, (B, Hq, L, Dv), and its log-sum-exp (B, Hq, L) in float32.

    A query sees keys up to its position minus `lag`, or on both sides where that is None; `local`
    is the number of keys that it sees before and after its own position, None for all. `packing`
    cuts one long row (B = 1) into sequences.
    """
    bounds, longest = (None, q.shape[2]) if packing is None else packing
    numbers = [longest, offset, lag or 0, int(lag is not None), *(local or ())]
    out, lse = _apply(q, k, v, alpha, mask, bounds, numbers, scale)
    return out, lse
