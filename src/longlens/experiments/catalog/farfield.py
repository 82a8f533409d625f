"""Far-field order: which mixer still tells two segments apart that lie D positions apart?

    longlens run farfield [--only 'LaS*' --only 64] [--seeds 3] [--quick]

The task asks which of two segments comes first. Every model of a receptive field below D is at
chance, whatever pools its outputs: docs/farfield.md has the proof. Two blocks of width 32, 1,500
steps; nothing is published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.runs.cell import Cell

DISTANCES = (64, 256, 1024, 4096, 16384)
ROTARY: Cell = {"positions": "rotary", "bidirectional": True}
HEADS: Cell = {"mixer_options": {"num_heads": 2}}
LAS: Cell = merged(HEADS, {"mixer": "las", "mixer_options": {"window": 5, "bound": 0.001}})
ROWS: dict[str, Cell] = {
    "convolution, field 61": {"mixer": "conv", "mixer_options": {"kernel_size": 31}},
    "softmax": merged(HEADS, {"mixer": "softmax"}),
    "softmax, rotary": merged(HEADS, ROTARY, {"mixer": "softmax"}),
    "LaS": LAS,
    "LaS, rotary": merged(LAS, ROTARY),
    "S4D": {"mixer": "s4d"},
    "LRU": {"mixer": "lru"},
    "MEGA": {"mixer": "mega"},
    "LSTM": {"mixer": "lstm"},
}


def _cell(row: Cell, distance: int) -> Cell:
    """Far segments make long examples: fewer of them, in smaller batches."""
    far = distance > 1024
    sizes = dict(train=2000, validation=200, test=500) if far else dict(train=8000)
    base: Cell = {
        "task": "far-order", "task_options": {"distance": distance, **sizes}, "dim": 32, "depth": 2,
        "batch_size": 8 if far else 32, "optimizer": "adamw", "lr": 2e-3, "steps": 1500,
        "evaluate_every": 300,
    }  # fmt: skip
    return merged(base, row)


EXPERIMENT = Experiment(
    name="farfield",
    title="What mixers solve at a distance: the order of far segments",
    source="ours",
    runs=tuple(
        Run(label, str(distance), _cell(row, distance))
        for label, row in ROWS.items()
        for distance in DISTANCES
    ),
    cost="45 runs a seed; D = 64 and 256 take a CPU minutes a run, 16,384 a GPU",
    notes=(
        "Chance is 50 %. The convolution's stack sees 61 positions, fewer than every D here.",
        "From D = 4,096 on: 2,000 training examples and batches of 8; below 8,000 and 32.",
        "softmax and LaS without rotary positions are causal: they could not tell order otherwise.",
    ),
    kind="curve",
    x_label="D, positions between the segments",
)
