"""The prologue as a PyTorch operator: (q, k, v) or a packed projection -> scaled, rotated, pooled.

It takes q, k and v, each (B, heads, length, width); or one tensor (B, all heads, length, width)
that holds the three one after the other, so that its gradient is written in one piece; or v alone
where nothing is to scale or rotate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.launching import (
    MOST_KEPT,
    Launch,
    Meta,
    fused_operator,
    meta,
    next_power_of_2,
)

Metas = tuple[Meta, ...]
SideMetas = tuple[Meta | None, ...]  # of α, mask, share, cos, sin and limits
Shape = tuple[int, ...]

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
    taps: int = 0  # 1: `share` holds a filter per head (v_heads·copies, window), not an average
    gradients: int = 0  # that are asked for, 1: of α, 2: of the taps, 3: of both

    @property
    def columns(self) -> tuple[int, int]:
        """Sums for α's gradient, and for that of the taps, that a block of rows gives."""
        of_taps = self.v_heads * self.copies * (self.before + self.after + 1)
        of_alpha = self.q_heads + self.k_heads * self.copies
        return of_alpha if self.gradients else 0, of_taps if self.gradients & 2 else 0

    @property
    def rates(self) -> int:
        """Heads of α for each head of k that is written: more than 1 where a group shares one."""
        return max(1, self.q_heads // max(1, self.k_heads * self.copies))


class Arguments(NamedTuple):
    """What the operator takes: q, k and v, or what holds them; what goes with them; a `Layout`."""

    first: Tensor
    k: Tensor | None = None
    v: Tensor | None = None
    alpha: Tensor | None = None
    mask: Tensor | None = None  # (B, S) bool: which values are real
    share: Tensor | None = None  # (B or 1, S): 1/count of windows that are renormalised; or taps
    cos: Tensor | None = None
    sin: Tensor | None = None
    limits: Tensor | None = None  # (2, T): first position and end of the sequence of each row
    numbers: Any = ()  # a list of ints


class Pass(NamedTuple):
    """What is decided about a pass over tensors of given shapes and strides."""

    launch: Launch | None  # None: there is nothing to write
    layout: Layout
    written: tuple[tuple[Shape, Shape], ...]  # size and strides of the tensors that it writes


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


def strides(*metas: Meta) -> list[int]:
    """Strides of batch, heads and length, of one tensor after the other."""
    return [n for _, stride, _ in metas for n in stride[:3]]


def _outputs(first: Tensor, k: Tensor | None, v: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    layout = Layout(*rest[-1])
    *qk, v = _split([t for t in (first, k, v) if t is not None], layout)
    heads = [layout.q_heads, layout.k_heads * layout.copies, layout.v_heads * layout.copies]
    shapes = [[v.shape[0], h, layout.rows, layout.width] for h in heads]
    q, k = qk or [v, v]
    return empty_as(q, shapes[0]), empty_as(k, shapes[1]), empty_as(v, shapes[2])


def _settings(layout: Layout, D: int, DV: int, sides: SideMetas) -> dict[str, Any]:
    """What both kernels take by name: the numbers that they are compiled for."""
    width = next_power_of_2(max(layout.width, D, DV))
    alpha, mask, share, cos, _, limits = sides
    return dict(
        D=D, DV=DV, WIDTH=width, BEFORE=layout.before, AFTER=layout.after,
        BLOCK=32 if width <= 128 else 16,  # tried on an H200 at widths 32 and 64
        HAS_ALPHA=alpha is not None, HAS_MASK=mask is not None,
        RENORMALIZE=share is not None and not layout.taps, TAPS=bool(layout.taps),
        ROTARY=cos is not None, VARLEN=limits is not None,
    )  # fmt: skip


def _numbers(layout: Layout, sides: SideMetas, keys: int, k_heads: int) -> list[int | float]:
    """The numbers after the strides of tensors."""
    rows = layout.rows
    alpha, mask, share, cos, *_ = sides
    between = [0 if t is None or t[0][0] == 1 else t[0][1] for t in (mask, share)]
    batched = cos is not None and len(cos[0]) == 3 and cos[0][0] > 1
    return [
        *between, cos[0][1] * cos[0][2] if cos is not None and batched else 0, rows, keys,
        0.5 * (rows - 1), 2.0**layout.exponent, layout.q_heads, k_heads, layout.copies,
        layout.rates if alpha is not None else 1,
    ]  # fmt: skip


def _views(tensors: Sequence[Tensor | None], layout: Layout) -> list[Tensor]:
    """q, k and v as the kernels read them; three times v where it is alone."""
    given = [t for t in tensors if t is not None]
    views = [dense_rows(t) for t in _split(given, layout)]
    return views if len(views) == 3 else views * 3


def _view_metas(given: Metas, layout: Layout) -> list[Meta]:
    """Those of `_views`."""
    views = list(given)
    if len(given) == 1 and layout.q_heads:
        (B, _, length, width), stride, dtype = given[0]
        heads = (layout.q_heads, layout.k_heads, layout.v_heads)
        views = [(torch.Size((B, h, length, width)), stride, dtype) for h in heads]
    for at, (shape, stride, dtype) in enumerate(views):
        if stride[-1] != 1 and shape[-1] != 1:  # `dense_rows` will copy it
            views[at] = (shape, _in_memory(shape, inside=False)[1], dtype)
    return views if len(views) == 3 else views * 3


def _in_memory(shape: Sequence[int], inside: bool) -> tuple[Shape, Shape]:
    """Size and strides of a dense tensor (B, heads, length, width); inside: as in `empty_as`."""
    B, heads, length, width = shape
    H, n, D = (max(1, size) for size in (heads, length, width))  # as PyTorch counts empty ones
    strides = (H * n * D, D, H * D, 1) if inside else (H * n * D, n * D, D, 1)
    return (B, heads, length, width), strides


def _heads_inside(x: Meta) -> bool:
    return x[1][1] < x[1][2]


@lru_cache(MOST_KEPT)
def _forward(given: Metas, sides: SideMetas, numbers: Shape) -> Pass:
    """The pass over such inputs."""
    from longlens.ops.las.triton.prologue import prologue_forward

    layout = Layout(*numbers)
    views = _view_metas(given, layout)
    (q, *_), _, (v, _, dtype) = views  # their shapes
    k_heads, v_heads = layout.k_heads * layout.copies, layout.v_heads * layout.copies
    heads = (layout.q_heads, k_heads, v_heads)
    like = given if len(given) == 3 else given * 3
    written = tuple(
        [
            _in_memory((v[0], h, layout.rows, layout.width), _heads_inside(x))
            for h, x in zip(heads, like, strict=True)
        ]
    )
    if 0 in written[2][0]:
        return Pass(None, layout, written)
    settings = _settings(layout, q[3], v[3], sides)
    made = [(torch.Size(size), stride, dtype) for size, stride in written]
    launch = Launch(
        prologue_forward, (sum(heads), -(-layout.rows // settings["BLOCK"]), v[0]),
        [*strides(*views, *made), *_numbers(layout, sides, v[2], k_heads)],
        OUT=layout.width, **settings,
    )  # fmt: skip
    return Pass(launch, layout, written)


def _metas(tensors: Sequence[Tensor | None]) -> SideMetas:
    return tuple([None if t is None else meta(t) for t in tensors])


def _dense_sides(sides: Sequence[Tensor | None]) -> list[Tensor | None]:
    """As the kernels take them: dense, since they have no strides; limits are two tensors."""
    *dense, limits = dense_sides(*sides)
    return [*dense, *((None, None) if limits is None else limits)]


def forward_pass(
    first: Tensor, k: Tensor | None, v: Tensor | None, alpha: Tensor | None, mask: Tensor | None,
    share: Tensor | None, cos: Tensor | None, sin: Tensor | None, limits: Tensor | None,
    numbers: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Write the inputs of SDPA; `first` is q, all of them packed, or v alone."""
    given = [t for t in (first, k, v) if t is not None]
    sides = (alpha, mask, share, cos, sin, limits)
    launch, layout, written = _forward(
        tuple([meta(t) for t in given]), _metas(sides), tuple(numbers)
    )
    q_out, k_out, v_out = [first.new_empty_strided(size, stride) for size, stride in written]
    if launch is not None:
        launch([*_views(given, layout), q_out, k_out, v_out, *_dense_sides(sides)])
    return q_out, k_out, v_out


def _describe(tensors: list[Tensor]) -> list[int]:
    """What gradients must look like: shapes, and whether memory holds heads inside positions."""
    return [n for t in tensors for n in (*t.shape, int(t.stride(1) < t.stride(2)))]


def _gradients(description: Sequence[int]) -> tuple[tuple[Shape, Shape], ...]:
    """Sizes and strides of gradients."""
    each = [description[at : at + 5] for at in range(0, len(description), 5)]
    return tuple([_in_memory(shape, bool(inside)) for *shape, inside in each])


@lru_cache(MOST_KEPT)
def _backward(
    outs: Metas, sources: Metas, sides: SideMetas, numbers: Shape, description: Shape
) -> Pass:
    """The pass from the gradients of outputs to those of inputs."""
    from longlens.ops.las.triton.prologue import prologue_backward

    layout, written = Layout(*numbers), _gradients(description)
    dtype = outs[2][2]
    grads = _view_metas(
        tuple([(torch.Size(size), stride, dtype) for size, stride in written]), layout
    )
    (dq, *_), _, (dv, *_) = grads
    if 0 in dv:
        return Pass(None, layout, written)
    read = _view_metas(sources, layout) if sources else grads
    settings = _settings(layout, dq[3], dv[3], sides)
    heads = layout.q_heads + layout.k_heads + layout.v_heads
    blocks = -(-dv[2] // settings["BLOCK"])
    launch = Launch(
        prologue_backward, (heads, blocks, dv[0]),
        [
            *strides(*read, *outs, *grads), *_numbers(layout, sides, dv[2], layout.k_heads),
            blocks * dv[0],
        ],
        ALPHA_GRADIENT=bool(layout.gradients & 1), TAPS_GRADIENT=bool(layout.gradients & 2),
        **settings,
    )  # fmt: skip
    return Pass(launch, layout, written)


def backward_pass(
    outs: list[Tensor], sources: list[Tensor], alpha: Tensor | None, mask: Tensor | None,
    share: Tensor | None, cos: Tensor | None, sin: Tensor | None, limits: Tensor | None,
    numbers: list[int], description: list[int],
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Gradients of the inputs from those of the outputs, and sums for those of α and the taps.

    `sources` are the inputs where one of these is asked for, else it is empty; `description` is
    that of the inputs.
    """
    sides = (alpha, mask, share, cos, sin, limits)
    outs = [dense_rows(g) for g in outs]
    launch, layout, written = _backward(
        tuple([meta(g) for g in outs]), tuple([meta(t) for t in sources]), _metas(sides),
        tuple(numbers), tuple(description),
    )  # fmt: skip
    grads = [outs[2].new_empty_strided(size, stride) for size, stride in written]
    views = _views(grads, layout)
    read = _views(sources, layout) if sources else views
    sums = outs[2].new_empty(0, dtype=torch.float32)
    if sources:
        count = math.prod(launch.grid[1:]) if launch is not None else 0
        sums = sums.new_zeros(sum(layout.columns), count)
    if launch is not None:
        launch([*read, *outs, *views, sums, *_dense_sides(sides)])
    # partial sums in a fixed order: the same result every time
    return grads, sums.sum(1) if sources else sums


def _gradients_like(outs: list[Tensor], sources: list[Tensor], *rest: Any) -> Any:
    *_, numbers, description = rest
    sums = outs[2].new_empty(sum(Layout(*numbers).columns), dtype=torch.float32)
    grads = []
    for at in range(0, len(description), 5):  # sizes may be symbols here
        B, heads, length, width, inside = description[at : at + 5]
        if inside:
            grads.append(outs[2].new_empty(B, length, heads, width).transpose(1, 2))
        else:
            grads.append(outs[2].new_empty(B, heads, length, width))
    return grads, sums


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    """What the gradients will need."""
    *tensors, alpha, mask, share, cos, sin, limits, numbers = inputs
    ctx.given = [t is not None for t in tensors]
    given = [t for t in tensors if t is not None]
    layout = Layout(*numbers)
    asked = int(alpha is not None and alpha.requires_grad)
    asked += 2 * int(layout.taps and share.requires_grad)
    ctx.numbers, ctx.description = [*numbers[:-1], asked], _describe(given)
    # Only these two read the inputs again; without them nothing but shapes is kept.
    kept = given if asked else []
    ctx.kept = len(kept)
    ctx.save_for_backward(*kept, alpha, mask, share, cos, sin, limits)


def differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """A gradient for each input, by `backward`: the pass itself or its operator."""
    saved, layout = ctx.saved_tensors, Layout(*ctx.numbers)
    sources, sides = list(saved[: ctx.kept]), saved[ctx.kept :]
    heads = [layout.q_heads, layout.k_heads * layout.copies, layout.v_heads * layout.copies]
    outs = list(grads)
    for at, grad in enumerate(grads):
        if grad is None:
            there = next(g for g in grads if g is not None)
            outs[at] = there.new_zeros(there.shape[0], heads[at], layout.rows, layout.width)
    found, sums = backward(outs, sources, *sides, ctx.numbers, ctx.description)
    each = iter(found)
    inputs = [next(each) if given else None for given in ctx.given]
    d_alpha = d_taps = None
    if layout.gradients & 1:
        of_q, of_k = sums[: layout.columns[0]].split(heads[:2])
        d_alpha = (of_q + of_k).to(sides[0].dtype)
    if layout.gradients & 2:
        d_taps = sums[layout.columns[0] :].view(sides[2].shape).to(sides[2].dtype)
    return *inputs, d_alpha, None, d_taps, *[None] * 4


las_prologue, _apply = fused_operator(
    "las_prologue", forward_pass, backward_pass, like=(_outputs, _gradients_like), setup=keep,
    differentiate=differentiate, outputs=3,
)  # fmt: skip


def prologue(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled and rotated q and k, pooled v: (B, heads, rows, width); empty q, k if v is alone."""
    q, k, v = _apply(*arguments)
    return q, k, v
