"""From options to a finished record: task, model, objective and protocol put together."""

from __future__ import annotations

from longlens.assemble.run import train_run

__all__ = ["train_run"]
