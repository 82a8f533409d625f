"""Checkpoints: a folder of one safetensors and one JSON file, whole or not there.

``checkpoints/step-00000120/`` holds ``state.safetensors`` (weights, moments, averages, sums that
are not yet logged) and ``state.json`` (counters, what the run was started with, the sha256 of the
tensors). Everything random is a pure function of (seed, step), so no generator's state is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from longlens.training.files import (
    PARTIAL,
    folder_in_place,
    remove_folder,
    to_json,
    write_file,
)
from longlens.weights import read_tensors, write_tensors

FORMAT = 1
TENSORS, FACTS = "state.safetensors", "state.json"
MOMENTS = ("exp_avg/", "exp_avg_sq/")


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: named tensors, and facts that are plain JSON values."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self.file.write(data)


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
    if target.exists():  # written just before the process ended, and reached again
        remove_folder(target)
    if small:
        tensors = {
            name: tensor.bfloat16() if name.startswith(MOMENTS) else tensor
            for name, tensor in tensors.items()
        }
    with folder_in_place(target) as temporary:
        with (temporary / TENSORS).open("wb") as file:
            hashing = _Hashing(file)
            write_tensors(hashing, tensors)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        complete = {
            "format": FORMAT, "step": step, "sha256": hashing.hash.hexdigest(), "small": small,
        } | dict(facts)  # fmt: skip
        write_file(temporary / FACTS, to_json(complete))
    for old in _found(folder)[:-keep]:
        remove_folder(old)
    return target


def _found(folder: Path) -> list[Path]:
    """The checkpoints under ``folder``, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.glob("step-*") if not p.name.endswith(PARTIAL))


def load(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint under ``folder`` that is whole; None if there is none at all.

    Raises:
        CheckpointError: there are checkpoints, but every one of them is damaged.
    """
    problems = []
    for path in reversed(_found(folder)):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise CheckpointError("no checkpoint can be read; " + "; ".join(problems))
    return None


def _read(path: Path) -> Checkpoint:
    facts = json.loads((path / FACTS).read_text())
    if facts["format"] != FORMAT:
        raise CheckpointError(f"has format {facts['format']}, this version reads {FORMAT}")
    with (path / TENSORS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != facts["sha256"]:
            raise CheckpointError(f"{TENSORS} is damaged: its sha256 is not the one written")
        file.seek(0)
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
