"""What decides a run of one minute: optimiser, learning rate, input, positions, LaS.

    longlens run minutes [--only 'LaS*'] [--seeds 3] [--quick]

A small model, 6 × 128 with 2 heads, layer norm before each part. Where it says rotary, attention is
bidirectional; without positions it is causal, since it could not tell pixels apart otherwise.
Augmented is mirrored and shifted.
Nothing is published for runs this short: LaS+ (longlens run lasplus) was chosen by this table.
"""

from __future__ import annotations

from typing import Any

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.runs.cell import Cell

BASE: Cell = {
    "task": "image", "dim": 128, "depth": 6, "batch_size": 64, "epochs": 6.0, "warmup": 0.1,
    "residual": "autocast", "evaluate_batch": 500,
}  # fmt: skip
ROTARY: Cell = {"positions": "rotary", "bidirectional": True}


def _row(mixer: str, optimizer: str, lr: float, **changes: Any) -> Cell:
    model = dict(mixer=mixer, optimizer=optimizer, lr=lr, mixer_options={"num_heads": 2})
    return merged(BASE, model, changes)


THREE: Cell = {"mixer_options": {"window": 3}}
MULTI_SCALE: Cell = {"mixer_options": {"window": 3, "bound": 0.03, "spacing": "geometric"}}
LONGER: Cell = {
    "epochs": 16.0, "protocol": "augment", "augment_options": {"policy": False, "shift": 0.125},
}  # fmt: skip
FIVE: Cell = {"mixer_options": {"window": 5, "bound": 0.001}}
FIVE_MULTI_SCALE: Cell = {"mixer_options": {"window": 5, "bound": 0.03, "spacing": "geometric"}}
CELLS: dict[str, Cell] = {
    "softmax rotary, AdamW 5e-4": _row("softmax", "adamw", 5e-4, **ROTARY),
    "softmax rotary, AdamW 1e-3": _row("softmax", "adamw", 1e-3, **ROTARY),
    "softmax rotary, Muon 1e-3": _row("softmax", "muon", 1e-3, **ROTARY),
    "softmax rotary, Muon 2e-3": _row("softmax", "muon", 2e-3, **ROTARY),
    "softmax rotary, Muon 1e-3, pixels as tokens": _row(
        "softmax", "muon", 1e-3, pixels="tokens", **ROTARY
    ),
    "L rotary, Muon 1e-3": _row("l", "muon", 1e-3, **ROTARY),
    "LaS rotary, Muon 1e-3": _row("las", "muon", 1e-3, **ROTARY, **THREE),
    "LaS rotary, Muon 2e-3": _row("las", "muon", 2e-3, **ROTARY, **THREE),
    "LaS rotary, Muon 4e-3": _row("las", "muon", 4e-3, **ROTARY, **THREE),
    "LaS rotary geometric, Muon 2e-3": _row("las", "muon", 2e-3, **ROTARY, **MULTI_SCALE),
    "softmax without positions, Muon 2e-3": _row("softmax", "muon", 2e-3),
    "LaS without positions, Muon 2e-3": _row("las", "muon", 2e-3, **FIVE),
    "softmax without positions, 16 epochs, augmented": _row("softmax", "muon", 2e-3, **LONGER),
    "LaS without positions, 16 epochs, augmented": _row("las", "muon", 2e-3, **FIVE, **LONGER),
    "LaS geometric without positions, 16 epochs, augmented": _row(
        "las", "muon", 2e-3, **FIVE_MULTI_SCALE, **LONGER
    ),
}


EXPERIMENT = Experiment(
    name="minutes",
    title="Runs of a minute: what decides them",
    source="ours",
    runs=tuple(Run(label, "Image", cell) for label, cell in CELLS.items()),
    cost="15 runs a seed, half a minute to five each on an H200",
    notes=("P is 3 with rotary positions, 5 without; B is 0.001, in geometric rows 0.03.",),
)
