"""Which optimiser, learning rate and readout should a run have that names none?

    longlens run optimisers [--only 'LaS*'] [--seeds 3] [--workers 2] [--quick]

Three kinds of layers (LaS, softmax attention with rotary positions, a state space), each with AdamW
and with Muon at the same rates, on four small tasks: bytes of reviews, expressions, recall, and
measured series. Everything else is as `longlens train` has it. Nothing is published.
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
    "Text, 256 bytes": {"task": "text", "length": 256, "batch_size": 32, "steps": 500},
    "small ListOps": {
        "task": "listops",
        "task_options": {"min_length": 10, "max_length": 60, "max_depth": 4, "max_args": 5,
                         "train": 20_000},
        "batch_size": 64, "steps": 1500, "buckets": 4, "multiple": 16,
    },
    "MQAR": {
        "task": "mqar", "task_options": {"length": 64, "train": 20_000}, "batch_size": 64,
        "steps": 1000, "pooling": "last",
    },
    "FaceAll": {"task": "ucr:FaceAll", "batch_size": 32, "steps": 800},
}  # fmt: skip
RATES = {"LaS": (1e-3, 2e-3, 4e-3), "softmax, rotary": (1e-3, 2e-3), "S4D": (1e-3, 2e-3)}
OPTIMISERS = {"AdamW": "adamw", "Muon": "muon"}


def _row(*parts: Cell) -> Row:
    return lambda column: merged(BASE, TASKS[column], *parts)


def _last(column: str) -> Cell | None:
    """LaS read out at its last position, as it is on MQAR in all rows."""
    if column == "MQAR":
        return None
    return merged(
        BASE, TASKS[column], MODELS["LaS"], {"optimizer": "muon", "lr": 2e-3, "pooling": "last"}
    )


ROWS: dict[str, Row] = {
    f"{model}, {label} {rate:g}": _row(MODELS[model], {"optimizer": optimizer, "lr": rate})
    for model, rates in RATES.items()
    for label, optimizer in OPTIMISERS.items()
    for rate in rates
} | {"LaS, Muon 0.002, last": _last}

EXPERIMENT = Experiment(
    name="optimisers",
    title="AdamW and Muon on small tasks",
    source="ours; data of FaceAll: Dau et al., The UCR time series archive, 2019",
    runs=cross(ROWS, TASKS),
    cost="59 runs a seed, about a minute each on one CPU core",
    notes=(
        "2 × 64, 4 heads. LaS is causal with P = 5 and B = 0.001, the others see both sides. The "
        "mean over positions is read out, except on MQAR and in the row 'last'.",
    ),
)
