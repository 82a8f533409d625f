"""Who keeps its accuracy on longer examples? Trained short, tested at 2, 4 and 8 times the length.

    longlens run lengths [--only '*flip-flop'] [--seeds 3] [--quick]

Once there are positions, LaS adds little to accuracy at the length of training. A decay by distance
might still help beyond it, as ALiBi's does. Three recall tasks of 64 tokens, whose answer stays the
same question at any length (the bit that was written last, what followed a mark, the value of a
key); ListOps of 50 to 200 tokens, and Text cut at 512 bytes. Small causal models. Longer
expressions are also harder, and longer reviews say more, so compare rows there, not columns.
Nothing is published.
"""

from __future__ import annotations

from longlens.experiments.catalog.base import Experiment, Run, merged
from longlens.runs.cell import Cell

TIMES = (2, 4, 8)
TOKENS = 64  # of a recall task in training
SHORT, LONG = 50, 200  # tokens of a ListOps expression in training
BYTES = 512  # of a review in training
HEADS: Cell = {"mixer_options": {"num_heads": 4}}
LAS: Cell = merged(HEADS, {"mixer": "las", "mixer_options": {"window": 5, "bound": 0.001}})
ROTARY: Cell = {"positions": "rotary"}
MODELS: dict[str, Cell] = {
    "softmax": merged(HEADS, {"mixer": "softmax"}),
    "softmax, rotary": merged(HEADS, ROTARY, {"mixer": "softmax"}),
    "ALiBi": merged(HEADS, {"mixer": "alibi"}),
    "FoX": merged(HEADS, {"mixer": "fox"}),
    "L": merged(HEADS, {"mixer": "l", "mixer_options": {"bound": 0.001}}),
    "L, B = 0.1": merged(HEADS, {"mixer": "l", "mixer_options": {"bound": 0.1}}),
    "S": merged(HEADS, {"mixer": "s", "mixer_options": {"window": 5}}),
    "LaS": LAS,
    "LaS, B = 0.1": merged(LAS, {"mixer_options": {"bound": 0.1}}),
    "LaS, rotary": merged(LAS, ROTARY),
}
BASE: Cell = {"dim": 64, "optimizer": "muon", "lr": 2e-3, "warmup": 0.1}
FEW = dict(train=64, validation=64)  # of data of which only the test split is used
RECALL = ("flip-flop", "induction", "mqar")


def _recall(task: str) -> Cell:
    """A task of 64 tokens; keys and values stay as many at other lengths, noise fills the rest."""
    return {
        "task": task, "task_options": dict(length=TOKENS, train=20_000), "depth": 2,
        "batch_size": 64, "steps": 2000, "pooling": "last",
        "transfer_options": {
            str(t): {"task_options": dict(length=TOKENS * t, test=2000, **FEW)} for t in TIMES
        },
    }  # fmt: skip


def _listops(times: int) -> Cell:
    """Options of ListOps at a multiple of the length."""
    return dict(min_length=SHORT * times, max_length=LONG * times, test=1000, **FEW)


TASKS: dict[str, Cell] = {
    **{task: _recall(task) for task in RECALL},
    "ListOps": {
        "task": "listops", "task_options": dict(min_length=SHORT, max_length=LONG), "depth": 4,
        "batch_size": 32, "steps": 4000, "pooling": "last",
        "transfer_options": {str(t): {"task_options": _listops(t)} for t in TIMES},
    },
    "Text": {
        "task": "text", "length": BYTES, "depth": 4, "batch_size": 32, "epochs": 3.0,
        "transfer_options": {str(t): dict(length=BYTES * t, limit=2000) for t in TIMES},
    },
}  # fmt: skip

EXPERIMENT = Experiment(
    name="lengths",
    title="Trained short, tested long",
    source="ours",
    runs=tuple(
        Run(f"{model}, {task}", "1", merged(BASE, TASKS[task], options))
        for task in TASKS
        for model, options in MODELS.items()
    ),
    cost="50 runs a seed; the recall tasks take two minutes each on one CPU core, the rest a GPU",
    notes=(
        "All models are causal, and read out at the last position but on Text, where it is the "
        "mean. Recall tasks (2 × 64): 20,000 training and 2,000 test examples of each length, with "
        "as many keys and values at all lengths. Longer ListOps (4 × 64): 1,000 expressions of 2, "
        "4 and 8 times 50 to 200 tokens, of the same depth at most; Text (4 × 64): 2,000 of the "
        "test reviews, cut at 1,024, 2,048 and 4,096 bytes.",
        "P is 5 and B is 0.001, which leaves 0.6 of a score at 512 tokens, in the fastest head; "
        "rows with B = 0.1 have a hundred times that. FoX starts at the rates of LaS.",
    ),
    kind="curve",
    x_label="times the length of training",
    reads={"1": "metrics.test.accuracy", **{str(t): f"transfer.{t}.accuracy" for t in TIMES}},
)
