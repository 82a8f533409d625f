"""Ten mixers, one small model, one recipe, the same few epochs: accuracy in per cent.

    longlens run lineup [--only 'LaS*' --only Image] [--seeds 3] [--quick]

All stand in the same model, 6 × 128 with layer norm before each part (0.5 to 1.3 M parameters), and
train by the same recipe, Muon at 2e-3 with batches of 64 and nothing added (no augmentation, no
denoising). Attention without positions is causal, since it could not tell places apart otherwise;
all others see both sides. What is published took many more epochs, each with a recipe and a size
of its own: it says where a layer can get, not what these runs should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longlens.experiments.catalog.base import Experiment, Row, cross, merged
from longlens.experiments.catalog.published import TABLE2, taken
from longlens.experiments.catalog.tasks import DATA_NOTES, TASKS
from longlens.runs.cell import Cell

BASE: Cell = {
    "dim": 128, "depth": 6, "batch_size": 64, "optimizer": "muon", "lr": 2e-3, "warmup": 0.1,
    "residual": "autocast", "evaluate_batch": 500,
}  # fmt: skip
COLUMNS: dict[str, Cell] = {
    "Image": {"epochs": 6.0},
    "ListOps": {"epochs": 2.0, "shapes": "any"},
    "Text": {"epochs": 4.0, "length": 2048, "shapes": "any"},
    "Pathfinder (own)": {"epochs": 4.0},
}
HEADS = {"num_heads": 2}
DECAY, SMOOTHING = {"bound": 0.001}, {"window": 5}


def _row(mixer: str, *options: dict[str, Any], **changes: Any) -> Callable[[str], Cell]:
    model: Cell = {"mixer": mixer, "mixer_options": merged(*options)}
    return lambda column: merged(TASKS[column], BASE, COLUMNS[column], model, changes)


ROTARY: Cell = {"positions": "rotary", "bidirectional": True}
ROWS: dict[str, Row] = {
    "softmax": _row("softmax", HEADS),
    "softmax rotary": _row("softmax", HEADS, **ROTARY),
    "L": _row("l", HEADS, DECAY),
    "S": _row("s", HEADS, SMOOTHING),
    "LaS": _row("las", HEADS, DECAY, SMOOTHING),
    "LaS-chunk": _row("las-chunk", HEADS, DECAY, SMOOTHING),
    "S4": _row("s4", bidirectional=True),
    "MEGA": _row("mega", bidirectional=True),
    "convolution 61": _row("conv", {"kernel_size": 61}),
    "gMLP": _row("gmlp-toeplitz", bidirectional=True),
}
SAME = {"LaS": "LaS", "LaS-chunk": "LaS-chunk", "S4": "S4-v2", "MEGA": "MEGA"}  # in Table 2

EXPERIMENT = Experiment(
    name="lineup",
    title="Ten mixers in one small model, a few epochs each",
    source="ours; published numbers as in Zimerman & Wolf, ICML 2024, Table 2",
    runs=cross(ROWS, COLUMNS),
    published=taken(TABLE2, SAME, COLUMNS),
    cost="40 runs a seed, half a minute to five minutes each on an H200",
    notes=(
        *DATA_NOTES[:1],
        "Epochs: " + ", ".join(f"{name} {cell['epochs']:g}" for name, cell in COLUMNS.items())
        + "; Text is cut at 2,048 bytes. P = 5, B = 0.001, 2 heads, chunks of 128.",
        "Attention without positions (all but softmax rotary) is causal, the others see both "
        "sides. A stack of six convolutions of 61 taps sees 361 positions.",
        "Published numbers took many more epochs, each with its own recipe and size (Text: 4,096 "
        "bytes). Pathfinder (own) is our own set of images and compares with nothing published.",
    ),
)  # fmt: skip
