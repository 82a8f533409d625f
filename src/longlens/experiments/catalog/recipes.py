"""Hyper-parameters that other publications state in their repositories, for rows beside LaS.

The locality study: Miralles-González et al. 2025 (arXiv 2501.14850). S4: Gu et al. 2021 (arXiv
2111.00396). MEGA: Ma et al. 2022 (arXiv 2209.10655); widths as in the locality study, layer norm
where it has scale norm. A column that a publication has no recipe for is left out.
"""

from __future__ import annotations

from typing import Any

from longlens.experiments.catalog.base import merged
from longlens.experiments.catalog.tasks import TASKS, recipe_of
from longlens.experiments.cells import Cell

# Bidirectional encoders; AdamW 0.9/0.98, 5 % warm-up, cosine: the defaults of longlens train.
LOCALITY: dict[str, Cell] = {
    "ListOps": dict(depth=6, dim=80, batch_size=64, lr=1e-3, weight_decay=0.01, epochs=80.0),
    "Text": dict(depth=4, dim=128, dropout=0.1, length=2048, batch_size=32, lr=4e-3,
                 weight_decay=0.01, epochs=60.0),
    "Retrieval": dict(depth=6, dim=128, dropout=0.1, length=1024, batch_size=64, lr=1e-3,
                      weight_decay=0.01, epochs=40.0),
    "Image": dict(depth=8, dim=160, batch_size=32, lr=5e-4, weight_decay=0.0, epochs=200.0),
    "Pathfinder": dict(depth=6, dim=128, batch_size=128, lr=1e-3, weight_decay=0.01, epochs=100.0),
}  # fmt: skip
LOCALITY_HEADS = {"ListOps": 4, "Text": 8, "Retrieval": 4, "Image": 4, "Pathfinder": 4}
# What the study adds to training; mixing easier sets in is part of Pathfinder's augmentation.
TECHNIQUES: dict[str, Cell] = {
    "ListOps": dict(protocol="augment"),
    "Text": dict(protocol="denoise"),
    "Retrieval": dict(protocol="denoise"),
    "Image": dict(protocol="augment"),
    "Pathfinder": dict(protocol="augment", mix_easier=True),
}
LOCALITY_NOTES = (
    "The study reads Image through a learned softmax over positions; here the mean is taken.",
    "Image is augmented after the conversion to gray (docs/augmentation.md), the study's before.",
)

_S4_BASE: Cell = dict(norm="batch", feedforward="none", warmup=0.1)
_S4: dict[str, Cell] = {
    "ListOps": dict(depth=6, dim=256, prenorm=False, mixer_options={"state": 4}, batch_size=32,
                    lr=0.01, weight_decay=0.05, epochs=40.0),
    "Text": dict(depth=6, dim=256, prenorm=True, length=4096, batch_size=16, lr=0.01, epochs=32.0),
    "Retrieval": dict(depth=6, dim=256, prenorm=True, batch_size=64, lr=0.01, epochs=20.0),
    "Image": dict(depth=6, dim=512, prenorm=False, mixer_options={"state": 64}, dropout=0.1,
                  tied_dropout=True, batch_size=50, lr=0.01, epochs=200.0),
    "Pathfinder": dict(depth=6, dim=256, prenorm=True, batch_size=64, lr=0.004, epochs=200.0),
    "Path-X": dict(depth=6, dim=256, prenorm=True, mixer_options={"dt_min": 1e-4}, batch_size=16,
                   lr=0.001, epochs=50.0),
}  # fmt: skip

_MEGA_BASE: Cell = dict(mixer="mega", bidirectional=True, schedule="linear",
                  mixer_options={"averages": 16})  # fmt: skip
_MEGA: dict[str, Cell] = {
    "ListOps": dict(depth=6, dim=80, batch_size=64, lr=1e-3, steps=90_000, warmup=3000.0,
                    weight_decay=0.01, dropout=0.1),
    "Text": dict(depth=4, dim=128, batch_size=50, lr=4e-3, steps=25_000, warmup=10_000.0,
                 length=4096),
    "Retrieval": dict(depth=6, dim=128, batch_size=64, lr=3e-3, steps=92_000),
    "Image": dict(depth=8, dim=160, batch_size=50, lr=0.01, steps=180_000, warmup=9000.0,
                  weight_decay=0.02, norm="batch", mixer_options={"attention": "laplace"}),
    "Pathfinder": dict(depth=6, dim=128, batch_size=128, lr=0.01, steps=250_000,
                       warmup=50_000.0),
    "Path-X": dict(depth=4, dim=64, batch_size=128, lr=0.01, steps=125_000),
}  # fmt: skip


def locality(column: str, mixer: str, technique: bool = False, **changes: Any) -> Cell | None:
    """A cell of the locality study: a bidirectional encoder, with or without its technique."""
    line = recipe_of(column)
    if line not in LOCALITY:
        return None
    added = TECHNIQUES[line] if technique else {}
    own = {"mixer": mixer, "bidirectional": True}
    return merged(TASKS[column], LOCALITY[line], own, added, changes)


def s4(column: str, mixer: str = "s4", **changes: Any) -> Cell:
    """A cell of S4's second version, or of a convolution in its place."""
    cell = merged(TASKS[column], _S4_BASE, _S4[recipe_of(column)], {"mixer": mixer})
    if not mixer.startswith("s4"):
        cell.pop("mixer_options", None)  # size and step of a state
    return merged(cell, changes)


def mega(column: str, **changes: Any) -> Cell:
    """A cell of MEGA."""
    return merged(TASKS[column], _MEGA_BASE, _MEGA[recipe_of(column)], changes)
