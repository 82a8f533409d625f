"""Working precision: FFTs, recurrences and feature maps never run in half precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast leaves operations on ``x``'s device alone; meta has none.

    >>> x = torch.ones(2, 2)
    >>> with torch.autocast("cpu", torch.bfloat16), no_autocast(x):
    ...     (x @ x).dtype
    torch.float32
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for ``x``'s device.

    >>> autocasts(torch.ones(1))
    False
    """
    device = x.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast makes of ``x``; None: it is off, or ``x`` is float64, which it leaves alone.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(torch.ones(1)), autocast_dtype(torch.ones(1, dtype=torch.float64))
    (torch.bfloat16, None)
    """
    if not autocasts(x) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(x.device.type)


def keep_dtypes(x: Tensor) -> AbstractContextManager[object]:
    """As ``no_autocast``, for free where autocast is off, which is where most calls run.

    >>> with keep_dtypes(torch.ones(1)) as context:
    ...     context is None
    True
    """
    return no_autocast(x) if autocasts(x) else nullcontext()
