"""A trained model on inputs whose order was destroyed: what order does it use?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from longlens.lens.audit.diagnostics import WINDOWS
from longlens.lens.audit.shuffle import KINDS, shuffled_batch
from longlens.models.build import load_model
from longlens.models.pretrained import WEIGHTS
from longlens.tasks import Task
from longlens.tasks.batches import Batches
from longlens.training.options import TrainOptions

EXAMPLES = 2000


def shuffled_accuracy(
    folder: Path, task: Task, options: TrainOptions, few: bool = False
) -> list[dict[str, Any]]:
    """Test accuracy of a run's model by the window in, or of, which order is destroyed.

    Args:
        folder: of a finished run.
        task: the data that it was trained on.
        options: of the run.
        few: fewer examples and windows.

    Returns:
        rows with ``kind`` (None: as they are), ``window`` and ``test``.
    """
    if not (folder / WEIGHTS).exists():
        raise ValueError(f"{folder} has no weights ({WEIGHTS}): the run is not finished")
    if "scratchpad" in options.protocols:
        raise ValueError(f"{folder} writes values down as it reads: in another order it has none")
    cuda = options.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    model = load_model(folder).to(device).eval()
    limit = min(len(task["test"]), 500 if few else EXAMPLES)
    batches = Batches(
        task["test"], options.evaluate_batch or options.batch_size, shuffle=False, limit=limit,
        length=options.length, buckets=options.buckets, multiple=options.multiple, device=device,
    )  # fmt: skip
    windows = [w for w in (WINDOWS[1::2] if few else WINDOWS) if w < max(batches.shapes)]
    settings: list[tuple[str | None, int]] = [(None, 1)]
    settings += [(kind, window) for kind in KINDS for window in windows]
    right = dict.fromkeys(settings, 0)
    seen = 0
    with torch.no_grad():
        for number, batch in enumerate(batches.epoch(0)):
            seen += len(batch.targets)
            for kind, window in settings:
                inputs = batch.inputs
                if kind is not None:
                    rng = torch.Generator().manual_seed(number * 65536 + window)
                    inputs = shuffled_batch(inputs, batch.mask, window, kind, rng)
                outputs = model(inputs, batch.mask)
                right[kind, window] += int((outputs.argmax(-1) == batch.targets).sum())
    return [
        {"kind": kind, "window": window, "test": count / seen}
        for (kind, window), count in right.items()
    ]
