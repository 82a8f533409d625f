"""Which optimiser, learning rate and readout should a run have that names none?

    longlens run optimisers [--only 'LaS*'] [--seeds 3] [--workers 2] [--quick]

Three kinds of layers (LaS, softmax attention with rotary positions, a state space), each with AdamW
and with Muon at the same rates, on three small tasks: expressions, outlines of faces, and what
satellites see of a field over a year. Everything else is as `longlens train` has it. Nothing is
published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Row, cross, merged
from longlens.runs.cell import Cell

BASE: Cell = {"dim": 64, "depth": 2, "warmup": 0.05, "evaluate_batch": 256}
MODELS: dict[str, Cell] = {
    "LaS": {"mixer": "las", "mixer_options": {"num_heads": 4, "window": 5, "bound": 0.001}},
    "softmax, rotary": {
        "mixer": "softmax", "mixer_options": {"num_heads": 4}, "positions": "rotary",
        "bidirectional": True,
    },
    "S4D": {"mixer": "s4d", "bidirectional": True},
}  # fmt: skip
TASKS: dict[str, Cell] = {
    "small ListOps": {
        "task": "listops",
        "task_options": {"min_length": 10, "max_length": 60, "max_depth": 4, "max_args": 5,
                         "train": 20_000},
        "batch_size": 64, "steps": 1500, "buckets": 4, "multiple": 16,
    },
    "FaceAll": {"task": "ucr:FaceAll", "batch_size": 32, "steps": 800},
    "Crop": {"task": "ucr:Crop", "batch_size": 64, "steps": 1500},
}  # fmt: skip
RATES = {"LaS": (1e-3, 2e-3, 4e-3), "softmax, rotary": (1e-3, 2e-3), "S4D": (1e-3, 2e-3)}
OPTIMISERS = {"AdamW": "adamw", "Muon": "muon"}


def _row(*parts: Cell) -> Row:
    return lambda column: merged(BASE, TASKS[column], *parts)


ROWS: dict[str, Row] = {
    f"{model}, {label} {rate:g}": _row(MODELS[model], {"optimizer": optimizer, "lr": rate})
    for model, rates in RATES.items()
    for label, optimizer in OPTIMISERS.items()
    for rate in rates
} | {"LaS, Muon 0.002, last": _row(MODELS["LaS"], dict(optimizer="muon", lr=2e-3, pooling="last"))}

EXPERIMENT = Experiment(
    name="optimisers",
    title="AdamW and Muon on small tasks",
    source="ours; data of FaceAll and Crop: Dau et al., The UCR time series archive, 2019",
    runs=cross(ROWS, TASKS),
    cost="45 runs a seed, less than a minute each on one CPU core",
    notes=(
        "2 × 64, 4 heads. LaS is causal with P = 5 and B = 0.001, the others see both sides. The "
        "mean over positions is read out, except in the row 'last'.",
    ),
)
