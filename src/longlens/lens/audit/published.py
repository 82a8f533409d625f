"""Published ratios that an audit's curve can be laid beside."""

from __future__ import annotations

from typing import Any

SOURCE = "Miralles-González et al. 2025 (arXiv 2501.14850): convolution of kernel 61 against MEGA"
# Accuracy of a convolution of kernel 61 as a share of MEGA's.
RATIOS = {"image": 0.925, "pathfinder": 0.753, "text": 0.945, "retrieval": 0.976, "listops": 0.835}


def published(task: str) -> dict[str, Any] | None:
    """The published ratio of a task's bounded to its global model, or None.

    >>> published("listops")["ratio"]
    0.835
    """
    if task not in RATIOS:
        return None
    return {"kernel": 61, "ratio": RATIOS[task], "source": SOURCE}
