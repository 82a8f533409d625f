"""Sums over all rows of (N, D) on a GPU: what batch normalisation needs, in one pass each.

Opaque to ``torch.compile``, which would make several passes, and slow ones where N may vary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.ops.launching import DTYPES, INSTALLED, INTERPRETED, launch, next_power_of_2
from longlens.ops.numerics import full_precision

WIDEST = 256  # columns of a tile
TILE = 2048  # numbers that a program reads of each tensor at a time
STAGES = 4  # tiles on their way
ON_A_PROCESSOR = 2  # programs
JOIN = {"BD": 16, "BP": 128}  # tiles of what the programs found


def has_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take such an input and such weights.

    >>> has_kernels(torch.ones(2, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    False
    """
    fit = x.dtype in DTYPES and weight.dtype == torch.float32
    return fit and INSTALLED and (x.is_cuda or INTERPRETED)


def moments_reference(x: Tensor, real: Tensor | None) -> Tensor:
    """Mean, variance and count over the rows of x (N, D) where real (N, 1) is: (3, D).

    The count stands in every column, and is 1 where no row is real. All in float32 at least.

    >>> x, real = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[True], [True], [False]])
    >>> moments_reference(x, real).flatten()
    tensor([2., 1., 2.])
    """
    x = full_precision(x)
    if real is None:
        count = x.new_full((), max(1, len(x)))
        mean = x.sum(0) / count
        var = (x - mean).square().sum(0) / count
    else:
        count = real.sum().to(x).clamp_min(1)
        mean = torch.where(real, x, 0).sum(0) / count
        var = torch.where(real, x - mean, 0).square().sum(0) / count
    return torch.stack([mean, var, count.expand_as(mean)])


def scaled_sums_reference(grad: Tensor, x: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    """Sums over the rows of grad (N, D), and of grad · (x - mean) · rate: (2, D)."""
    return torch.stack([grad.sum(0), (grad * ((x - mean) * rate)).sum(0)])


def _grid(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Programs over the rows of x (N, D), tiles of each, and the tile's shape."""
    rows, width = x.shape
    columns = min(WIDEST, next_power_of_2(width))
    height = max(1, TILE // columns)
    processors = 2
    if x.is_cuda:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    all_tiles = max(1, -(-rows // height))
    tiles = -(-all_tiles // (ON_A_PROCESSOR * processors))
    return (
        -(-all_tiles // tiles),
        tiles,
        {"D": width, "BD": columns, "BR": height, "STAGES": STAGES},
    )


@torch.library.custom_op("longlens::column_moments", mutates_args=())
def column_moments(x: Tensor, real: Tensor | None) -> Tensor:
    """``moments_reference`` by kernels, in float32."""
    from longlens.ops.norm_kernels import join_moments_kernel, moments_kernel

    if real is not None and real.shape != (len(x), 1):
        raise ValueError(f"real must have shape ({len(x)}, 1), got {tuple(real.shape)}")
    x = x.contiguous()
    programs, tiles, shape = _grid(x)
    width = shape["D"]
    count = x.new_empty(programs, dtype=torch.float32)
    mean, square = (x.new_empty(programs, width, dtype=torch.float32) for _ in range(2))
    out = x.new_empty(3, width, dtype=torch.float32)
    launch(
        moments_kernel, (programs, -(-width // shape["BD"])),
        [x, None if real is None else real.contiguous(), count, mean, square], [len(x), tiles],
        MASKED=real is not None, **shape,
    )  # fmt: skip
    join = (-(-width // JOIN["BD"]),)
    launch(join_moments_kernel, join, [count, mean, square, out], [programs], D=width, **JOIN)
    return out


@column_moments.register_fake
def _(x: Tensor, real: Tensor | None) -> Tensor:
    return x.new_empty(3, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("longlens::scaled_sums", mutates_args=())
def scaled_sums(grad: Tensor, x: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    """``scaled_sums_reference`` by kernels, in float32."""
    from longlens.ops.norm_kernels import join_sums_kernel, scaled_sums_kernel

    grad, x = grad.contiguous(), x.contiguous()
    programs, tiles, shape = _grid(x)
    width = shape["D"]
    part = x.new_empty(2, programs, width, dtype=torch.float32)
    out = x.new_empty(2, width, dtype=torch.float32)
    tensors = [grad, x, mean, rate, part]
    grid = (programs, -(-width // shape["BD"]))
    launch(scaled_sums_kernel, grid, tensors, [len(x), tiles], **shape)
    join = (-(-width // JOIN["BD"]), 2)
    launch(join_sums_kernel, join, [part, out], [programs], D=width, **JOIN)
    return out


@scaled_sums.register_fake
def _(grad: Tensor, x: Tensor, mean: Tensor, rate: Tensor) -> Tensor:
    return x.new_empty(2, x.shape[1], dtype=torch.float32)
