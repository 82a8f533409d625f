"""Hyper-parameters that other publications state in their repositories, for rows beside LaS.

The locality study: Miralles-González et al. 2025 (arXiv 2501.14850). S4: Gu et al. 2021 (arXiv
2111.00396). MEGA: Ma et al. 2022 (arXiv 2209.10655). Each function's docstring has the published
values and where they stand; a test compares the cells with them, value by value.
"""

from __future__ import annotations

from typing import Any

from longlens.experiments.catalog.base import merged
from longlens.experiments.catalog.tasks import TASKS, recipe_of
from longlens.runs.cell import Cell

# Bidirectional encoders; 0.9/0.98, 5 % warm-up and cosine are the defaults of longlens train.
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
    "The study's recipes are value by value in recipes.locality. What remains different: it embeds "
    "Image's pixels as tokens and reads them out through a learned softmax over positions; here "
    "pixels are numbers and the mean is taken.",
    "Image is augmented after the conversion to gray (docs/augmentation.md), the study's before. "
    "On ListOps the study also replaces deep subtrees by their values at first; here arguments "
    "are shuffled and no more.",
)

# All weights are decayed but those of the state space, nothing is clipped, AdamW has torch's betas.
_S4_BASE: Cell = dict(norm="batch", feedforward="none", optimizer="adamw", beta2=0.999,
                      schedule="cosine", warmup=0.1, clip=0.0, weight_decay=0.05,
                      decay_vectors=True)  # fmt: skip
_SHARED: Cell = dict(state=4, ssms=1, dt_lr=None)
_S4: dict[str, Cell] = {
    "ListOps": dict(depth=6, dim=256, prenorm=False, mixer_options=_SHARED, batch_size=32, lr=0.01,
                    epochs=40.0),
    "Text": dict(depth=6, dim=256, prenorm=True, mixer_options=_SHARED, length=4096, batch_size=16,
                 lr=0.01, epochs=32.0),
    "Retrieval": dict(depth=6, dim=256, prenorm=True, mixer_options=_SHARED, batch_size=64,
                      lr=0.01, epochs=20.0),
    "Image": dict(depth=6, dim=512, prenorm=False, mixer_options={"state": 64, "ssms": 1},
                  dropout=0.1, tied_dropout=True, batch_size=50, lr=0.01, epochs=200.0),
    "Pathfinder": dict(depth=6, dim=256, prenorm=True, mixer_options={"state": 64}, batch_size=64,
                       lr=0.004, epochs=200.0),
    "Path-X": dict(depth=6, dim=256, prenorm=True, mixer_options={"state": 64, "dt_min": 1e-4},
                   batch_size=16, lr=0.001, epochs=50.0),
}  # fmt: skip
S4_NOTES = (
    "S4 by its repository's LRA configurations (value by value in recipes.s4). What remains "
    "different: Text by bytes instead of characters, 22,500 of its reviews train; batch statistics "
    "leave out padding; dropout (Image) is after the embedding and each block instead of inside "
    "the layer as well. S4-v1, SG-Conv and LongConvs train by the same recipe, not by their own.",
)

_MEGA_BASE: Cell = dict(mixer="mega", bidirectional=True, feedforward="silu", expansion=2.0,
                        optimizer="adamw", schedule="linear", beta2=0.98, clip=1.0,
                        decay_vectors=True,
                        mixer_options={"averages": 16, "relative_bias": "simple"})  # fmt: skip
_AFTER: Cell = dict(prenorm=False, dropout=0.1)
_BEFORE: Cell = dict(prenorm=True, dropout=0.0, norm="batch")


def _mega_mixer(value_dim: int, query_dim: int, attention: str) -> Cell:
    return {"value_dim": value_dim, "query_dim": query_dim, "attention": attention}


_MEGA: dict[str, Cell] = {
    "ListOps": dict(**_AFTER, norm="layer", depth=6, dim=80, batch_size=64, lr=1e-3, steps=90_000,
                    warmup=3000.0, weight_decay=0.01,
                    mixer_options=_mega_mixer(160, 64, "softmax")),
    "Text": dict(**_AFTER, norm="scale", depth=4, dim=128, batch_size=50, lr=4e-3, steps=25_000,
                 warmup=10_000.0, weight_decay=0.01, length=4000,
                 mixer_options=_mega_mixer(256, 64, "softmax")),
    "Retrieval": dict(**_AFTER, norm="scale", depth=6, dim=128, batch_size=64, lr=3e-3,
                      steps=91_960, warmup=10_000.0, weight_decay=0.04,
                      mixer_options=_mega_mixer(256, 64, "softmax")),
    "Image": dict(**_BEFORE, depth=8, dim=160, batch_size=50, lr=0.01, steps=180_000,
                  warmup=9000.0, weight_decay=0.02, mixer_options=_mega_mixer(320, 96, "laplace")),
    "Pathfinder": dict(**_BEFORE, depth=6, dim=128, batch_size=128, lr=0.01, steps=250_000,
                       warmup=50_000.0, weight_decay=0.01,
                       mixer_options=_mega_mixer(256, 64, "laplace")),
    "Path-X": dict(**_BEFORE, depth=4, dim=64, batch_size=128, lr=0.01, steps=125_000,
                   warmup=25_000.0, weight_decay=0.01,
                   mixer_options=_mega_mixer(128, 32, "laplace")),
}  # fmt: skip
MEGA_NOTES = (
    "MEGA by its repository's LRA commands (value by value in recipes.mega). What remains "
    "different: 22,500 of Text's reviews train; pixels lie between -2 and 2 (Pathfinder's: -1 and "
    "1 there); dropout is after each half of a block instead of inside the layer; the classifier "
    "is one linear map (theirs has a hidden layer); Retrieval compares [a, b, a·b, a-b] (theirs "
    "[a, b]); Path-X warms up linearly (theirs by a square).",
)


def locality(column: str, mixer: str, technique: bool = False, **changes: Any) -> Cell:
    """A cell of the locality study: a bidirectional encoder, with or without its technique.

    Source: configs/TASK/rotary_transformer_*.json of github.com/pablomiralles22/long-transformers.
    There are several versions, which differ in the heads of Image (4, 16) and Pathfinder (4, 8) and
    in Image's weight decay (0, 0.01). All: a feed-forward part of twice the width, AdamW 0.9/0.98,
    cosine decay.

    | task | layers | width | heads | dropout | length | batch | lr | wd | epochs | warm-up | adds |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | ListOps | 6 | 80 | 4 | 0 | | 64 | 0.001 | 0.01 | 80 | 0.05 | augment |
    | Text | 4 | 128 | 8 | 0.1 | 2048 | 32 | 0.004 | 0.01 | 60 | 0.05 | denoise |
    | Retrieval | 6 | 128 | 4 | 0.1 | 1024 | 64 | 0.001 | 0.01 | 40 | 0.05 | denoise |
    | Image | 8 | 160 | 4 | 0 | | 32 | 0.0005 | 0 | 200 | 0.05 | augment |
    | Pathfinder | 6 | 128 | 4 | 0 | | 128 | 0.001 | 0.01 | 100 | 0.05 | augment |
    """
    line = recipe_of(column)
    added = TECHNIQUES[line] if technique else {}
    model = {"mixer": mixer, "bidirectional": True, "optimizer": "adamw"}
    return merged(TASKS[column], LOCALITY[line], model, added, changes)


def s4(column: str, mixer: str = "s4", **changes: Any) -> Cell:
    """A cell of S4's second version, or of a convolution in its place.

    Source: the configurations s4-{listops,imdb,aan,cifar,pathfinder,pathx} under
    configs/experiment/lra of github.com/state-spaces/s4, with the pipelines that they name. "lr dt"
    is the step sizes' own learning rate (empty: the model's), "lr A" that of A and B; none of them
    is decayed.

    | task | layers | width | prenorm | norm | state | SSMs | dt min | lr dt | lr A | dropout | wd |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | ListOps | 6 | 256 | no | batch | 4 | 1 | 0.001 | | 0.001 | 0 | 0.05 |
    | Text | 6 | 256 | yes | batch | 4 | 1 | 0.001 | | 0.001 | 0 | 0.05 |
    | Retrieval | 6 | 256 | yes | batch | 4 | 1 | 0.001 | | 0.001 | 0 | 0.05 |
    | Image | 6 | 512 | no | batch | 64 | 1 | 0.001 | 0.001 | 0.001 | 0.1 | 0.05 |
    | Pathfinder | 6 | 256 | yes | batch | 64 | 256 | 0.001 | 0.001 | 0.001 | 0 | 0.05 |
    | Path-X | 6 | 256 | yes | batch | 64 | 256 | 0.0001 | 0.001 | 0.001 | 0 | 0.05 |

    | task | lr | batch | epochs | warm-up | schedule | beta2 | clip | read-out | length |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | ListOps | 0.01 | 32 | 40 | 0.1 | cosine | 0.999 | 0 | mean | |
    | Text | 0.01 | 16 | 32 | 0.1 | cosine | 0.999 | 0 | mean | 4096 |
    | Retrieval | 0.01 | 64 | 20 | 0.1 | cosine | 0.999 | 0 | mean | |
    | Image | 0.01 | 50 | 200 | 0.1 | cosine | 0.999 | 0 | mean | |
    | Pathfinder | 0.004 | 64 | 200 | 0.1 | cosine | 0.999 | 0 | mean | |
    | Path-X | 0.001 | 16 | 50 | 0.1 | cosine | 0.999 | 0 | mean | |
    """
    cell = merged(TASKS[column], _S4_BASE, _S4[recipe_of(column)], {"mixer": mixer})
    if not mixer.startswith("s4"):
        cell.pop("mixer_options", None)  # size and step of a state
    return merged(cell, changes)


def mega(column: str, mixer: str = "mega", **changes: Any) -> Cell:
    """A cell of MEGA, or of MEGA in chunks of 128 (Path-X: 4,096).

    Source: examples/mega/README.lra.md of github.com/facebookresearch/mega and the architectures
    mega_lra_* that it names (fairseq/models/lra/model.py). All: 16 averages, the simple relative
    bias, SiLU, mean pooling, Adam 0.9/0.98, decoupled decay of every weight, gradients clipped at
    1, linear decay to 0.

    | task | layers | width | v | z | feed-forward | norm | prenorm | attention | dropout | wd |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | ListOps | 6 | 80 | 160 | 64 | 160 | layer | no | softmax | 0.1 | 0.01 |
    | Text | 4 | 128 | 256 | 64 | 256 | scale | no | softmax | 0.1 | 0.01 |
    | Retrieval | 6 | 128 | 256 | 64 | 256 | scale | no | softmax | 0.1 | 0.04 |
    | Image | 8 | 160 | 320 | 96 | 320 | batch | yes | laplace | 0 | 0.02 |
    | Pathfinder | 6 | 128 | 256 | 64 | 256 | batch | yes | laplace | 0 | 0.01 |
    | Path-X | 4 | 64 | 128 | 32 | 128 | batch | yes | laplace | 0 | 0.01 |

    | task | lr | batch | updates | warm-up | schedule | beta2 | clip | read-out | length |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | ListOps | 0.001 | 64 | 90000 | 3000 | linear | 0.98 | 1 | mean | |
    | Text | 0.004 | 50 | 25000 | 10000 | linear | 0.98 | 1 | mean | 4000 |
    | Retrieval | 0.003 | 64 | 91960 | 10000 | linear | 0.98 | 1 | mean | |
    | Image | 0.01 | 50 | 180000 | 9000 | linear | 0.98 | 1 | mean | |
    | Pathfinder | 0.01 | 128 | 250000 | 50000 | linear | 0.98 | 1 | mean | |
    | Path-X | 0.01 | 128 | 125000 | 25000 | linear | 0.98 | 1 | mean | |
    """
    line = recipe_of(column)
    chunk = {"chunk": 4096} if (mixer, line) == ("mega-chunk", "Path-X") else {}
    model = {"mixer": mixer, "mixer_options": chunk}
    return merged(TASKS[column], _MEGA_BASE, _MEGA[line], model, changes)
