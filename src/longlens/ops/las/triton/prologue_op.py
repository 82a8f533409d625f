"""The prologue as a PyTorch operator: (q, k, v) or a packed projection -> scaled, rotated, pooled.

The operator takes its inputs as a list: [q, k, v], each (B, heads, length, width); or one tensor
(B, all heads, length, width) that holds the three one after the other, so that its gradient is
written in one piece; or [v] alone where nothing is to scale or rotate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.launching import next_power_of_2, on_device

# Limits of CUDA on the second and third axis of a grid: blocks of at least 16 rows, sequences
LONGEST, MOST_SEQUENCES = 16 * 65_535, 65_535
WIDEST_WINDOW = 64  # beyond it, doubling in torch reads less than one load per window position


class Plan(NamedTuple):
    """The numbers that describe one prologue; operators take flat lists, so it travels as ints."""

    q_heads: int  # 0: pool only
    k_heads: int
    v_heads: int
    copies: int  # heads written for each head of k and v
    before: int
    after: int
    rows: int  # rows written, the first ones
    width: int  # columns written; zeros beyond the input's


def _split(tensors: list[Tensor], plan: Plan) -> list[Tensor]:
    """[q, k, v] or [v] as (B, heads, length, width), without copies."""
    if len(tensors) == 1 and plan.q_heads:
        return list(tensors[0].split([plan.q_heads, plan.k_heads, plan.v_heads], dim=1))
    return tensors


def empty_as(like: Tensor, shape: list[int]) -> Tensor:
    """A tensor (B, heads, length, width), its heads inside positions in memory if `like` is so.

    Attention keeps the order of its query, and a layer then joins the heads without a copy.
    """
    B, heads, length, width = shape
    if like.stride(1) < like.stride(2):
        return like.new_empty(B, length, heads, width).transpose(1, 2)
    return like.new_empty(B, heads, length, width)


def strides(*tensors: Tensor) -> list[int]:
    """Strides of batch, heads and length, of one tensor after the other."""
    return [n for t in tensors for n in t.stride()[:3]]


def _outputs(tensors: list[Tensor], plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    *qk, v = _split(tensors, plan)
    heads = [plan.q_heads, plan.k_heads * plan.copies, plan.v_heads * plan.copies]
    shapes = [[v.shape[0], h, plan.rows, plan.width] for h in heads]
    q, k = qk or [v, v]
    return empty_as(q, shapes[0]), empty_as(k, shapes[1]), empty_as(v, shapes[2])


def _sides(
    plan: Plan, mask: Tensor | None, share: Tensor | None, cos: Tensor | None, keys: int,
    scale: float,
) -> list[int | float]:  # fmt: skip
    """The numbers after the strides: strides of side inputs, lengths, the centre, head counts."""

    def batch_stride(t: Tensor | None) -> int:
        return 0 if t is None or t.shape[0] == 1 else t.stride(0)

    angle = 0 if cos is None or cos.ndim == 2 else batch_stride(cos)
    rows = plan.rows
    return [batch_stride(mask), batch_stride(share), angle, rows, keys, 0.5 * (rows - 1), scale]


def _settings(
    plan: Plan, D: int, DV: int, alpha: Tensor | None, mask: Tensor | None, share: Tensor | None,
    cos: Tensor | None, starts: Tensor | None,
) -> dict[str, Any]:  # fmt: skip
    """What both kernels take by name: the numbers that they are compiled for."""
    width = next_power_of_2(max(plan.width, D, DV))
    return dict(
        D=D, DV=DV, WIDTH=width, BEFORE=plan.before, AFTER=plan.after,
        BLOCK=32 if width <= 128 else 16,  # tried on an H200 at widths 32 and 64
        HAS_ALPHA=alpha is not None, HAS_MASK=mask is not None, RENORMALIZE=share is not None,
        ROTARY=cos is not None, VARLEN=starts is not None,
    )  # fmt: skip


def _rates(plan: Plan, alpha: Tensor | None) -> int:
    """Heads of α for each head of k that is written: more than 1 where a group shares its key."""
    return max(1, plan.q_heads // max(1, plan.k_heads * plan.copies)) if alpha is not None else 1


def _forward(
    tensors: list[Tensor], alpha: Tensor | None, mask: Tensor | None, share: Tensor | None,
    cos: Tensor | None, sin: Tensor | None, starts: Tensor | None, stops: Tensor | None,
    plan: list[int], scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Write the inputs of SDPA; `scale` multiplies q and k, `share` (B or 1, S) is 1/count."""
    from longlens.ops.las.triton.prologue import prologue_forward

    p = Plan(*plan)
    alpha, mask, share, cos, sin, starts, stops = dense_sides(
        alpha, mask, share, cos, sin, starts, stops
    )
    outs = _outputs(tensors, p)
    views = [dense_rows(t) for t in _split(tensors, p)]
    q, k, v = views if len(views) == 3 else views * 3
    settings = _settings(p, q.shape[3], v.shape[3], alpha, mask, share, cos, starts)
    heads = p.q_heads + (p.k_heads + p.v_heads) * p.copies
    grid = (heads, -(-p.rows // settings["BLOCK"]), v.shape[0])
    if v.shape[0] and p.rows:
        with on_device(v):
            prologue_forward[grid](
                q, k, v, *outs, alpha, mask, share, cos, sin, starts, stops,
                *strides(q, k, v, *outs), *_sides(p, mask, share, cos, v.shape[2], scale),
                p.q_heads, p.k_heads * p.copies, p.copies, _rates(p, alpha), OUT=p.width,
                **settings,
            )  # fmt: skip
    return outs


def _describe(tensors: list[Tensor]) -> list[int]:
    """What gradients must look like: shapes, and whether memory holds heads inside positions."""
    return [n for t in tensors for n in (*t.shape, int(t.stride(1) < t.stride(2)))]


def _gradients(like: Tensor, layout: list[int]) -> list[Tensor]:
    grads = []
    for start in range(0, len(layout), 5):
        B, heads, length, width, inside = layout[start : start + 5]
        if inside:
            grads.append(like.new_empty(B, length, heads, width).transpose(1, 2))
        else:
            grads.append(like.new_empty(B, heads, length, width))
    return grads


def _backward(
    dq_out: Tensor, dk_out: Tensor, dv_out: Tensor, sources: list[Tensor], layout: list[int],
    alpha: Tensor | None, mask: Tensor | None, share: Tensor | None, cos: Tensor | None,
    sin: Tensor | None, starts: Tensor | None, stops: Tensor | None, plan: list[int], scale: float,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Gradients of the inputs, and of α where `sources` holds the inputs (else of length 0)."""
    from longlens.ops.las.triton.prologue import prologue_backward

    p = Plan(*plan)
    alpha, mask, share, cos, sin, starts, stops = dense_sides(
        alpha, mask, share, cos, sin, starts, stops
    )
    grads = _gradients(dv_out, layout)
    views = _split(grads, p)
    dq, dk, dv = views if len(views) == 3 else views * 3
    q, k = [dense_rows(t) for t in _split(sources, p)][:2] if sources else (dq, dk)
    outs = [dense_rows(g) for g in (dq_out, dk_out, dv_out)]
    settings = _settings(p, dq.shape[3], dv.shape[3], alpha, mask, share, cos, starts)
    B, keys = dv.shape[0], dv.shape[2]
    blocks = -(-keys // settings["BLOCK"])
    columns = p.q_heads + p.k_heads * p.copies if sources else 0
    rates = dv_out.new_zeros((B, blocks, columns) if sources else 0, dtype=torch.float32)
    if B and keys:
        with on_device(dv):
            prologue_backward[(p.q_heads + p.k_heads + p.v_heads, blocks, B)](
                q, k, *outs, dq, dk, dv, rates, alpha, mask, share, cos, sin, starts, stops,
                *strides(q, k, *outs, dq, dk, dv), *_sides(p, mask, share, cos, keys, scale),
                p.q_heads, p.k_heads, p.copies, _rates(p, alpha), ALPHA_GRADIENT=bool(sources),
                **settings,
            )  # fmt: skip
    if not sources:
        return grads, rates
    total = rates.sum((0, 1))  # partial sums in a fixed order: the same result every time
    return grads, total[: p.q_heads] + total[p.q_heads :]


@torch.library.custom_op("longlens::las_prologue", mutates_args=())
def las_prologue(
    tensors: list[Tensor], alpha: Tensor | None, mask: Tensor | None, share: Tensor | None,
    cos: Tensor | None, sin: Tensor | None, starts: Tensor | None, stops: Tensor | None,
    plan: list[int], scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward pass as compilers see it."""
    return _forward(tensors, alpha, mask, share, cos, sin, starts, stops, plan, scale)


@las_prologue.register_fake
def _(
    tensors: list[Tensor], alpha: Tensor | None, mask: Tensor | None, share: Tensor | None,
    cos: Tensor | None, sin: Tensor | None, starts: Tensor | None, stops: Tensor | None,
    plan: list[int], scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(tensors, Plan(*plan))


@torch.library.custom_op("longlens::las_prologue_backward", mutates_args=())
def las_prologue_backward(
    dq_out: Tensor, dk_out: Tensor, dv_out: Tensor, sources: list[Tensor], layout: list[int],
    alpha: Tensor | None, mask: Tensor | None, share: Tensor | None, cos: Tensor | None,
    sin: Tensor | None, starts: Tensor | None, stops: Tensor | None, plan: list[int], scale: float,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """The backward pass as compilers see it."""
    return _backward(
        dq_out, dk_out, dv_out, sources, layout, alpha, mask, share, cos, sin, starts, stops, plan,
        scale,
    )  # fmt: skip


@las_prologue_backward.register_fake
def _(
    dq_out: Tensor, dk_out: Tensor, dv_out: Tensor, sources: list[Tensor], layout: list[int],
    alpha: Tensor | None, mask: Tensor | None, share: Tensor | None, cos: Tensor | None,
    sin: Tensor | None, starts: Tensor | None, stops: Tensor | None, plan: list[int], scale: float,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    heads = plan[0] if sources else 0
    return _gradients(dv_out, layout), dv_out.new_empty(heads, dtype=torch.float32)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, alpha, *rest, plan, scale = inputs
    ctx.plan, ctx.scale, ctx.layout = plan, scale, _describe(tensors)
    # Only α's gradient reads the inputs again; without it nothing but shapes is kept.
    kept = tensors if alpha is not None and alpha.requires_grad else []
    ctx.kept = len(kept)
    ctx.save_for_backward(*kept, alpha, *rest)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Tensor, ...]) -> tuple[Any, Any]:
    sources, rest = list(ctx.saved_tensors[: ctx.kept]), ctx.saved_tensors[ctx.kept :]
    found, rates = backward(*grads, sources, ctx.layout, *rest, ctx.plan, ctx.scale)
    return found, rates.to(rest[0].dtype) if sources else None


def _op_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    return *_differentiate(ctx, las_prologue_backward, grads), *[None] * 8


las_prologue.register_autograd(_op_backward, setup_context=_setup)


class _Eager(torch.autograd.Function):
    """The same without the operator's bookkeeping, which costs more than the kernels at times."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        settings, tensors = inputs[:9], list(inputs[9:])
        outs = _forward(tensors, *settings)
        _setup(ctx, (tensors, *settings), outs)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        found, rates = _differentiate(ctx, _backward, grads)
        return rates, *[None] * 8, *found


def prologue(
    tensors: list[Tensor],
    plan: Plan,
    *,
    alpha: Tensor | None = None,
    mask: Tensor | None = None,
    share: Tensor | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
    limits: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled and rotated q and k, pooled v: (B, heads, rows, width) each; empty q, k if v is alone.

    `mask` (B, S) says which values are real, `share` (B or 1, S) holds 1/count of each window where
    edges are renormalised, `angles` the cosines and sines of rotary positions, `limits`
    (L,) each the first position and the end of the sequence that each row of a packed batch belongs
    to, and `scale` multiplies both q and k.
    """
    cos, sin = angles or (None, None)
    starts, stops = limits or (None, None)
    if torch.compiler.is_compiling():
        result = las_prologue(
            tensors, alpha, mask, share, cos, sin, starts, stops, list(plan), scale
        )
    else:
        result = _Eager.apply(  # type: ignore[no-untyped-call]
            alpha, mask, share, cos, sin, starts, stops, plan, scale, *tensors
        )
    q, k, v = result
    return q, k, v
