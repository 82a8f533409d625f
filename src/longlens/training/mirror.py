"""Curves shown elsewhere as well: in TensorBoard, or by a module with the interface of wandb."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

PROJECT = "longlens"
LOGGERS = ("tensorboard", "wandb", "trackio")
INTERFACE = ("init", "log", "finish")


class TensorBoard:
    """Event files in the run's folder, under ``tensorboard/``."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the numbers of a step, named as in train/loss."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class Tracker:
    """A module with ``init``, ``log`` and ``finish``: wandb, trackio.

    A run that is resumed is a new one there, of the same name, that begins at a later step.
    """

    def __init__(self, module: Any, folder: Path, config: Mapping[str, Any]) -> None:
        self.module = module
        module.init(project=PROJECT, name=folder.name, config=dict(config))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send the numbers of a step."""
        self.module.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is left."""
        self.module.finish()


Mirror: TypeAlias = TensorBoard | Tracker


def open_mirror(name: str, folder: Path, config: Mapping[str, Any]) -> Mirror | None:
    """What ``--log NAME`` asks for; None for "none".

    Raises:
        ValueError: the package is missing, or has no such interface.

    >>> open_mirror("json", Path("runs/a"), {})
    Traceback (most recent call last):
    ValueError: log must be none, tensorboard or a module with init, log ... trackio), got 'json'
    """
    if name == "none":
        return None
    try:
        if name == "tensorboard":
            return TensorBoard(folder)
        module = import_module(name)
    except ImportError:
        if name in LOGGERS:
            raise ValueError(f"log={name} needs: pip install {name}") from None
        raise ValueError(
            f"log={name!r}: no such module is installed; there are {', '.join(LOGGERS)}"
        ) from None
    if not all(callable(getattr(module, part, None)) for part in INTERFACE):
        raise ValueError(
            "log must be none, tensorboard or a module with init, log and finish (wandb, trackio), "
            f"got {name!r}"
        )
    return Tracker(module, folder, config)
