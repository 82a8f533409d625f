"""A split as a data set of torch: for `DataLoader`, Lightning, Accelerate and other loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from longlens.tasks.batches import Batch, Batches
from longlens.tasks.data import Split


class TaskDataset(Dataset[dict[str, Any]]):
    """The examples of a split as tensors, and how to make a batch of them.

    An example is a dict: `inputs` (L,) or (L, C), of a pair (2, L) with its `mask`; `targets`; its
    `index`; and the extras of the task. `collate` pads examples to the longest and gives the
    `Batch` that `Batches` gives.

    Args:
        split: for example ``task["train"]``.
        length: window of a next-token split (required there, windows follow each other);
            elsewhere longer examples are cut to this many positions.

    >>> import tempfile, longlens.tasks as tasks
    >>> from torch.utils.data import DataLoader
    >>> sizes = dict(train=10, validation=4, test=4)
    >>> task = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)
    >>> train = TaskDataset(task["train"], length=600)
    >>> loader = DataLoader(train, batch_size=5, shuffle=True, collate_fn=train.collate)
    >>> [batch.inputs.shape[0] for batch in loader]
    [5, 5]

    """

    def __init__(self, split: Split, *, length: int | None = None) -> None:
        self.split = split
        self._batches = Batches(split, 1, length=length, shuffle=False, resident=False)

    def __len__(self) -> int:
        return len(self._batches.members)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        index %= len(self)
        batch = self._batches.examples(np.array([index]))
        found: dict[str, Any] = dict(inputs=batch.inputs[0], targets=batch.targets[0], index=index)
        if self.split.spec.pair:
            real = torch.ones_like(found["inputs"], dtype=torch.bool)
            found["mask"] = real if batch.mask is None else batch.mask[0]
        elif batch.mask is not None:  # the last window of a stream
            found["inputs"], found["targets"] = (
                found[key][: batch.tokens] for key in ("inputs", "targets")
            )
        return found | {key: value[0] for key, value in batch.extras.items()}

    def collate(self, examples: list[dict[str, Any]]) -> Batch:
        """A batch of examples, for the `collate_fn` of a `DataLoader`."""
        spec, axis = self.split.spec, int(self.split.spec.pair)
        rows = [example["inputs"] for example in examples]
        pad = 0 if spec.inputs == "floats" else spec.pad_id or 0
        inputs = _pad(rows, axis, pad)
        real = [
            example.get("mask", torch.ones(row.shape[: axis + 1], dtype=torch.bool))
            for example, row in zip(examples, rows, strict=True)
        ]
        mask = _pad(real, axis, 0)
        targets = [example["targets"] for example in examples]
        known = {"inputs", "targets", "index", "mask"}
        return Batch(
            inputs=inputs,
            targets=_pad(targets, 0, 0) if spec.kind == "next_token" else torch.stack(targets),
            mask=None if mask.all() else mask,
            index=torch.tensor([example["index"] for example in examples]),
            tokens=int(mask.sum()),
            padded_tokens=mask.numel(),
            extras={
                key: torch.stack([torch.as_tensor(example[key]) for example in examples])
                for key in examples[0].keys() - known
            },
        )


def _pad(rows: list[Tensor], axis: int, value: float) -> Tensor:
    """Stack rows of different lengths along their `axis`."""
    joined = pad_sequence([row.movedim(axis, 0) for row in rows], True, value)
    return joined.movedim(1, axis + 1)
