"""Random changes of training inputs that leave the targets true, one file a task.

>>> shuffle = build("listops", image=None)
>>> tokens = torch.tensor([[12, 3, 10, 1, 15]])  # [MAX 2 9 0 ]
>>> shuffle(tokens, None, torch.Generator().manual_seed(0)).shape
torch.Size([1, 5])
"""

from __future__ import annotations

import torch

from longlens.training.augment.base import Transform
from longlens.training.augment.image import AugmentImage
from longlens.training.augment.listops import ShuffleArguments
from longlens.training.augment.pathfinder import TurnAndShift

__all__ = ["AUGMENTED", "AugmentImage", "ShuffleArguments", "Transform", "TurnAndShift", "build"]

AUGMENTED = ("image", "listops", "pathfinder", "pathx")


def build(
    task: str,
    image: tuple[int, int] | None,
    device: str | torch.device = "cpu",
    *,
    compile: bool = False,
) -> Transform:
    """Return the transformation of ``task``, on ``device``.

    Args:
        task: one of ``AUGMENTED``.
        image: rows and columns of the task's pictures (``task.spec.image``).
        device: where the batches are.
        compile: run the deterministic part through ``torch.compile`` (one graph a shape).

    """
    made: Transform
    if task == "listops":
        made = ShuffleArguments()
    elif task not in AUGMENTED:
        raise ValueError(f"augment is for {', '.join(AUGMENTED)}; nothing is known for {task!r}")
    elif image is None:
        raise ValueError(f"augment needs the shape of {task}'s pictures, got image=None")
    else:
        made = AugmentImage(image) if task == "image" else TurnAndShift(image)
    made = made.to(device)
    if compile:
        made.transform = torch.compile(made.transform, fullgraph=True)  # type: ignore[method-assign]
    return made
