"""How tensors must lie in memory for fused kernels, which take it for granted and read on.

PyTorch's attention operators are called here below the checks of their public form, and Triton
kernels have none of their own: with other strides than they assume both return whatever lies in
memory. Each of these functions costs a copy only where one is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dense_rows(x: Tensor) -> Tensor:
    """For Triton kernels: the last dimension is contiguous; the other strides are passed along."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def dense_sides(*tensors: Tensor | None) -> list[Tensor | None]:
    """For side inputs of Triton kernels (rates, masks, bounds, angles), which have no strides."""
    return [None if t is None else t.contiguous() for t in tensors]


def separate_rows(x: Tensor) -> Tensor:
    """For `scaled_dot_product_attention`: rows that overlap, as `unfold` makes them, are copied.

    Its CPU kernel hands the stride of the rows to a matrix product that wants no less than their
    width, and is refused without a word.
    """
    apart = x.stride(-2) >= x.shape[-1] or x.shape[-2] == 1 or x.stride(-1) != 1
    return x if apart else x.clone(memory_format=torch.contiguous_format)


def operator_ready(x: Tensor) -> Tensor:
    """For the operators below SDPA: dense rows that do not overlap, on CUDA aligned to 16 bytes.

    Their vector loads on CUDA take 16 bytes at a time from the start of each row; the width of a
    head is a multiple of that already (`pad_heads`).
    """
    *outer, row, last = x.stride()
    ready = (last == 1 or x.shape[-1] == 1) and (row >= x.shape[-1] or x.shape[-2] == 1)
    if x.is_cuda:
        unit = 16 // x.element_size()
        ready = ready and x.data_ptr() % 16 == 0 and all(n % unit == 0 for n in (*outer, row))
    return x if ready else x.clone(memory_format=torch.contiguous_format)
