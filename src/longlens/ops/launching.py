"""What all launches of Triton kernels share."""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def _installed() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:  # an import hook that keeps it away
        return False


INSTALLED = _installed()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton, too, reads it once
# The interpreter, which tests kernels on a CPU, has no bfloat16.
DTYPES = (torch.float32, torch.float16) + (() if INTERPRETED else (torch.bfloat16,))


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Launch kernels where x is; entering a device costs as much as a launch, so only if needed."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def watched() -> bool:
    """Whether somebody counts operators: then kernels that count must run as such."""
    return torch._C._len_torch_dispatch_stack() > 0


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> next_power_of_2(24)
    32
    """
    return 1 << (n - 1).bit_length()
