"""Random changes of training inputs that leave the targets true, one file a task.

>>> shuffle = build("listops", image=None)
>>> tokens = torch.tensor([[12, 3, 10, 1, 15]])  # [MAX 2 9 0 ]
>>> shuffle(tokens, None, torch.Generator().manual_seed(0)).shape
torch.Size([1, 5])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from longlens.config import check_switch
from longlens.training.augment.base import Transform
from longlens.training.augment.image import AugmentImage
from longlens.training.augment.listops import ShuffleArguments
from longlens.training.augment.pathfinder import TurnAndShift

__all__ = ["AUGMENTED", "AugmentImage", "ShuffleArguments", "Transform", "TurnAndShift", "build"]

AUGMENTED = ("image", "listops", "pathfinder", "pathx")
"""The tasks that have an augmentation."""


def build(
    task: str,
    image: tuple[int, int] | None,
    device: str | torch.device = "cpu",
    *,
    compile: bool = False,
    **options: Any,
) -> Transform:
    """Return the transformation of ``task``, on ``device``.

    Args:
        task: one of ``AUGMENTED``.
        image: rows and columns of the task's pictures (``task.spec.image``).
        device: where the batches are.
        compile: run the deterministic part on pictures through ``torch.compile``; expressions come
            in many lengths, and most of their time is sorting, which gains nothing.
        options: keyword arguments of the transformation.
    """
    kind = _kind(task)
    if task != "listops" and image is None:
        raise ValueError(f"augment needs the shape of {task}'s pictures, got image=None")
    check_options(task, options)
    shape = () if task == "listops" else (image,)
    augmentation: Transform = kind(*shape, **options).to(device)
    if compile and task != "listops":
        compiled = torch.compile(augmentation.transform, fullgraph=True)
        augmentation.transform = compiled  # type: ignore[method-assign]
    return augmentation


def check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``task`` has an augmentation with these options.

    >>> check_options("listops", {"redraw": "yes"})
    Traceback (most recent call last):
    ValueError: redraw must be true or false, got 'yes'
    """
    parameters = inspect.signature(_kind(task)).parameters
    allowed = sorted(set(parameters) - {"shape"})
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(
                f"{task}'s augmentation has no option {name!r}; its options: {', '.join(allowed)}"
            )
        check_switch(name, parameters[name].default, value)


def _kind(task: str) -> Any:
    if task not in AUGMENTED:
        raise ValueError(f"augment is for {', '.join(AUGMENTED)}; nothing is known for {task!r}")
    return {"listops": ShuffleArguments, "image": AugmentImage}.get(task, TurnAndShift)
