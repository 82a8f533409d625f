"""The open readings of LaS, measured against each other on Image, ListOps and Text.

    longlens run readings [--only 'smoothing*' --only Image] [--budget 8m] [--quick]

Cost: 94 runs a seed; with --budget 8m 12.5 hours on one GPU.

The paper leaves open how B makes the decay rates (spacing), which side is averaged and what happens
at the edges (smoothing, edge), and whether there are positions. It says that it trains as the S4
repository does, without saying which of that repository's settings it kept: reading out the last
position, a learning rate that falls on plateaus, all of Text's reviews for training with the test
split choosing the step. Each row changes one thing from LaS as this library reads it by default
(uniform, causal, zero, none; mean, cosine, 2,500 reviews held out); then come pairs that are likely
to matter together, and attention without LaS. All else is Table 9's.

| model | ListOps | Text | Image |
| --- | --- | --- | --- |
| LaS | 53.05 | 79.28 | 70.44 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longlens.experiments.catalog.base import Experiment, cross, merged, published_numbers
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.experiments.cells import Cell

COLUMNS = ("Image", "ListOps", "Text")
ROTARY: Cell = {"positions": "rotary"}
BOTH_SIDES: Cell = {"bidirectional": True}  # smoothing is then centred unless said otherwise
PRE_NORM: Cell = {"prenorm": True, "norm": "layer"}
MULTI_SCALE: Cell = {"mixer_options": {"spacing": "geometric", "bound": 0.03}}
# The S4 repository's settings, where its configurations for S4 do not say otherwise.
LAST: Cell = {"pooling": "last"}
PLATEAU: Cell = {
    "schedule": "plateau", "plateau_patience": 20, "plateau_factor": 0.2, "warmup": 0.0,
}  # fmt: skip
ON_TEST: Cell = {"task_options": {"validation_from": "test"}}  # of Text alone


def _options(**values: object) -> Cell:
    return {"mixer_options": values}


CHANGES: dict[str, Cell] = {
    "LaS": {},
    "spacing literal": _options(spacing="literal"),
    "spacing geometric": MULTI_SCALE,
    "spacing learned": _options(learned_alpha=True),
    "smoothing centered": _options(smoothing="centered"),
    "smoothing masked": _options(smoothing="masked"),
    "edge renormalize": _options(edge="renormalize"),
    "positions learned": {"positions": "learned"},
    "positions sinusoidal": {"positions": "sinusoidal"},
    "positions rotary": ROTARY,
    "bidirectional": BOTH_SIDES,
    "window 3": _options(window=3),
    "window 9": _options(window=9),
    "bound 0.001": _options(bound=0.001),
    "learning rate 3e-4": {"lr": 3e-4},
    "learning rate 1e-3": {"lr": 1e-3},
    "pooling last": LAST,
    "schedule plateau": PLATEAU,
    "all of train, selected on test": ON_TEST,
    "last + plateau": {**LAST, **PLATEAU},
    "last + plateau, selected on test": {**LAST, **PLATEAU, **ON_TEST},
    "pre-norm": PRE_NORM,
    "window 5 + pre-norm": {**PRE_NORM, **_options(window=5)},
    "centered + renormalize": _options(smoothing="centered", edge="renormalize"),
    "centered + geometric": {"mixer_options": {**MULTI_SCALE["mixer_options"],
                                               "smoothing": "centered"}},
    "rotary + centered": {**ROTARY, **_options(smoothing="centered")},
    "rotary + geometric": {**ROTARY, **MULTI_SCALE},
    "rotary + bidirectional": {**ROTARY, **BOTH_SIDES},
    "rotary + bidirectional + geometric": {**ROTARY, **BOTH_SIDES, **MULTI_SCALE},
    "rotary + bidirectional + pre-norm": {**ROTARY, **BOTH_SIDES, **PRE_NORM},
}  # fmt: skip
WITHOUT: dict[str, Cell] = {
    "softmax": {},
    "softmax pre-norm": PRE_NORM,
    "softmax rotary": ROTARY,
    "softmax rotary + bidirectional": {**ROTARY, **BOTH_SIDES},
    "softmax rotary + bidirectional + pre-norm": {**ROTARY, **BOTH_SIDES, **PRE_NORM},
}


def _row(mixer: str, changes: Cell, **uses: Any) -> Callable[[str], Cell | None]:
    """Table 9's line with changes; None where they do not apply, or it has their values already."""

    def cell(column: str) -> Cell | None:
        plain = attention(column, mixer, **uses)
        changed = merged(plain, changes)
        if "task_options" in changes and column != "Text":
            return None
        same = changed["mixer_options"] == plain["mixer_options"]
        if changes and (changed == plain or (same and "mixer_options" in changes)):
            return None
        return changed

    return cell


ROWS: dict[str, Callable[[str], Cell | None]] = {
    **{label: _row("las", changes) for label, changes in CHANGES.items()},
    **{label: _row("softmax", changes, uses=()) for label, changes in WITHOUT.items()},
}

EXPERIMENT = Experiment(
    name="readings",
    title="Readings of LaS: spacing, smoothing, edges, positions, read-out, training",
    source="open in Zimerman & Wolf, ICML 2024; the published number is Table 2's",
    metric="accuracy",
    rows=tuple(ROWS),
    columns=COLUMNS,
    runs=cross(ROWS, COLUMNS),
    published=published_numbers(__doc__),
    cost="94 runs a seed; 12.5 GPU-hours with --budget 8m",
    notes=(
        *NOTES,
        "Plateau is the S4 repository's: a fifth of the learning rate after 20 epochs without a "
        "better validation accuracy, no warm-up; in Text's 20 epochs the rate stays what it is.",
        "'All of train, selected on test' trains on all 25,000 reviews and lets the test split "
        "choose the step, as the S4 repository's Text does: an upper bound, marked wherever it "
        "is shown, compared and averaged with nothing. The repository reads characters (a "
        "vocabulary of 135, an end token), we read bytes.",
        "A cell is empty where Table 9 has the row's value already.",
        "Geometric rates reach 0.03 in the last head, half of that in each one before it.",
        "Centred smoothing under a causal mask lets a query see values up to P/2 positions ahead: "
        "allowed in classification, refused in language models.",
        "Pre-norm is layer norm before each part; it is no open reading (Table 9 states the norm) "
        "but decides how well a short run trains.",
    ),
    seeds=None,
)
