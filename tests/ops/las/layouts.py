"""Tensors that hold given values, laid out in memory in every way that torch allows.

Whatever surrounds the values is NaN, so that a kernel that reads beyond them shows it. Torch has no
negative strides: a flipped tensor is a copy.
"""

import torch
from torch.nn import functional as F

SAME_VALUES = (
    "dense", "transposed", "heads inside", "columns first", "every other column", "part of a row",
    "odd offset", "every other row", "batch inside",
)  # fmt: skip
OTHER_VALUES = ("expanded rows", "expanded heads", "expanded batch", "expanded columns", "unfold")
LAYOUTS = SAME_VALUES + OTHER_VALUES


def laid_out(x, layout):
    """x, of two or more dimensions, in another layout; those in OTHER_VALUES repeat some values."""
    if layout == "dense":
        return x.contiguous()
    if layout == "transposed":
        return _permuted(x, -2, -1)
    if layout == "heads inside":
        return _permuted(x, 1, 2) if x.ndim > 2 else _permuted(x, 0, 1)
    if layout == "columns first":
        return _permuted(x, 0, -1)
    if layout == "batch inside":
        return _permuted(x, 0, 1)
    if layout == "every other column":
        return _inside(x, (*x.shape[:-1], 2 * x.shape[-1]), (..., slice(None, None, 2)))
    if layout == "every other row":
        rows = (*x.shape[:-2], 2 * x.shape[-2], x.shape[-1])
        return _inside(x, rows, (..., slice(1, None, 2), slice(None)))
    if layout == "part of a row":
        return _inside(x, (*x.shape[:-1], x.shape[-1] + 5), (..., slice(3, -2)))
    if layout == "odd offset":
        flat = _poison((x.numel() + 3,), x)[3:]
        return flat.copy_(x.flatten()).view(x.shape)
    if layout == "unfold":  # row i + 1 begins one number after row i
        *outer, n, width = x.shape
        source = F.pad(x.reshape(*outer, -1), (0, 1))[..., : n + width - 1]
        return source.contiguous().unfold(-1, width, 1)
    dim = {"rows": -2, "heads": 1, "batch": 0, "columns": -1}[layout.removeprefix("expanded ")]
    return x.narrow(dim, 0, 1).expand(x.shape)


def _permuted(x, a, b):
    return x.transpose(a, b).contiguous().transpose(a, b)


def _poison(shape, like):
    full = True if like.dtype == torch.bool else float("nan")
    return torch.full(shape, full, dtype=like.dtype, device=like.device)


def _inside(x, shape, index):
    around = _poison(shape, x)
    around[index] = x
    return around[index]
