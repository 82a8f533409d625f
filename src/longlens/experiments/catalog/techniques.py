"""Training techniques on LRA: rotary positions, denoising and augmentation, for two models.

    longlens run techniques [--only 'Transformer*' --only Image] [--budget 8m] [--quick]

| model | Avg. |
| --- | --- |
| Transformer, rotary | 64.98 |
| Transformer, rotary + techniques | 85.69 |
| gMLP + techniques | 85.98 |

The means are over five tasks, without Path-X; the study's numbers for each task are not at hand.
"Techniques" are the study's own choice for each task: arguments shuffled on ListOps, denoising on
Text and Retrieval, augmentation on Image, augmentation with easier sets mixed in on Pathfinder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from longlens.experiments.catalog.base import Experiment, Row, cross, merged
from longlens.experiments.catalog.published import LOCALITY_STUDY
from longlens.experiments.catalog.recipes import (
    LOCALITY,
    LOCALITY_HEADS,
    LOCALITY_NOTES,
    TECHNIQUES,
    locality,
)
from longlens.experiments.catalog.tasks import DATA_NOTES, recipe_of
from longlens.runs.cell import Cell

COLUMNS = (*LOCALITY, "Retrieval (PeerRead)", "Pathfinder (own)")
GMLP_LISTOPS: Cell = dict(depth=8, dim=128, batch_size=50, weight_decay=0.05, epochs=60.0)


def _technique(column: str, name: str) -> Cell | None:
    """What "denoising", "augmentation" or the study's own "techniques" add; None: it has none."""
    chosen = TECHNIQUES[recipe_of(column)]
    if name == "augmentation":
        return chosen if chosen["protocol"] == "augment" else None
    return {"": {}, "denoising": {"protocol": "denoise"}, "techniques": chosen}[name]


def transformer(column: str, positions: str, **changes: Any) -> Cell:
    """The study's Transformer."""
    heads = {"num_heads": LOCALITY_HEADS[recipe_of(column)]}
    return locality(column, "softmax", mixer_options=heads, positions=positions, **changes)


def gmlp(column: str, **changes: Any) -> Cell:
    """Toeplitz gMLP."""
    sizes = GMLP_LISTOPS if column == "ListOps" else {}
    return locality(column, "gmlp-toeplitz", feedforward="none", **sizes, **changes)


def _row(model: Callable[[str], Cell], technique: str = "") -> Row:
    def cell(column: str) -> Cell | None:
        added = _technique(column, technique)
        return None if added is None else merged(model(column), added)

    return cell


_learned, _rotary = (partial(transformer, positions=name) for name in ("learned", "rotary"))
_ALL = ("", "denoising", "augmentation", "techniques")
ROWS: dict[str, Row] = {
    f"{label} + {name}".removesuffix(" + "): _row(model, name)
    for label, model, names in (
        ("Transformer", _learned, ("", "techniques")),
        ("Transformer, rotary", _rotary, _ALL),
        ("gMLP", gmlp, _ALL),
    )
    for name in names
}

EXPERIMENT = Experiment(
    name="techniques",
    title="Rotary positions, denoising and augmentation, for Transformer and gMLP",
    source="Miralles-González et al. 2025 (arXiv 2501.14850)",
    runs=cross(ROWS, COLUMNS),
    published=LOCALITY_STUDY,
    cost="64 runs a seed; 8.5 GPU-hours with --budget 8m",
    notes=(
        *DATA_NOTES,
        *LOCALITY_NOTES,
        "Published numbers are means over five tasks (Avg.), without Path-X.",
        "gMLP is the Toeplitz form with 4 channels; its recipe is known for ListOps, elsewhere "
        "the Transformer's is used.",
    ),
)
