"""Table 3: MNIST pixel by pixel (sMNIST), and in a fixed random order (pMNIST); per cent.

    longlens run table3 [--only LaS] [--seeds 3] [--budget 8m] [--quick]

| model | sMNIST | pMNIST |
| --- | --- | --- |
| Transformer | 98.90 | 97.90 |
| LaS | 99.18 | 98.05 |
| LSTM | 98.90 | 95.11 |
| S4 | 99.63 | 98.70 |
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.published import TABLE3
from longlens.experiments.catalog.recipes import s4
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.runs.cell import Cell

COLUMNS = ("sMNIST", "pMNIST")


# Cells of LRA's Image, which MNIST takes the place of.
ROWS: dict[str, Cell] = {
    "Transformer": attention("Image", "softmax", uses=(), positions="learned"),
    "LaS": attention("Image", "las"),
    "LSTM": attention("Image", "lstm", uses=(), depth=1, feedforward="none", pooling="last"),
    "S4": s4("Image"),
}

EXPERIMENT = Experiment(
    name="table3",
    title="Sequential and permuted MNIST",
    source="Zimerman & Wolf, ICML 2024, Table 3",
    runs=tuple(
        Run(row, column, merged(cell, {"task": column.lower()}))
        for row, cell in ROWS.items()
        for column in COLUMNS
    ),
    published=TABLE3,
    cost="8 runs a seed",
    notes=(
        *NOTES,
        "Hyper-parameters for MNIST are not published: Table 9's line for Image, S4's for S4.",
        "All published numbers but LaS's are copied from Gu et al. 2021 there. The LSTM here is "
        "one layer of 256, read at its last step.",
        "pMNIST's order of pixels is our own (seed 0); the published one is not stated.",
    ),
    published_seeds=3,
)
