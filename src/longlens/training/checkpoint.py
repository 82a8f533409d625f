"""Checkpoints: a folder of one safetensors and one JSON file, whole or not there.

``checkpoints/step-00000120/`` holds ``state.safetensors`` (weights, moments, averages, sums that
are not yet logged) and ``state.json`` (counters, what the run was started with, the sha256 of the
tensors and of itself). Everything random is a pure function of (seed, step), so no generator's
state is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longlens.files import (
    PARTIAL,
    finite,
    folder_in_place,
    remove_folder,
    seal,
    sha256_file,
    unseal,
    write_file,
)
from longlens.weights import read_tensors, write_tensors

FORMAT = 2
TENSORS, FACTS = "state.safetensors", "state.json"
MOMENTS = ("exp_avg/", "exp_avg_sq/")


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: named tensors, and facts that are plain JSON values."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    damaged: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, and why."""

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix``, by the rest of their names."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    *,
    keep: int = 2,
    small: bool = False,
) -> Path:
    """Write the checkpoint of ``step`` under ``folder`` and delete all but the last ``keep``.

    Checkpoints of later steps are deleted, too: this run went on from before them.

    Args:
        folder: the run's ``checkpoints`` folder.
        step: names the checkpoint.
        tensors: on any device.
        facts: JSON values.
        keep: how many to keep.
        small: store AdamW's moments in bfloat16.

    Returns:
        the new checkpoint's folder.
    """
    target = folder / f"step-{step:08d}"
    remove_folder(target)  # where an earlier process had reached this step already
    if small:
        tensors = {
            name: tensor.bfloat16() if name.startswith(MOMENTS) else tensor
            for name, tensor in tensors.items()
        }
    with folder_in_place(target) as temporary:
        _, sha256 = write_file(temporary / TENSORS, lambda file: write_tensors(file, tensors))
        complete = {"format": FORMAT, "step": step, "sha256": sha256, "small": small, **facts}
        write_file(temporary / FACTS, seal(finite(complete)))
    there = _list(folder)
    last = there.index(target) + 1
    for other in (*there[: max(0, last - keep)], *there[last:]):
        remove_folder(other)
    return target


def _list(folder: Path) -> list[Path]:
    """The checkpoints under ``folder``, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.glob("step-*") if not p.name.endswith(PARTIAL))


def load(folder: Path, curve_bytes: int | None = None) -> Checkpoint | None:
    """Read the newest checkpoint under ``folder`` that is whole; None if there is none at all.

    Args:
        folder: the run's ``checkpoints`` folder.
        curve_bytes: length of the curves; a checkpoint that knew more of them cannot be used.

    Raises:
        CheckpointError: there are checkpoints, but every one of them is damaged.
    """
    problems: list[str] = []
    for path in reversed(_list(folder)):
        try:
            saved = _read(path)
            known = saved.facts.get("curve_bytes", 0)
            if curve_bytes is not None and known > curve_bytes:
                raise CheckpointError(f"the curves had {known} bytes then, and have {curve_bytes}")
            return replace(saved, damaged=tuple(problems))
        except Exception as error:  # whatever is damaged, the one before may be whole
            problems.append(f"{path}: {error or type(error).__name__}")
    if problems:
        raise CheckpointError("no checkpoint can be read; " + "; ".join(problems))
    return None


def _read(path: Path) -> Checkpoint:
    try:
        facts = unseal((path / FACTS).read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{FACTS} is damaged ({error})") from None
    if facts["format"] != FORMAT:
        raise CheckpointError(f"has format {facts['format']}, this version reads {FORMAT}")
    if sha256_file(path / TENSORS) != facts["sha256"]:
        raise CheckpointError(f"{TENSORS} is damaged: its sha256 is not the one written")
    with (path / TENSORS).open("rb") as file:
        tensors = read_tensors(file)
    for name, tensor in tensors.items():
        if name.startswith(MOMENTS) and tensor.dtype == torch.bfloat16:
            tensors[name] = tensor.float()
    return Checkpoint(tensors, facts)


def layout_difference(now: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> str:
    """Say how the model's tensors differ in name or shape, or return an empty string.

    >>> layout_difference({"a": torch.zeros(2)}, {"a": torch.zeros(3)})
    'a has shape [2], was [3]'
    """
    words = [
        f"{name} has shape {list(now[name].shape)}, was {list(then[name].shape)}"
        for name in now
        if name in then and now[name].shape != then[name].shape
    ]
    words += [f"{name} is new" for name in now if name not in then]
    words += [f"{name} is gone" for name in then if name not in now]
    shown = words[:5] + ([f"and {len(words) - 5} more"] if len(words) > 5 else [])
    return "; ".join(shown)
