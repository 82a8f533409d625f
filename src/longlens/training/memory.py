"""The most memory that training took."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


def forget_peak_memory(device: torch.device) -> None:
    """Start measuring the peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # where the system cannot, the peak is the process's
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mib(device: torch.device) -> float:
    """Most memory since the peak was forgotten: of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
