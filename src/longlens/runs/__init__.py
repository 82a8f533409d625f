"""From options to records: one run, or many, in this process, on this machine, or on a cluster."""

from longlens.runs.run import train_run
from longlens.runs.sweep import sweep

__all__ = ["sweep", "train_run"]
