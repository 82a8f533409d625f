"""B and P far beyond the published grid: how local, how smooth? Accuracy of LaS, per cent.

    longlens run sweep [--only 'Image*'] [--budget 4m] [--quick]

The paper searched P in 3, 5 and B in 0.0001, 0.001. Here P is 1 (no smoothing) to 33 and B 0.00001
(next to no decay) to 1 (the fastest head forgets within a position or two). All else is Table 9's;
nothing is published but the chosen points, which are in table9.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run
from longlens.experiments.catalog.table9 import NOTES, attention

TASKS = ("Image", "ListOps", "Text")
WINDOWS = (1, 3, 5, 9, 17, 33)
BOUNDS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)

EXPERIMENT = Experiment(
    name="sweep",
    title="A wider sweep of B and P: how local and how smooth LaS should be",
    source="ours; the published grid is P in 3, 5 and B in 0.0001, 0.001",
    runs=tuple(
        Run(
            f"{task}, P = {window}",
            f"{bound:g}",
            attention(task, "las", mixer_options={"window": window, "bound": bound}),
        )
        for task in TASKS
        for window in WINDOWS
        for bound in BOUNDS
    ),
    cost="108 runs a seed; 7.2 GPU-hours with --budget 4m",
    notes=(
        *NOTES,
        "B bounds the decay rates: uniform spacing, so that head c of 8 keeps "
        "1 - (1 - exp(-B)) c/7 of a score for each position of distance.",
    ),
    kind="curve",
    x_label="B",
)
