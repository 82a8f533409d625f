"""LaS+: how far attention alone gets on LRA with everything that helps it, and what each part adds.

    longlens run lasplus [--only 'LaS+' --only Image] [--seeds 3] [--budget 10m] [--quick]

| model | ListOps | Text | Retrieval | Image | Pathfinder | Path-X | Avg. | Avg. (5) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| Megalodon | 63.79 | 90.48 | 91.76 | 89.42 | 98.13 | 98.17 | 88.63 | 86.72 |
| MEGA | 63.14 | 90.43 | 91.25 | 90.44 | 96.01 | 97.98 | 88.21 | 86.25 |
| LaS | 53.05 | 79.28 | 85.56 | 70.44 | 81.62 | | | 73.99 |
| RoPE Transformer + techniques | | | | | | | | 85.69 |
| RoPE Transformer | | | | | | | | 64.98 |

LaS+ is bidirectional LaS with rotary positions, trained by the locality study's recipes: arguments
shuffled on ListOps, denoising on Text and Retrieval, augmentation on Image, easier sets mixed in
and images turned on Pathfinder. "In minutes" is the recipe for users, up to 14 minutes a task on an
H200: Muon, wider heads, an average of the weights, for Text a wider model that is pretrained by
masked tokens, and ListOps read from left to right, with the answer at the last token. Further rows
change one part or more. "16 views" changes the test alone: it averages over 15 augmented copies
beside each example. On ListOps "shorter too" adds expressions of 50 to 500 tokens to training, data
that no published run had; "collapsed" adds copies of the training expressions in which operators
chosen at random are replaced by their values; "grown" begins with lists of digits and trees of few
levels, deeper operators replaced by their values; "values as targets" and "scratchpad" use the
values of subexpressions as labels, the latter written behind them, given in training and the
model's own afterwards.
"""

from __future__ import annotations

from typing import Any

from longlens.experiments.catalog.base import Experiment, Row, cross, merged
from longlens.experiments.catalog.published import BEST_OF_LRA
from longlens.experiments.catalog.recipes import LOCALITY_HEADS, LOCALITY_NOTES, locality
from longlens.experiments.catalog.table9 import attention
from longlens.experiments.catalog.tasks import DATA_NOTES, recipe_of
from longlens.runs.cell import Cell

COLUMNS = (
    "ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X",
    "Retrieval (PeerRead)", "Pathfinder (own)", "Path-X (own)",
)  # fmt: skip


def _row(
    mixer: str = "las",
    uses: tuple[str, ...] = ("window", "bound"),
    technique: bool = True,
    **changes: Any,
) -> Row:
    """The study's recipe in a column, with rotary positions and Table 9's P and B."""

    def cell(column: str) -> Cell | None:
        line = recipe_of(column)
        changed: Cell = {"positions": "rotary"}
        if line == "Path-X":  # the study has no recipe for it: Pathfinder's, in small batches
            changed |= {"task": "pathx", "batch_size": 16, "epochs": 50.0}
            column, line = column.replace("Path-X", "Pathfinder"), "Pathfinder"
        recipe = locality(column, mixer, technique)
        heads = {"mixer_options": {"num_heads": LOCALITY_HEADS[line]}}
        reading = {"mixer_options": attention(column, mixer, uses)["mixer_options"]}
        return merged(recipe, heads, reading, changed, changes)

    return cell


# ListOps read from left to right: a bracket that closes an operator has seen all of it.
CAUSAL: Cell = dict(bidirectional=False, pooling="last", shapes="any",
                    mixer_options={"num_heads": 2})  # fmt: skip
MINUTES: dict[str, Cell] = {
    "ListOps": dict(dim=128, batch_size=64, lr=2e-3, epochs=40.0) | CAUSAL,
    "Image": dict(
        dim=192, batch_size=64, lr=3e-3, weight_decay=0.05, mixer_options={"num_heads": 3},
        augment_options={"shift": 0.125}, epochs=70.0,
    ),
    "Pathfinder": dict(batch_size=128, lr=2e-3, mixer_options={"num_heads": 2}),
    "Text": dict(
        dim=256, batch_size=64, lr=2e-3, mixer_options={"num_heads": 4}, epochs=14.0,
        protocol="pretrain+denoise", pretrain_steps=7000,
    ),
    "Retrieval": dict(lr=2e-3, mixer_options={"num_heads": 2}),
}  # fmt: skip


def _minutes(*only: str, mixer: str = "las", **changes: Any) -> Row:
    """A recipe for runs of minutes, with heads as wide as the fastest kernels; for some tasks."""
    uses = ("window", "bound") if mixer == "las" else ()
    row = _row(mixer, uses, optimizer="muon", residual="autocast", ema=0.999, evaluate_batch=500)

    def cell(column: str) -> Cell | None:
        line = recipe_of(column)
        if line not in MINUTES or line not in (only or MINUTES):
            return None
        return merged(row(column) or {}, MINUTES[line], changes)

    return cell


# Four copies with subtrees collapsed at random beside each expression, after flat lists. Most are
# short: larger batches cost little, and more padded lengths pay.
COLLAPSED: Cell = dict(collapse=4, collapse_steps=10_000, batch_size=128, buckets=16)
# First five thousand steps each on lists of digits, then on trees of two levels and below, up to
# seven: short expressions with the same values, in which what decides most trees is learned.
GROWN: Cell = dict(
    collapse_depth=7, collapse_steps=35_000, epochs=21.0, batch_size=128, multiple=16,
)  # fmt: skip
# The same with fewer levels and six times the steps for each: sums of sums are learned slowly.
SLOWLY: Cell = GROWN | dict(
    collapse_depth=4, collapse_steps=120_000, epochs=24.0, schedule="linear",
)  # fmt: skip
# Digits drawn anew such that every operator keeps its value; in the test, 16 of these.
REDRAWN: Cell = dict(augment_options={"redraw": True}, views=16)
# More labels than LRA gives: the values of subtrees, as targets, or written down behind them.
VALUES: Cell = {"protocol": "values+augment", "epochs": None, "steps": 20_000}
SCRATCHPAD: Cell = VALUES | {"protocol": "scratchpad+augment", "depth": 12}
ROWS: dict[str, Row] = {
    "LaS+": _row(),
    "LaS+ in minutes": _minutes(),
    "in minutes, without LaS": _minutes(mixer="softmax"),
    "in minutes, without rotary": _minutes(positions="none"),
    "in minutes, ALiBi for LaS and rotary": _minutes(
        "Text", "Image", mixer="alibi", positions="none"
    ),
    "in minutes, without AutoAugment": _minutes(
        "Image", augment_options={"policy": False}, epochs=32.0
    ),
    "in minutes, both sides": _minutes(
        "ListOps", bidirectional=True, pooling="mean", mixer_options={"num_heads": 4}
    ),
    # the test averages over copies, augmented as in training
    "in minutes, 16 views": _minutes("ListOps", "Image", views=16),
    "in minutes, 16 views, without LaS": _minutes("ListOps", "Image", mixer="softmax", views=16),
    # digits are new every time that an expression is seen
    "in minutes, redrawn, 16 views": _minutes("ListOps", **REDRAWN),
    "in minutes, redrawn, 16 views, without LaS": _minutes("ListOps", mixer="softmax", **REDRAWN),
    "in minutes, redrawn, 16 views, 12 layers, without LaS": _minutes(
        "ListOps", mixer="softmax", depth=12, **REDRAWN
    ),
    # trees are ten levels deep: twice the layers
    "in minutes, 12 layers": _minutes("ListOps", depth=12),
    "in minutes, 12 layers, without LaS": _minutes("ListOps", mixer="softmax", depth=12),
    # as the study mixes in easier Pathfinder sets
    "in minutes, shorter too": _minutes("ListOps", mix_easier=True),
    "in minutes, collapsed": _minutes("ListOps", **COLLAPSED),
    "in minutes, collapsed, without LaS": _minutes("ListOps", mixer="softmax", **COLLAPSED),
    "in minutes, grown, redrawn, 16 views": _minutes("ListOps", **GROWN, **REDRAWN),
    "in minutes, grown, redrawn, 16 views, without LaS": _minutes(
        "ListOps", mixer="softmax", **GROWN, **REDRAWN
    ),
    "in minutes, grown, redrawn, 16 views, 12 layers, without LaS": _minutes(
        "ListOps", mixer="softmax", depth=12, **GROWN, **REDRAWN
    ),
    "in minutes, grown slowly, redrawn, 16 views, without LaS": _minutes(
        "ListOps", mixer="softmax", **SLOWLY, **REDRAWN
    ),
    "in minutes, values as targets": _minutes("ListOps", **VALUES),
    "in minutes, values as targets, without LaS": _minutes("ListOps", mixer="softmax", **VALUES),
    "in minutes, values as targets, 12 layers": _minutes("ListOps", depth=12, **VALUES),
    "in minutes, values as targets, 12 layers, without LaS": _minutes(
        "ListOps", mixer="softmax", depth=12, **VALUES
    ),
    "in minutes, scratchpad": _minutes("ListOps", **SCRATCHPAD),
    "in minutes, scratchpad, without LaS": _minutes("ListOps", mixer="softmax", **SCRATCHPAD),
    "LaS+ geometric": _row(mixer_options={"bound": 0.03, "spacing": "geometric"}),
    "LaS+ learned decay": _row(mixer_options={"learned_alpha": True}),
    "LaS+ denoising too": _row(protocol="denoise+augment"),
    "without LaS": _row("softmax", uses=()),
    "without smoothing": _row("l", uses=("bound",)),
    "without decay": _row("s", uses=("window",)),
    "without rotary": _row(positions="none"),
    "without both sides": _row(bidirectional=False),
    "without techniques": _row(technique=False),
}


def _sensible(row: str, column: str) -> bool:
    """Both techniques at once exist where there is something to augment, and Path-X is for LaS+."""
    if recipe_of(column) == "Path-X":
        return row == "LaS+"
    return row != "LaS+ denoising too" or recipe_of(column) not in ("Text", "Retrieval")


EXPERIMENT = Experiment(
    name="lasplus",
    title="LaS+: attention with everything that helps it",
    source="ours; Megalodon and MEGA as published, locality study arXiv 2501.14850",
    runs=tuple(run for run in cross(ROWS, COLUMNS) if _sensible(run.row, run.column)),
    published=BEST_OF_LRA,
    cost="116 runs a seed; published for a Transformer of this size: minutes to hours a run",
    notes=(
        *DATA_NOTES,
        *LOCALITY_NOTES,
        "P and B are Table 9's. 'without LaS' is the locality study's rotary Transformer with its "
        "techniques.",
        "Megalodon, MEGA, LaS and the study's Transformers are published numbers, not run here; "
        "Avg. is over 6 tasks, Avg. (5) leaves out Path-X. On ListOps, Text and Image alone "
        "MEGA's mean is 81.34 and LaS's 67.59.",
        "Rows 'collapsed', 'grown' and 'grown slowly' use the values of subtrees, which LRA does "
        "not give, to shorten training inputs, as the locality study's code does. 'values as "
        "targets' train on them at closing brackets; 'scratchpad' reads them as well, behind the "
        "brackets, where the trained model writes its own: more labels than any published run had. "
        "Validation and test are whole and without values.",
        "Rows '16 views' average, in the test, the class probabilities over each example and 15 "
        "augmented copies of it; training is that of the row without.",
        "Rows 'redrawn' shuffle arguments and draw digits anew, such that every operator keeps its "
        "value whatever its nested arguments are worth: an augmentation, no label is used.",
        "Path-X has no recipe in the study: Pathfinder's with batches of 16 for 50 epochs.",
    ),
)
