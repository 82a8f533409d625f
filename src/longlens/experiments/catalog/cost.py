"""Table 2's speed and memory: training on Text at 4,096 bytes, relative to the plain Transformer.

    longlens run cost [--only 'LaS*' --only 'MEGA*'] [--quick]

Every mixer stands in the same model, 4 × 256 with a feed-forward part of 1,024, in batches of 32
reviews that are all padded to 4,096 positions. Speed is positions a second over the steps that
nothing interrupted, memory the most that the device held; both are divided by XFM's of the same
seed, which is always run, too. More is better for the one, less for the other. The published
factors are Table 2's.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.published import TABLE2, taken
from longlens.experiments.catalog.table2 import ROWS as TABLE2_ROWS
from longlens.experiments.catalog.tasks import TASKS
from longlens.runs.cell import Cell

ROWS = (
    "XFM", "Local Attention", "Reformer", "Linformer", "BigBird", "Performer", "Luna-256",
    "Softmax", "LaS", "LaS-chunk", "S4-v2", "SG-Conv", "LongConvs", "MEGA", "MEGA-chunk",
)  # fmt: skip
MODEL: Cell = {
    "depth": 4, "dim": 256, "expansion": 4.0, "batch_size": 32, "optimizer": "adamw",
    "lr": 1e-4, "buckets": 1, "steps": 300, "evaluate_every": 300, "log_every": 20,
}  # fmt: skip
READS = {"Speed": "speed.padded_tokens_per_second", "Mem.": "peak_memory_mib"}


def _cell(row: str) -> Cell:
    """The mixer of Table 2's row, in the common model."""
    declared = TABLE2_ROWS[row]("Text")
    assert declared is not None
    names = ("mixer", "mixer_options", "bidirectional", "positions")
    mixer = merged({name: declared[name] for name in names if name in declared})
    mixer.get("mixer_options", {}).pop("value_dim", None)  # MEGA's is twice the width, as published
    return merged(TASKS["Text"], MODEL, mixer)


EXPERIMENT = Experiment(
    name="cost",
    title="Training speed and memory on Text at 4,096 bytes, relative to XFM",
    source="Zimerman & Wolf, ICML 2024, Table 2",
    metric="ratio",
    runs=tuple(Run(row, "Speed", _cell(row)) for row in ROWS),
    published=taken(TABLE2, {row: row for row in ROWS if "Speed" in TABLE2.get(row, {})}, READS),
    cost="15 runs a seed of 300 steps",
    notes=(
        "One model for all, 4 × 256 with a feed-forward part of 1,024, 32 reviews of 4,096 "
        "positions a step (padding counts); published models have sizes of their own. Relative to "
        "XFM (two-sided softmax attention) of the same run of the command.",
        "XFM here is a fused kernel: it never holds the matrix that the published memory is "
        "relative to, so factors below 1 are harder to reach.",
    ),
    reads=READS,
    relative_to="XFM",
)
