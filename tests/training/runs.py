"""Small runs that tests share, and what "the same result" means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from longlens.runs.record import Record, read_record
from longlens.training.log import read_curves
from longlens.training.options import TrainOptions

WATCHES = ("seconds", "tokens_per_second")  # of a line of the curves
# Records of two equal runs differ in these alone.
TIMES = ("started", "ended", "events", "speed", "train_seconds", "wall_seconds", "peak_memory_mib")


def tiny(folder: Path, **changes: Any) -> TrainOptions:
    """A run of a second or so: dropout, an average of the weights, several padded lengths."""
    values: dict[str, Any] = dict(
        task="listops",
        task_options={
            "train": 60,
            "validation": 12,
            "test": 12,
            "min_length": 8,
            "max_length": 120,
            "max_depth": 4,
        },
        length=96,
        multiple=32,
        mixer="las",
        mixer_options={"num_heads": 2},
        dim=8,
        depth=1,
        dropout=0.1,
        ema=0.9,
        steps=24,
        batch_size=6,
        log_every=3,
        evaluate_every=8,
        checkpoint_seconds=0.0,
        device="cpu",
        progress=False,
        runs=str(folder / "runs"),
        root=str(folder / "data"),
    )
    return TrainOptions(**(values | changes))


def without_times(record: Record) -> Record:
    """What two equal runs share."""
    blank = Record(status="")
    return replace(record, **{name: getattr(blank, name) for name in TIMES})


def outcome(folder: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on when it was cut off."""
    curves = [
        {key: value for key, value in line.items() if key not in WATCHES}
        for line in read_curves(folder)
    ]
    record = without_times(read_record(folder))
    options = {
        key: value
        for key, value in record.options.items()
        if key not in ("runs", "name", "checkpoint_seconds")
    }
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "config": json.loads((folder / "config.json").read_text()),
        "curves": curves,
        "record": replace(record, name="", options=options),
    }
