"""From options to records: one run, or many, in this process, on this machine, or on a cluster.

The two names load on first use: cells and experiments can be declared and listed without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longlens.runs.run import train_run
    from longlens.runs.sweeps import sweep

__all__ = ["sweep", "train_run"]

_HOME = {"sweep": "longlens.runs.sweeps", "train_run": "longlens.runs.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'longlens.runs' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
