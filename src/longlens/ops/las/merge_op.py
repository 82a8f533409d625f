"""Attention merged from parts, differentiable: as an operator for compilers, as a function else.

`flash.py` computes; here autograd and `torch.func` are told how to go through it. Eager code takes
an autograd function, since only that has a rule for `torch.func.vmap`, and refuses derivatives that
the kernels below do not have, where an operator would drop them without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from longlens.ops.las.flash import (
    FLASH,
    TILE,
    Part,
    merge,
    merge_backward,
    merge_backward_op,
    merge_op,
    split_parts,
)

Items = list[tuple[Part, list[Tensor]]]


def merged_attention(parts: Items, rows: int) -> Tensor:
    """Softmax attention over the union of all parts' keys: (B, H, rows, Dv).

    The parts of a row must be disjoint sets of keys; a row that no part serves is zero.
    """
    return partial_attention(parts, rows)[0]


def partial_attention(parts: Items, rows: int) -> tuple[Tensor, Tensor]:
    """The same and its log-sum-exp (B, H, rows), for a caller that has further keys to merge.

    The log-sum-exp has no gradient.
    """
    tensors, layout, scales = _flat(parts)
    if _traced(tensors[0]):
        out, lse = merge_op(tensors, layout, scales, rows)
    else:
        out, lse = _Merged.apply(layout, scales, rows, *tensors)  # type: ignore[no-untyped-call]
    return out, lse


def partial_backward(parts: Items, grad: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """Gradients of all parts' tensors but masks, where `out` and `lse` cover all those keys."""
    tensors, layout, scales = _flat(parts)
    backward = merge_backward_op if _traced(grad) else merge_backward
    return backward(tensors, layout, scales, grad.contiguous(), out, lse)


def one_call(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, mask: Tensor | None, scale: float
) -> Tensor:
    """SDPA as a single part: q (B, H, L, D), k and v (B, H, S, D), mask (B, S) or None."""
    part = Part(FLASH, 0, q.shape[2], 0, is_causal, mask is not None, False, scale)
    tensors = [t[:, :, None] for t in (q, k, v)]
    return merged_attention(
        [(part, tensors if mask is None else [*tensors, mask[:, None]])], q.shape[2]
    )


def _flat(parts: Items) -> tuple[list[Tensor], list[int], list[float]]:
    """Operators take flat lists, so parts travel as numbers."""
    tensors = [t for _, own in parts for t in own]
    return tensors, [int(x) for p, _ in parts for x in p[:7]], [p.scale for p, _ in parts]


def _traced(x: Tensor) -> bool:
    return torch.compiler.is_compiling() or x.is_meta or is_fake(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, layout, scales, _ = inputs
    ctx.layout, ctx.scales = layout, scales
    ctx.save_for_backward(*tensors, *output)


def _with_masks(ctx: Any, found: list[Tensor], tensors: list[Tensor]) -> list[Tensor | None]:
    """A gradient for each of the parts' tensors: None for masks."""
    grads: list[Tensor | None] = []
    start = 0
    for part, own in split_parts(ctx.layout, ctx.scales, tensors):
        plain = len(own) - part.masked
        grads += [*found[start : start + plain], *[None] * part.masked]
        start += plain
    return grads


def _op_backward(ctx: Any, grad: Tensor, _grad_lse: Tensor) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    found = merge_backward_op(tensors, ctx.layout, ctx.scales, grad.contiguous(), out, lse)
    return _with_masks(ctx, found, tensors), None, None, None


merge_op.register_autograd(_op_backward, setup_context=_setup)


class _Merged(torch.autograd.Function):
    """`merge` for eager code."""

    @staticmethod
    def forward(
        layout: list[int], scales: list[float], rows: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        return merge(list(tensors), layout, scales, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        layout, scales, rows, *tensors = inputs
        _setup(ctx, (tensors, layout, scales, rows), output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        found = _MergedBackward.apply(  # type: ignore[no-untyped-call]
            ctx.layout, ctx.scales, grads[0].contiguous(), out, lse, *tensors
        )
        return None, None, None, *_with_masks(ctx, found, tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise NotImplementedError(
            "fused attention has no forward-mode derivative; las_attention has one, "
            "with impl='auto' or 'reference'"
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], layout: list[int], scales: list[float], rows: int,
        *tensors: Tensor,
    ) -> Any:  # fmt: skip
        dims = in_dims[3:]
        decays = [own[3] for part, own in _indices(layout, scales, dims) if part.kind == TILE]
        numbers = (layout, scales, rows)
        if any(dims[i] is not None for i in decays):
            return _one_by_one(_Merged, numbers, info.batch_size, dims, tensors)
        return _in_the_batch(_Merged, numbers, info.batch_size, dims, tensors, decays)


class _MergedBackward(torch.autograd.Function):
    """`merge_backward` for eager code."""

    @staticmethod
    def forward(
        layout: list[int], scales: list[float], grad: Tensor, out: Tensor, lse: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return tuple(merge_backward(list(tensors), layout, scales, grad, out, lse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            "fused attention has no second derivative; use las_attention(..., impl='reference')"
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], layout: list[int], scales: list[float],
        *tensors: Tensor,
    ) -> Any:  # fmt: skip
        dims = in_dims[2:]
        numbers = (layout, scales)
        if any(part.kind == TILE for part, _ in _indices(layout, scales, dims[3:])):
            # the decay's gradient is summed over the batch
            return _one_by_one(_MergedBackward, numbers, info.batch_size, dims, tensors)
        return _in_the_batch(_MergedBackward, numbers, info.batch_size, dims, tensors, [])


def _indices(layout: list[int], scales: list[float], tensors: Any) -> Any:
    """The parts, each with the places of its tensors."""
    return split_parts(layout, scales, list(range(len(tensors))))  # type: ignore[arg-type]


def _one_by_one(function: Any, numbers: Any, count: int, dims: Any, tensors: Any) -> Any:
    """Apply the function to one slice after the other."""
    found = [
        function.apply(
            *numbers,
            *(t if d is None else t.select(d, n) for t, d in zip(tensors, dims, strict=True)),
        )
        for n in range(count)
    ]
    outs = tuple(torch.stack(slices) for slices in zip(*found, strict=True))
    return outs, (0,) * len(outs)


def _in_the_batch(
    function: Any, numbers: Any, count: int, dims: Any, tensors: Any, shared: list[int]
) -> Any:
    """Let the mapped dimension join the batch, the first one of all tensors but those `shared`."""

    def join(t: Tensor, dim: int | None) -> Tensor:
        t = t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)
        return t.flatten(0, 1)

    joined = [
        t if i in shared else join(t, d) for i, (t, d) in enumerate(zip(tensors, dims, strict=True))
    ]
    outs = tuple(t.unflatten(0, (count, -1)) for t in function.apply(*numbers, *joined))
    return outs, (0,) * len(outs)
