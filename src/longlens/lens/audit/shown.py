"""A typical and the longest example of a task, small enough for a record: a curve or a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from longlens.tasks import Task
from longlens.tasks.decode import decode
from longlens.tasks.gallery import label, words_of

POINTS = 240  # of a curve
LETTERS = 600


def shown_examples(task: Task) -> list[dict[str, Any]]:
    """Of the test split: an example of median length and, where lengths differ, the longest.

    >>> import tempfile; from longlens.tasks import load
    >>> task = load("lag", tempfile.mkdtemp(), length=8, distance=4, train=4, validation=2, test=2)
    >>> [(each["what"], each["length"]) for each in shown_examples(task)]
    [('typical', 8)]
    """
    split = task["test"]
    lengths = np.asarray(split.lengths)
    order = np.argsort(lengths, kind="stable")
    chosen = {"typical": int(order[(len(order) - 1) // 2]), "longest": int(order[-1])}
    if lengths.min() == lengths.max():
        del chosen["longest"]
    found = []
    for what, index in chosen.items():
        example = split[index]
        shown: dict[str, Any] = {
            "what": what,
            "length": int(lengths[index]),
            "label": label(task, example),
        }
        first = np.asarray(example.inputs[0])
        if task.spec.inputs == "floats":
            places = np.unique(np.linspace(0, len(first) - 1, POINTS).round().astype(int))
            shown["curve"] = [[int(x), round(float(first[x, 0]), 4)] for x in places]
        else:
            texts = [decode(task.spec, np.asarray(part), LETTERS, words_of(task))
                     for part in example.inputs]  # fmt: skip
            shown["text"] = "\n~~~\n".join(texts)
        found.append(shown)
    return found
