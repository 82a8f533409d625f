"""Local-and-Smooth (LaS) attention for PyTorch, and a laboratory for long-range modelling.

The public names load on first use (PEP 562), so that ``import longlens`` is quick and the parts
that need no torch import without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longlens._version import __version__

if TYPE_CHECKING:
    from longlens.layers.attention import LaSAttention, SoftmaxAttention
    from longlens.layers.multihead import LaSMultiheadAttention, replace_attention
    from longlens.ops.las import (
        decay_rates,
        explain,
        las_attention,
        las_attention_varlen,
        las_weights,
    )

__all__ = [
    "LaSAttention",
    "LaSMultiheadAttention",
    "SoftmaxAttention",
    "__version__",
    "decay_rates",
    "explain",
    "las_attention",
    "las_attention_varlen",
    "las_weights",
    "replace_attention",
]

_HOME = {
    "LaSAttention": "longlens.layers.attention",
    "LaSMultiheadAttention": "longlens.layers.multihead",
    "SoftmaxAttention": "longlens.layers.attention",
    "decay_rates": "longlens.ops.las",
    "explain": "longlens.ops.las",
    "las_attention": "longlens.ops.las",
    "las_attention_varlen": "longlens.ops.las",
    "las_weights": "longlens.ops.las",
    "replace_attention": "longlens.layers.multihead",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'longlens' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
