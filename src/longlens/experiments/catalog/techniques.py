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


def _augmentation(column: str) -> Cell | None:
    """The study's augmentation, where it has one."""
    technique = TECHNIQUES[recipe_of(column)]
    return technique if technique["protocol"] == "augment" else None


def _cell(column: str, model: Callable[[str], Cell], technique: str) -> Cell | None:
    """A model in a column under "none", "denoise", "augment" or the study's "own" technique."""
    added: Cell | None = {}
    if technique == "denoise":
        added = {"protocol": "denoise"}
    elif technique == "augment":
        added = _augmentation(column)
    elif technique == "own":
        added = TECHNIQUES[recipe_of(column)]
    return None if added is None else merged(model(column), added)


def _transformer(column: str, **changes: Any) -> Cell:
    heads = {"num_heads": LOCALITY_HEADS[recipe_of(column)]}
    cell = locality(column, "softmax", mixer_options=heads, **changes)
    assert cell is not None
    return cell


def _gmlp(column: str) -> Cell:
    sizes = GMLP_LISTOPS if column == "ListOps" else {}
    cell = locality(column, "gmlp-toeplitz", feedforward="none", **sizes)
    assert cell is not None
    return cell


_learned = partial(_transformer, positions="learned")
_rotary = partial(_transformer, positions="rotary")
ROWS: dict[str, Row] = {
    "Transformer": partial(_cell, model=_learned, technique="none"),
    "Transformer + techniques": partial(_cell, model=_learned, technique="own"),
    "Transformer, rotary": partial(_cell, model=_rotary, technique="none"),
    "Transformer, rotary + denoising": partial(_cell, model=_rotary, technique="denoise"),
    "Transformer, rotary + augmentation": partial(_cell, model=_rotary, technique="augment"),
    "Transformer, rotary + techniques": partial(_cell, model=_rotary, technique="own"),
    "gMLP": partial(_cell, model=_gmlp, technique="none"),
    "gMLP + denoising": partial(_cell, model=_gmlp, technique="denoise"),
    "gMLP + augmentation": partial(_cell, model=_gmlp, technique="augment"),
    "gMLP + techniques": partial(_cell, model=_gmlp, technique="own"),
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
