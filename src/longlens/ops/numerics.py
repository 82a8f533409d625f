"""Working precision: FFTs, recurrences and feature maps never run in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32, float64 and complex stay as they are.

    >>> full_precision(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def no_autocast(x: Tensor) -> torch.autocast:
    """A context in which autocast leaves operations on ``x``'s device alone.

    >>> x = torch.ones(2, 2)
    >>> with torch.autocast("cpu", torch.bfloat16), no_autocast(x):
    ...     (x @ x).dtype
    torch.float32
    """
    return torch.autocast(device_type=x.device.type, enabled=False)
