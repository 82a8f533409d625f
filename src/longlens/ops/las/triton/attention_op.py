"""The attention kernels as a PyTorch operator with gradients of q, k, v and α, and of both outputs.

Shapes as in `las_attention`; values come pooled. The log-sum-exp is an output too, so that further
keys can be merged in by ordinary differentiable code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.las.call import Packing
from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.las.triton.prologue_op import empty_as, strides
from longlens.ops.launching import (
    MOST_KEPT,
    Launch,
    Meta,
    fused_operator,
    meta,
    next_power_of_2,
)


class Blocks(NamedTuple):
    """Tile sizes and launch settings of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


# The fastest of ten settings or more on an H200 (bfloat16, two-sided), by width up to and kernel.
HALF_BLOCKS = {
    32: dict(forward=Blocks(128, 64, 4, 3), query=Blocks(128, 64, 4, 3), key=Blocks(64, 128, 4, 2)),
    64: dict(forward=Blocks(128, 64, 4, 3), query=Blocks(128, 32, 4, 3), key=Blocks(64, 64, 4, 3)),
    128: dict(
        forward=Blocks(128, 64, 8, 3), query=Blocks(128, 64, 8, 3), key=Blocks(64, 128, 8, 3)
    ),
    256: dict(forward=Blocks(64, 32, 4, 2), query=Blocks(64, 32, 4, 1), key=Blocks(32, 64, 4, 1)),
}
# Of widths 33 to 64: with a padding mask, and inside a sliding window.
MASKED_FORWARD = Blocks(64, 128, 4, 3)
LOCAL_BLOCKS = dict(
    forward=Blocks(64, 32, 4, 3), query=Blocks(64, 64, 4, 3), key=Blocks(64, 64, 4, 2)
)
FLOAT32_BLOCKS = {
    64: dict(forward=Blocks(64, 32, 4, 2), query=Blocks(32, 32, 4, 1), key=Blocks(32, 32, 4, 1)),
    256: dict(forward=Blocks(32, 32, 4, 1), query=Blocks(32, 32, 4, 1), key=Blocks(32, 32, 4, 1)),
}

MOST_HEADS = 65_535  # a limit of CUDA on the second axis of a grid
# Causal attention without decay and mask, by heads narrower than cuDNN's tiles of 64: forward and
# backward 563 us at (50, 8, 1024, 32), cuDNN 647 us; ahead at 2,048 positions, too, behind at 8,192
# (results/ops_narrow_h200.csv). That is time on the device: called eagerly, the host takes longer.
NARROW, LONGEST_NARROW = 32, 2048
NARROW_BLOCKS = dict(
    forward=Blocks(64, 64, 4, 3), query=Blocks(64, 32, 4, 3), key=Blocks(128, 64, 4, 2)
)


def beats_sdpa(query: Tensor, value: Tensor) -> bool:
    """Whether causal attention without decay and mask is faster here than by SDPA."""
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and max(query.shape[3], value.shape[3]) <= NARROW
        and query.shape[2] <= LONGEST_NARROW
        and torch.cuda.get_device_properties(query.device).major >= 9
    )


class Numbers(NamedTuple):
    """What else decides; operators take flat lists, so it travels as ints."""

    longest: int  # queries of a sequence
    offset: int
    lag: int  # a causal query sees keys up to its position minus this
    causal: int  # 0 or 1
    left: int = -1  # keys before a query's own position that it sees; -1: all
    right: int = -1  # those after it, unless causal


class Task(NamedTuple):
    """All that decides about the launches of one call: what q, k, v and the sides are, numbers."""

    q: Meta
    k: Meta
    v: Meta
    sides: tuple[Meta | None, ...]  # α, key mask and bounds of packed sequences
    numbers: Numbers
    scale: float

    @property
    def widths(self) -> tuple[int, int]:
        """Of queries and keys, and of values."""
        return self.q[0][3], self.v[0][3]

    @property
    def heads(self) -> tuple[int, int]:
        """Of queries, and of keys and values."""
        return self.q[0][1], self.k[0][1]

    @property
    def sequences(self) -> int:
        """How many there are."""
        bounds = self.sides[2]
        return self.q[0][0] if bounds is None else bounds[0][0] - 1

    def blocks(self, kernel: str) -> Blocks:
        """Tile sizes."""
        width, half = max(self.widths), self.q[2] != torch.float32
        n = self.numbers
        plain = n.causal and n.lag == 0 and n.left < 0 and self.sides == (None, None, None)
        if plain and width <= NARROW and half:
            return NARROW_BLOCKS[kernel]
        if half and 32 < width <= 64:
            if n.left >= 0:
                return LOCAL_BLOCKS[kernel]
            if kernel == "forward" and self.sides[1] is not None:
                return MASKED_FORWARD
        table = HALF_BLOCKS if half else FLOAT32_BLOCKS
        return next(table[limit] for limit in table if width <= limit)[kernel]

    def arguments(self, heads: int) -> list[int | float]:
        """The numbers after the strides of tensors: those of side inputs, lengths, head counts."""
        H, L = self.q[0][1:3]
        mask, (_, offset, lag, _, left, right) = self.sides[1], self.numbers
        mask_b = 0 if mask is None else mask[0][1]  # it is dense by now
        return [H * L, L, mask_b, L, self.k[0][2], offset, lag, left, right, self.scale, heads]

    def settings(self, blocks: Blocks) -> dict[str, Any]:
        """What all kernels take by name: the numbers that they are compiled for."""
        (alpha, mask, bounds), (D, DV) = self.sides, self.widths
        return dict(
            D=D, DV=DV, BD=max(16, next_power_of_2(D)), BDV=max(16, next_power_of_2(DV)),
            BM=blocks.queries, BN=blocks.keys, CAUSAL=bool(self.numbers.causal),
            LOCAL=self.numbers.left >= 0, HAS_ALPHA=alpha is not None, HAS_MASK=mask is not None,
            VARLEN=bounds is not None,
            # float32 stays float32: three TF32 products make up one
            PRECISION="tf32x3" if self.q[2] == torch.float32 else "tf32",
            num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    def even(self, blocks: Blocks) -> bool:
        """Whether blocks of keys divide the sequence."""
        return self.sides[2] is None and self.k[0][2] % blocks.keys == 0


@lru_cache(MOST_KEPT)
def _forward_launch(task: Task, out: Meta) -> Launch:
    from longlens.ops.las.triton.forward import forward_kernel

    blocks, (heads, kv_heads) = task.blocks("forward"), task.heads
    return Launch(
        forward_kernel, (-(-task.numbers.longest // blocks.queries), task.sequences * heads),
        [*strides(task.q, task.k, task.v, out), *task.arguments(heads), heads // kv_heads],
        EVEN=task.even(blocks), **task.settings(blocks),
    )  # fmt: skip


@lru_cache(MOST_KEPT)
def _backward_launches(
    task: Task, out: Meta, grad: Meta, grads: tuple[Meta, ...], lse_gradient: bool, rates: bool
) -> tuple[Launch, Launch, Launch]:
    """Of the row sums, of the queries' gradients, and of those of keys and values."""
    from longlens.ops.las.triton.backward import delta_kernel, key_kernel, query_kernel

    (q, k, v), (dq, dk, dv) = task[:3], grads
    (heads, kv_heads), (B, _, rows, _) = task.heads, q[0]
    width, longest = task.widths[1], task.numbers.longest
    sums = Launch(
        delta_kernel, (-(-rows // 64), B * heads), [*strides(out, grad), rows, heads],
        DV=width, BDV=max(16, next_power_of_2(width)), BM=64, HAS_LSE_GRADIENT=lse_gradient,
    )  # fmt: skip
    blocks = task.blocks("query")
    queries = Launch(
        query_kernel, (-(-longest // blocks.queries), task.sequences * heads),
        [*strides(q, k, v, grad, dq), *task.arguments(heads), heads // kv_heads],
        EVEN=task.even(blocks), ALPHA_GRADIENT=rates, HAS_LSE_GRADIENT=lse_gradient,
        **task.settings(blocks),
    )  # fmt: skip
    blocks = task.blocks("key")
    length = k[0][2] if task.sides[2] is None else longest
    keys = Launch(
        key_kernel, (-(-length // blocks.keys), task.sequences * kv_heads),
        [*strides(q, k, v, grad, dk, dv), *task.arguments(kv_heads)],
        GROUP=heads // kv_heads, **task.settings(blocks),
    )  # fmt: skip
    return sums, queries, keys


def _like(x: Tensor, width: int) -> Tensor:
    """An output as x, with another width, in x's order of heads and positions."""
    return empty_as(x, [*x.shape[:3], width])


def _task(
    tensors: Sequence[Tensor], sides: list[Tensor | None], numbers: list[int], scale: float
) -> Task:
    q, k, v = map(meta, tensors)
    side_metas = tuple([None if t is None else meta(t) for t in sides])
    return Task(q, k, v, side_metas, Numbers(*numbers), scale)


def forward_pass(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, mask: Tensor | None,
    bounds: Tensor | None, numbers: list[int], scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention (B, Hq, L, Dv) and its log-sum-exp (B, Hq, L), float32.

    `bounds` (N+1,) cuts one long row into N sequences (B is 1 then).
    """
    out, lse = _outputs(q, k, v)
    tensors, sides = [dense_rows(q), dense_rows(k), dense_rows(v)], dense_sides(alpha, mask, bounds)
    start = _forward_launch(_task(tensors, sides, numbers, scale), meta(out))
    start([*tensors, out, lse, *sides])
    return out, lse


def _outputs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def backward_pass(
    grad: Tensor, grad_lse: Tensor | None, saved: list[Tensor], alpha: Tensor | None,
    mask: Tensor | None, bounds: Tensor | None, numbers: list[int], scale: float,
    alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and α's by row (B, Hq, L) where asked for (else of length 0).

    `saved` are q, k, v and both outputs.
    """
    dq, dk, dv, rates = _gradients(grad, grad_lse, saved, alpha_gradient)
    *tensors, out, lse = saved
    q, k, v, grad = (dense_rows(t) for t in (*tensors, grad))
    sides = dense_sides(alpha, mask, bounds)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    delta, lse_2 = torch.empty_like(lse), torch.empty_like(lse)
    sums, queries, keys = _backward_launches(
        _task((q, k, v), sides, numbers, scale), meta(out), meta(grad),
        (meta(dq), meta(dk), meta(dv)), grad_lse is not None, alpha_gradient,
    )  # fmt: skip
    sums([out, grad, lse, grad_lse, delta, lse_2])
    queries([q, k, v, grad, lse_2, delta, grad_lse, dq, rates, *sides])
    keys([q, k, v, grad, lse_2, delta, dk, dv, *sides])
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
    "las_kernel", forward_pass, backward_pass, like=(_outputs, _gradients), setup=_setup,
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
