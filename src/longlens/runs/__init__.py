"""Many runs: cells to records, in this process, on this machine's devices, or on a cluster."""

from longlens.runs.sweep import sweep

__all__ = ["sweep"]
