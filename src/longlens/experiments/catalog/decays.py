"""Which decay and which smoother: the family of LaS in runs of minutes, with and without rotary.

    longlens run decays [--only 'FoX*' --only Image] [--seeds 3] [--quick]

LaS multiplies scores by a decay and averages attention rows over a window; its paper leaves open
whether other decays and other smoothers would do. A row is a decay (none, that of LaS, the same
fifty times stronger, learned, a power law, ALiBi, the forget gate of FoX, the gates of Wall) and
a smoother (none, the average of five, a Gaussian of five, five learned taps that start as the
average). All is causal, as both gates are. The model is small, 4 × 128 with 4 heads, and trained by
Muon for 4 epochs. Nothing is published for runs this short.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.runs.cell import Cell

DECAYS: dict[str, Cell] = {
    "no decay": {"decay": "none"},
    "LaS": {"decay": "las"},
    "strong LaS": {"decay": "las", "bound": 0.05},
    "LaS learned": {"decay": "las", "learned_decay": True},
    "power law": {"decay": "power"},
    "ALiBi": {"decay": "alibi"},
    "FoX": {"decay": "fox"},
    "Wall": {"decay": "wall"},
}
SMOOTHERS: dict[str, Cell] = {
    "no smoother": {"smoother": "none"},
    "average": {"smoother": "box"},
    "Gaussian": {"smoother": "gaussian"},
    "learned taps": {"smoother": "box", "learned_taps": True},
}
BASE: Cell = {
    "mixer": "family", "dim": 128, "depth": 4, "epochs": 4.0, "batch_size": 64,
    "optimizer": "muon", "lr": 2e-3, "warmup": 0.1, "residual": "autocast", "evaluate_batch": 500,
    "mixer_options": {"num_heads": 4, "window": 5, "bound": 0.001},
}  # fmt: skip
TASKS: dict[str, Cell] = {
    "Image": {"task": "image"},
    # compiled block by block: eight padded lengths would take longer than training does
    "Text": {"task": "text", "length": 2048, "compile_blocks": True},
}
# gates of Wall whose decay over 2,048 positions stays in range: one fused call of attention
IN_RANGE: dict[tuple[str, str], Cell] = {("Wall", "Text"): {"mixer_options": {"rate_max": 0.035}}}
POSITIONS: dict[str, Cell] = {"": {}, ", rotary": {"positions": "rotary"}}

RUNS = tuple(
    Run(
        f"{decay}, {smoother}",
        f"{task}{positions}",
        merged(BASE, TASKS[task], POSITIONS[positions],
               {"mixer_options": {**DECAYS[decay], **SMOOTHERS[smoother]}},
               IN_RANGE.get((decay, task), {})),
    )
    for decay in DECAYS
    for smoother in SMOOTHERS
    for task in TASKS
    for positions in POSITIONS
)  # fmt: skip

EXPERIMENT = Experiment(
    name="decays",
    title="Decays and smoothers: the family of LaS",
    source="ours",
    runs=RUNS,
    cost="128 runs a seed, some 20 s each on an H200, ten at a time",
    notes=(
        "B is 0.001 (strong: 0.05) and P is 5; the power law has the slopes of ALiBi; gates start "
        "at the rates of LaS. Rates of Wall's gates are at most 0.05 a token, on Text 0.035.",
    ),
)
