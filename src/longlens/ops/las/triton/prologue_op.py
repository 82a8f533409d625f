"""The prologue as a PyTorch operator: (q, k, v) or a packed projection -> scaled, rotated, pooled.

It takes q, k and v, each (B, heads, length, width); or one tensor (B, all heads, length, width)
that holds the three one after the other, so that its gradient is written in one piece; or v alone
where nothing is to scale or rotate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlens.ops.las.operands import dense_rows
from longlens.ops.launching import fused_operator, launch, next_power_of_2

# Limits of CUDA on the second and third axis of a grid: blocks of at least 16 rows, sequences
LONGEST, MOST_SEQUENCES = 16 * 65_535, 65_535
WIDEST_WINDOW = 64  # beyond it, doubling in torch reads less than one load per window position


class Layout(NamedTuple):
    """The numbers that describe one prologue; operators take flat lists, so it travels as ints."""

    q_heads: int  # 0: pool only
    k_heads: int
    v_heads: int
    copies: int  # heads written for each head of k and v
    before: int
    after: int
    rows: int  # rows written, the first ones
    width: int  # columns written; zeros beyond the input's
    exponent: int = 0  # q and k are multiplied by two to this power

    @property
    def rates(self) -> int:
        """Heads of α for each head of k that is written: more than 1 where a group shares one."""
        return max(1, self.q_heads // max(1, self.k_heads * self.copies))


class Sides(NamedTuple):
    """What goes with q, k and v: (B, S) bool, (B or 1, S), angles, and (2, T) of a packed batch."""

    alpha: Tensor | None
    mask: Tensor | None  # which values are real
    share: Tensor | None  # 1/count of each window, where edges are renormalised
    cos: Tensor | None
    sin: Tensor | None
    limits: Tensor | None  # the first position and the end of the sequence of each row

    @property
    def tensors(self) -> list[Tensor | None]:
        """As the kernels take them: dense, since they have no strides."""
        dense = [None if t is None else t.contiguous() for t in self]
        limits = dense.pop()
        return [*dense, *((None, None) if limits is None else limits)]

    def strides(self) -> list[int]:
        """Between sequences of mask, share and angles."""

        def stride(t: Tensor | None) -> int:
            return 0 if t is None or t.shape[0] == 1 else t.shape[1]

        angles = self.cos
        batched = angles is not None and angles.ndim == 3 and angles.shape[0] > 1
        between = angles.shape[1] * angles.shape[2] if batched and angles is not None else 0
        return [stride(self.mask), stride(self.share), between]


def _split(tensors: list[Tensor], layout: Layout) -> list[Tensor]:
    """[q, k, v] or [v] as (B, heads, length, width), without copies."""
    if len(tensors) == 1 and layout.q_heads:
        return list(tensors[0].split([layout.q_heads, layout.k_heads, layout.v_heads], dim=1))
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


def _outputs(first: Tensor, k: Tensor | None, v: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    layout = Layout(*rest[-1])
    *qk, v = _split([t for t in (first, k, v) if t is not None], layout)
    heads = [layout.q_heads, layout.k_heads * layout.copies, layout.v_heads * layout.copies]
    shapes = [[v.shape[0], h, layout.rows, layout.width] for h in heads]
    q, k = qk or [v, v]
    return empty_as(q, shapes[0]), empty_as(k, shapes[1]), empty_as(v, shapes[2])


def _settings(layout: Layout, D: int, DV: int, sides: Sides) -> dict[str, Any]:
    """What both kernels take by name: the numbers that they are compiled for."""
    width = next_power_of_2(max(layout.width, D, DV))
    return dict(
        D=D, DV=DV, WIDTH=width, BEFORE=layout.before, AFTER=layout.after,
        BLOCK=32 if width <= 128 else 16,  # tried on an H200 at widths 32 and 64
        HAS_ALPHA=sides.alpha is not None, HAS_MASK=sides.mask is not None,
        RENORMALIZE=sides.share is not None, ROTARY=sides.cos is not None,
        VARLEN=sides.limits is not None,
    )  # fmt: skip


def _numbers(layout: Layout, sides: Sides, keys: int, k_heads: int) -> list[int | float]:
    """The numbers after the strides of tensors."""
    rows = layout.rows
    return [
        *sides.strides(), rows, keys, 0.5 * (rows - 1), 2.0**layout.exponent, layout.q_heads,
        k_heads, layout.copies, layout.rates if sides.alpha is not None else 1,
    ]  # fmt: skip


def _forward(
    first: Tensor, k: Tensor | None, v: Tensor | None, alpha: Tensor | None, mask: Tensor | None,
    share: Tensor | None, cos: Tensor | None, sin: Tensor | None, limits: Tensor | None,
    numbers: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Write the inputs of SDPA; `first` is q, all of them packed, or v alone."""
    from longlens.ops.las.triton.prologue import prologue_forward

    layout, sides = Layout(*numbers), Sides(alpha, mask, share, cos, sin, limits)
    q_out, k_out, v_out = _outputs(first, k, v, numbers)
    given = [t for t in (first, k, v) if t is not None]
    views = [dense_rows(t) for t in _split(given, layout)]
    q, k, v = views if len(views) == 3 else views * 3
    settings = _settings(layout, q.shape[3], v.shape[3], sides)
    k_heads = layout.k_heads * layout.copies
    heads = layout.q_heads + k_heads + layout.v_heads * layout.copies
    if v.shape[0] and layout.rows:
        launch(
            prologue_forward, (heads, -(-layout.rows // settings["BLOCK"]), v.shape[0]),
            [q, k, v, q_out, k_out, v_out, *sides.tensors],
            [*strides(q, k, v, q_out, k_out, v_out), *_numbers(layout, sides, v.shape[2], k_heads)],
            OUT=layout.width, **settings,
        )  # fmt: skip
    return q_out, k_out, v_out


def _describe(tensors: list[Tensor]) -> list[int]:
    """What gradients must look like: shapes, and whether memory holds heads inside positions."""
    return [n for t in tensors for n in (*t.shape, int(t.stride(1) < t.stride(2)))]


def _gradients(like: Tensor, description: list[int]) -> list[Tensor]:
    grads = []
    for start in range(0, len(description), 5):
        B, heads, length, width, inside = description[start : start + 5]
        if inside:
            grads.append(like.new_empty(B, length, heads, width).transpose(1, 2))
        else:
            grads.append(like.new_empty(B, heads, length, width))
    return grads


def _backward(
    outs: list[Tensor], sources: list[Tensor], alpha: Tensor | None, mask: Tensor | None,
    share: Tensor | None, cos: Tensor | None, sin: Tensor | None, limits: Tensor | None,
    numbers: list[int], description: list[int],
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Gradients of the inputs from those of the outputs, and α's where `sources` holds the inputs.

    `description` is that of the inputs; α's gradient is of length 0 without them.
    """
    from longlens.ops.las.triton.prologue import prologue_backward

    layout, sides = Layout(*numbers), Sides(alpha, mask, share, cos, sin, limits)
    grads = _gradients(outs[2], description)
    views = _split(grads, layout)
    dq, dk, dv = views if len(views) == 3 else views * 3
    q, k = [dense_rows(t) for t in _split(sources, layout)][:2] if sources else (dq, dk)
    outs = [dense_rows(g) for g in outs]
    settings = _settings(layout, dq.shape[3], dv.shape[3], sides)
    B, keys = dv.shape[0], dv.shape[2]
    blocks = -(-keys // settings["BLOCK"])
    columns = layout.q_heads + layout.k_heads * layout.copies if sources else 0
    rates = dv.new_zeros((B, blocks, columns) if sources else 0, dtype=torch.float32)
    if B and keys:
        launch(
            prologue_backward, (layout.q_heads + layout.k_heads + layout.v_heads, blocks, B),
            [q, k, *outs, dq, dk, dv, rates, *sides.tensors],
            [*strides(q, k, *outs, dq, dk, dv), *_numbers(layout, sides, keys, layout.k_heads)],
            ALPHA_GRADIENT=bool(sources), **settings,
        )  # fmt: skip
    if not sources:
        return grads, rates
    total = rates.sum((0, 1))  # partial sums in a fixed order: the same result every time
    return grads, total[: layout.q_heads] + total[layout.q_heads :]


def _gradients_like(outs: list[Tensor], sources: list[Tensor], *rest: Any) -> Any:
    *_, numbers, description = rest
    rates = outs[2].new_empty(numbers[0] if sources else 0, dtype=torch.float32)
    return _gradients(outs[2], description), rates


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, alpha, mask, share, cos, sin, limits, numbers = inputs
    ctx.given = [t is not None for t in tensors]
    given = [t for t in tensors if t is not None]
    ctx.numbers, ctx.description = list(numbers), _describe(given)
    # Only α's gradient reads the inputs again; without it nothing but shapes is kept.
    kept = given if alpha is not None and alpha.requires_grad else []
    ctx.kept = len(kept)
    ctx.save_for_backward(*kept, alpha, mask, share, cos, sin, limits)


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    saved, layout = ctx.saved_tensors, Layout(*ctx.numbers)
    sources, sides = list(saved[: ctx.kept]), saved[ctx.kept :]
    heads = [layout.q_heads, layout.k_heads * layout.copies, layout.v_heads * layout.copies]
    there = next(g for g in grads if g is not None)
    shapes = [(there.shape[0], h, layout.rows, layout.width) for h in heads]
    outs = [there.new_zeros(s) if g is None else g for g, s in zip(grads, shapes, strict=True)]
    found, rates = backward(outs, sources, *sides, ctx.numbers, ctx.description)
    each = iter(found)
    inputs = [next(each) if given else None for given in ctx.given]
    return *inputs, rates.to(sides[0].dtype) if sources else None, *[None] * 6


las_prologue, _apply = fused_operator(
    "las_prologue", _forward, _backward, like=(_outputs, _gradients_like), setup=_setup,
    differentiate=_differentiate, outputs=3,
)  # fmt: skip


def prologue(
    tensors: list[Tensor],
    layout: Layout,
    *,
    alpha: Tensor | None = None,
    mask: Tensor | None = None,
    share: Tensor | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
    limits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled and rotated q and k, pooled v: (B, heads, rows, width) each; empty q, k if v is alone.

    `angles` are the cosines and sines of rotary positions; `Sides` describes the rest.
    """
    first, k, v = tensors if len(tensors) == 3 else (tensors[0], None, None)
    cos, sin = angles or (None, None)
    q, k, v = _apply(first, k, v, alpha, mask, share, cos, sin, limits, list(layout))
    return q, k, v
