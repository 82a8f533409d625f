"""Normalisation on a GPU with few passes over memory; opaque operators for ``torch.compile``.

A compiler makes several passes of sums over all rows; these make one. Shapes: N rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.triton import INSTALLED, INTERPRETED
from longlens.ops.las.triton.prologue_op import next_power_of_2, on_device

TILE = 2048  # numbers that a program reads of each tensor at a time
WIDEST = 2048  # columns of a layer norm
ON_A_PROCESSOR = 4  # programs


def has_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether the operators below take such an input and such weights.

    >>> has_kernels(torch.ones(2, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    False
    """
    types = (torch.float32, torch.float16) + (() if INTERPRETED else (torch.bfloat16,))
    fit = x.dtype in types and weight.dtype == torch.float32
    return fit and INSTALLED and (x.is_cuda or INTERPRETED)


def _grid(x: Tensor, widest: int) -> tuple[int, int, dict[str, int]]:
    """Programs over the rows of x (N, D), tiles of each, and the tile's shape."""
    rows, width = x.shape
    columns = min(widest, next_power_of_2(width))
    height = max(1, TILE // columns)
    processors = 2
    if x.is_cuda:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    all_tiles = max(1, -(-rows // height))
    tiles = -(-all_tiles // (ON_A_PROCESSOR * processors))
    return -(-all_tiles // tiles), tiles, {"D": width, "BD": columns, "BR": height}


@torch.library.custom_op("longlens::column_moments", mutates_args=())
def column_moments(x: Tensor, real: Tensor | None) -> Tensor:
    """Mean, variance and count over the rows of x (N, D) where real (N, 1) is: (3, D) float32.

    The count stands in every column, and is 1 where no row is real.
    """
    from longlens.ops.norm_kernels import join_moments_kernel, moments_kernel

    x = x.contiguous()
    programs, tiles, shape = _grid(x, widest=256)
    width = shape["D"]
    count = x.new_empty(programs, dtype=torch.float32)
    mean, square = (x.new_empty(programs, width, dtype=torch.float32) for _ in range(2))
    out = x.new_empty(3, width, dtype=torch.float32)
    with on_device(x):
        moments_kernel[(programs, -(-width // shape["BD"]))](
            x, None if real is None else real.contiguous(), count, mean, square, len(x), tiles,
            MASKED=real is not None, **shape,
        )  # fmt: skip
        join_moments_kernel[(-(-width // 16),)](
            count, mean, square, out, programs, D=width, BD=16, BP=128
        )
    return out


@column_moments.register_fake
def _(x: Tensor, real: Tensor | None) -> Tensor:
    return x.new_empty(3, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("longlens::scaled_sums", mutates_args=())
def scaled_sums(grad: Tensor, x: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    """Sums over the rows of grad (N, D), and of grad · (x - mean) · rate: (2, D) float32."""
    from longlens.ops.norm_kernels import scaled_sums_kernel

    grad, x = grad.contiguous(), x.contiguous()
    programs, tiles, shape = _grid(x, widest=256)
    part = x.new_empty(2, programs, shape["D"], dtype=torch.float32)
    with on_device(x):
        scaled_sums_kernel[(programs, -(-shape["D"] // shape["BD"]))](
            grad, x, mean, rate, part, len(x), tiles, **shape
        )
    return part.sum(1)


@scaled_sums.register_fake
def _(grad: Tensor, x: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    return x.new_empty(2, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("longlens::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    grad: Tensor, passed: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x (N, D), ``passed`` added, and of bias and weight: (2, D) float32.

    ``mean`` and ``rate`` (1 / deviation) are those of the rows.
    """
    from longlens.ops.norm_kernels import layer_norm_backward_kernel

    grad, passed, x = grad.contiguous(), passed.contiguous(), x.contiguous()
    programs, tiles, shape = _grid(x, widest=WIDEST)
    out = torch.empty_like(x)
    part = x.new_empty(2, programs, shape["D"], dtype=torch.float32)
    with on_device(x):
        layer_norm_backward_kernel[(programs,)](
            grad, passed, x, weight, mean, rate, out, part, len(x), tiles, **shape
        )
    return out, part.sum(1)


@layer_norm_backward.register_fake
def _(
    grad: Tensor, passed: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        x.new_empty(x.shape, dtype=x.dtype),
        x.new_empty(2, x.shape[1], dtype=torch.float32),
    )


class _Fork(torch.autograd.Function):
    """x -> x, layer norm of x; both gradients meet in one kernel."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        wide = x.to(weight.dtype)
        out, mean, rate = torch.native_layer_norm(wide, (x.shape[-1],), weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rate)
        return x.view_as(x), out.to(dtype)

    @staticmethod
    def backward(ctx: Any, passed: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rate = ctx.saved_tensors
        flat = x.flatten(0, -2)
        inner, sums = layer_norm_backward(
            grad.reshape(flat.shape), passed.reshape(flat.shape), flat, weight,
            mean.flatten(), rate.flatten(),
        )  # fmt: skip
        return inner.view(x.shape), sums[1], sums[0], None, None


def fork_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A residual stream and its layer norm, for a branch that starts with a linear map.

    Under autocast the norm comes in the type that the linear map would round it to anyway.

    Args:
        x: (..., D), D at most 2,048, and with weights for which :func:`has_kernels`.
        weight: (D,).
        bias: (D,).
        eps: added to the variance.

    Returns:
        x itself and its norm, both of its shape.
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    out: tuple[Tensor, Tensor] = _Fork.apply(x, weight, bias, eps, dtype)  # type: ignore[no-untyped-call]
    return out
