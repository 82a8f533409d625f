"""Figure 5: accuracy of LaS against how far a layer sees (the size of its chunks).

    longlens run figure5 [--only Image] [--budget 8m] [--quick]

The paper prints a plot without numbers, on Image, Text, ListOps and Pathfinder: accuracy falls on
all of them as the chunks get smaller. Its chunk sizes are not stated; here they are the powers of
two from 16 to the first that holds the whole sequence.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.experiments.catalog.tasks import DATA_NOTES

LONGEST = {"Image": 1024, "Text": 4096, "ListOps": 2048, "Pathfinder": 1024,
           "Pathfinder (own)": 1024}  # fmt: skip
CHUNKS = tuple(2**power for power in range(4, 13))

EXPERIMENT = Experiment(
    name="figure5",
    title="Accuracy of LaS against the context that a layer sees",
    source="Zimerman & Wolf, ICML 2024, Figure 5",
    runs=tuple(
        Run(task, str(chunk), attention(task, "las", mixer_options={"chunk": chunk}))
        for task, longest in LONGEST.items()
        for chunk in CHUNKS
        if chunk <= longest
    ),
    cost="38 runs a seed; published: up to two V100-days a run",
    notes=(
        *NOTES,
        *DATA_NOTES,
        "No numbers are printed in the paper, nor the chunk sizes.",
        "The largest chunk of each task holds the whole sequence: LaS without chunks.",
    ),
    kind="curve",
    x_label="positions in a chunk",
    published_seeds=3,
)
