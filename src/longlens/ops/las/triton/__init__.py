"""Fused GPU kernels of LaS attention, written in Triton.

- `prologue`: one pass that rotates and scales queries and keys and pools values, before SDPA
- `mirror`: passes around two-sided decay as one causal call over two triangles
- `forward`, `backward`: attention itself, for what SDPA serves badly or not at all
- `decode`: one query over a long cache

`*_op` launch them, as PyTorch operators where they have gradients, and import triton only then.
"""

from __future__ import annotations

import torch

from longlens.ops.las.transforms import functional
from longlens.ops.launching import DTYPES, INSTALLED, INTERPRETED

HEAD_DIMS = (1, 256)  # smallest and largest width of a head


def why_not(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Why the kernels cannot run on such tensors; None: they can.

    On a CPU they run in Triton's interpreter (TRITON_INTERPRET=1), to test their logic.
    """
    if device.type != "cuda" and not INTERPRETED:
        return f"Triton kernels need a CUDA device, the tensors are on {device.type}"
    if functional():
        return "Triton kernels do not run inside the transforms of torch.func"
    if not INSTALLED:
        return "the package triton is not installed"
    if dtype not in DTYPES:
        names = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        return f"Triton kernels take {names}, not {str(dtype).removeprefix('torch.')}"
    if not HEAD_DIMS[0] <= width <= HEAD_DIMS[1]:
        return (
            f"Triton kernels take head dimensions of {HEAD_DIMS[0]} to {HEAD_DIMS[1]}, not {width}"
        )
    return None
