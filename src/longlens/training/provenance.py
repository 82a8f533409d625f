"""Where a number comes from: code, versions and hardware, for every record and benchmark row."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from longlens._version import __version__


def provenance(device: str | torch.device = "cpu") -> dict[str, str]:
    """Versions, hardware and the code's commit, as flat strings.

    >>> sorted(provenance())
    ['commit', 'hardware', 'longlens', 'python', 'torch']
    """
    return {
        "longlens": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hardware": hardware(device),
    }


def commit() -> str:
    """The checkout's commit, with "-dirty" where files differ from it.

    The environment variable LONGLENS_COMMIT, if set, overrides it: for copies of a checkout, where
    git cannot tell. Outside of git and without it: "unknown".
    """
    if "LONGLENS_COMMIT" in os.environ:
        return os.environ["LONGLENS_COMMIT"]
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "-s") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def is_clean(origin: Mapping[str, Any]) -> bool:
    """Whether the code was that of its commit, by what :func:`provenance` returned.

    >>> is_clean({"commit": "0123456789ab"}), is_clean({"commit": "0123456789ab-dirty"})
    (True, False)
    """
    return not str(origin.get("commit")).endswith("-dirty")


def hardware(device: str | torch.device) -> str:
    """The name of the device, and how much of it torch uses."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {torch.get_num_threads()} threads"
