"""Published numbers and hyper-parameters, as printed; None: a cell that is empty in print.

Headers of experiments show them as tables, too; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Numbers = dict[str, dict[str, float]]


def numbers(columns: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> Numbers:
    """Row to column to number; the empty end of a row may be left out.

    >>> numbers(("Text", "Image"), {"LaS": (79.28, 70.44), "S": (75.86,)})
    {'LaS': {'Text': 79.28, 'Image': 70.44}, 'S': {'Text': 75.86}}
    """
    return {
        row: {column: n for column, n in zip(columns, line, strict=False) if n is not None}
        for row, line in rows.items()
    }


def taken(table: Numbers, rows: Mapping[str, str], columns: Iterable[str]) -> Numbers:
    """Rows of another table under other labels, in those of its columns that are ``columns``.

    >>> taken(TABLE2, {"S4": "S4-v2"}, ["Image", "Pathfinder (own)"])
    {'S4': {'Image': 88.65}}
    """
    return {
        row: {column: table[theirs][column] for column in columns if column in table[theirs]}
        for row, theirs in rows.items()
    }


# Zimerman & Wolf, ICML 2024
TABLE2 = numbers(
    ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X", "Avg.", "Speed", "Mem."),
    {
        "Transformer": (36.37, 64.27, 57.46, 42.44, 71.40, None, 54.39),
        "Local Attention": (15.82, 52.98, 53.39, 41.46, 66.63, None, 46.06),
        "XFM": (37.11, 65.21, 79.14, 42.94, 71.83, None, 59.24, 1, 1),
        "Reformer": (37.27, 56.10, 53.40, 38.07, 68.50, None, 50.67, 0.8, 0.24),
        "Linformer": (35.70, 53.94, 52.27, 38.56, 76.34, None, 51.36, 5.5, 0.10),
        "BigBird": (36.05, 64.02, 59.29, 40.83, 74.87, None, 55.01, 1.1, 0.30),
        "Performer": (18.01, 65.40, 53.82, 42.77, 77.05, None, 51.41, 5.7, 0.11),
        "Luna-256": (37.98, 65.78, 79.56, 47.86, 78.55, None, 61.95, 4.9, 0.16),
        "LaS": (53.05, 79.28, 85.56, 70.44, 81.62, None, 73.99),
        "LaS-chunk": (46.21, 79.11, 83.84, 64.90, 54.61, None, 65.73),
        "S4-v1": (58.35, 76.02, 87.09, 87.26, 86.05, 88.10, 80.48),
        "S4-v2": (59.60, 86.82, 90.90, 88.65, 94.20, 96.35, 86.09),
        "SG-Conv": (61.45, 89.20, 91.11, 87.97, 95.46, 97.83, 87.17),
        "LongConvs": (62.20, 89.60, 91.30, 87.00, 93.20, 96.0, 86.60),
        "MEGA": (63.14, 90.43, 91.25, 90.44, 96.01, 97.98, 88.21, 2.9, 0.31),
        "MEGA-chunk": (58.76, 90.19, 90.97, 85.80, 94.41, 93.81, 85.66, 5.5, 0.13),
    },
)
TABLE3 = numbers(
    ("sMNIST", "pMNIST"),
    {
        "Transformer": (98.90, 97.90),
        "LaS": (99.18, 98.05),
        "LSTM": (98.90, 95.11),
        "S4": (99.63, 98.70),
    },
)
TABLE4 = numbers(
    ("ListOps", "Text", "Retrieval", "Image", "Avg."),
    {
        "ALiBi": (39.94, 66.10, 77.61, 42.24, 56.47),
        "L": (41.08, 70.65, 81.42, 59.48, 63.16),
        "S": (46.13, 75.86, 80.64, 61.38, 66.00),
        "S + ALiBi": (40.61, 66.35, 81.02, 51.68, 59.92),
        "LaS": (46.21, 79.11, 83.84, 64.90, 68.52),
    },
)
TABLE7 = numbers(
    ("Select", "CumMax", "CumSum"),
    {"Vanilla Attention": (0.971, 1.0, 1.0), "LaS": (0.783, 0.995, 0.997)},
)
TABLE8 = numbers(
    ("Text8", "Enwik8"), {"Vanilla Attention": (1.3557, 1.2885), "LaS": (1.3332, 1.2826)}
)
FIGURE3 = numbers(
    ("WikiText-103",),
    {"Vanilla Attention": (20.20,), "L": (20.34,), "S": (21.69,), "LaS": (21.87,)},
)
# Miralles-González et al. 2025 (arXiv 2501.14850): means over five tasks, without Path-X
LOCALITY_STUDY = numbers(
    ("Avg.",),
    {
        "Transformer, rotary": (64.98,),
        "Transformer, rotary + techniques": (85.69,),
        "gMLP + techniques": (85.98,),
    },
)
# Megalodon: Ma et al. 2024 (arXiv 2404.08801); the others from the tables above
BEST_OF_LRA = numbers(
    ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X", "Avg.", "Avg. (5)"),
    {
        "Megalodon": (63.79, 90.48, 91.76, 89.42, 98.13, 98.17, 88.63, 86.72),
        "MEGA": (63.14, 90.43, 91.25, 90.44, 96.01, 97.98, 88.21, 86.25),
        "LaS": (53.05, 79.28, 85.56, 70.44, 81.62, None, None, 73.99),
        "RoPE Transformer + techniques": (*[None] * 7, 85.69),
        "RoPE Transformer": (*[None] * 7, 64.98),
    },
)


@dataclass(frozen=True)
class HyperParameters:
    """A line of Table 9: how LaS was trained on a task."""

    depth: int
    dim: int
    norm: str
    prenorm: bool
    lr: float
    batch_size: int
    epochs: float
    weight_decay: float
    window: int
    bound: float


TABLE9 = {
    "ListOps": HyperParameters(6, 256, "batch", False, 1e-3, 50, 50.0, 0.01, 5, 0.001),
    "Text": HyperParameters(4, 64, "batch", True, 1e-4, 50, 20.0, 0.0, 5, 0.0001),
    "Retrieval": HyperParameters(6, 256, "batch", True, 0.002, 64, 20.0, 0.0, 5, 0.001),
    "Image": HyperParameters(6, 256, "layer", False, 1e-3, 50, 100.0, 0.01, 3, 0.001),
    "Pathfinder": HyperParameters(6, 256, "batch", True, 0.004, 64, 100.0, 0.0, 3, 0.001),
}
