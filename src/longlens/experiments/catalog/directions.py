"""One direction or both, for LaS alone: accuracy in per cent.

    longlens run directions [--only 'LaS*' --only Image] [--seeds 3] [--budget 8m] [--quick]

The paper's models are causal, while the layers that it compares with (all but S4-v1) see both
sides; it supposes that two directions would narrow the gap. LaS here changes in nothing but that.
Attention on both sides without positions, smoothed around each key, is the same read backwards;
smoothed over a key and those before it, it can tell left from right. S4 by its own recipe is beside
it.

| model | ListOps | Text | Retrieval | Image | Pathfinder |
| --- | --- | --- | --- | --- | --- |
| LaS causal | 53.05 | 79.28 | 85.56 | 70.44 | 81.62 |
| S4 bidirectional | 59.60 | 86.82 | 90.90 | 88.65 | 94.20 |
"""

from __future__ import annotations

from functools import partial

from longlens.experiments.catalog.base import Experiment, Row, cross
from longlens.experiments.catalog.published import TABLE2, taken
from longlens.experiments.catalog.recipes import S4_NOTES, s4
from longlens.experiments.catalog.table9 import NOTES, attention
from longlens.experiments.catalog.tasks import DATA_NOTES

COLUMNS = (
    "ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Retrieval (PeerRead)",
    "Pathfinder (own)",
)  # fmt: skip
ROWS: dict[str, Row] = {
    "LaS causal": partial(attention, mixer="las"),
    "LaS bidirectional": partial(attention, mixer="las", bidirectional=True),
    "LaS bidirectional, smoothed backwards": partial(
        attention, mixer="las", bidirectional=True, mixer_options={"smoothing": "causal"}
    ),
    "S4 causal": partial(s4, bidirectional=False),
    "S4 bidirectional": s4,
}

EXPERIMENT = Experiment(
    name="directions",
    title="One direction or both, for LaS alone",
    source="ours; published numbers as in Zimerman & Wolf, ICML 2024, Table 2",
    runs=cross(ROWS, COLUMNS),
    published=taken(TABLE2, {"LaS causal": "LaS", "S4 bidirectional": "S4-v2"}, COLUMNS),
    cost="35 runs a seed",
    notes=(
        *NOTES,
        *S4_NOTES,
        *DATA_NOTES,
        "Bidirectional LaS decays on both sides and smooths around each key; smoothed backwards, "
        "over a key and those before it, which tells it left from right.",
    ),
    published_seeds=3,
)
