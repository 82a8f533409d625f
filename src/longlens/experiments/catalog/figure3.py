"""Figure 3: perplexity on WikiText-103 of LaS, of its two halves and of plain attention.

    longlens run figure3 [--budget 10m] [--quick]

| model | WikiText-103 |
| --- | --- |
| Vanilla Attention | 20.20 |
| L | 20.34 |
| S | 21.69 |
| LaS | 21.87 |
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.experiments.catalog.published import FIGURE3
from longlens.experiments.catalog.table8 import LANGUAGE_MODEL, LAS, VANILLA
from longlens.runs.cell import Cell

MODELS: dict[str, Cell] = {
    "Vanilla Attention": VANILLA,
    "L": {"mixer": "l", "mixer_options": {"bound": 0.001}},
    "S": {"mixer": "s", "mixer_options": {"window": 3}},
    "LaS": LAS,
}
# The scores of a micro-batch are its positions times 267,735 numbers: 8 windows are 4 GiB.
TRAINING: Cell = {"task": "wikitext103", "depth": 12, "epochs": 10.0, "micro_batch": 8}

EXPERIMENT = Experiment(
    name="figure3",
    title="Language modelling on WikiText-103: LaS, L, S and plain attention",
    source="Zimerman & Wolf, ICML 2024, Appendix C and Figure 3",
    metric="perplexity",
    runs=tuple(
        Run(row, "WikiText-103", merged(LANGUAGE_MODEL, TRAINING, model))
        for row, model in MODELS.items()
    ),
    published=FIGURE3,
    cost="4 runs a seed of 10 epochs (103 million words, 3,200 steps of 64 windows each)",
    notes=(
        "Stated: 12 layers, width 768, context 512, no dropout (Appendix A: 0 in all "
        "experiments), averages over 2 seeds, perplexities at the "
        "end of training. Not stated, so chosen here: 8 heads, learned positions, tied "
        "embeddings, P = 3, B = 0.001, all of the training.",
        "Perplexity is over words, of windows of 512 read one after another without overlap.",
    ),
    published_seeds=2,
)
