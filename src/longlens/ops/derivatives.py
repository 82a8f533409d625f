"""Gradients that are written out have no derivative of their own, and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Any, ...]]


class _NoDerivative(torch.autograd.Function):
    """Gradients as they are, connected to all that they depend on."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if t is None else t.clone() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            "no second derivative: this gradient is written out and has none of its own; "
            "attention has one with impl='reference'"
        )


class _Unpacked:
    """A context whose saved tensors have been read: where a checkpoint keeps them, once is all."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


def first_only(backward: Backward) -> Backward:
    """A backward pass, of a `torch.autograd.Function`, that refuses to be differentiated.

    `once_differentiable` refuses only where the upstream gradient is differentiable. Beside another
    path to the inputs it returns what autograd takes for a constant, and the sum is wrong.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        # compiled code refuses second derivatives by itself
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return backward(ctx, *grads)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            found = backward(ctx, *grads)
        return _NoDerivative.apply(len(found), *found, *grads, *ctx.saved_tensors)  # type: ignore[no-untyped-call, no-any-return]

    return checked
