"""Looking inside: kernels, attention maps, receptive fields, and attention that is a convolution.

Names load on first use, so that the parts stay independent of each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longlens.lens.theorem import KernelAttention, as_attention

__all__ = ["KernelAttention", "as_attention"]

_HOME = {
    "KernelAttention": "longlens.lens.theorem",
    "as_attention": "longlens.lens.theorem",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'longlens.lens' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
