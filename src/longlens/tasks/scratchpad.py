"""ListOps on a scratchpad: after every closing bracket stands the value of what it closes.

A model that writes intermediate values down (Nye et al. 2021) has one operator to evaluate at a
time, however deep the tree is::

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   [MAX 2 9 [MIN 4 7 ] 4 0 ]   ->   9

In training the values are given, labels that the task does not have. Afterwards the model writes
its own, from left to right. Values are written on the device, after arguments were shuffled; what
is stored is the expression with its values in its brackets, or without any, and room at its end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from longlens.tasks.collapse import BLOCK
from longlens.tasks.data import Rows, Split
from longlens.tasks.errors import DataError
from longlens.tasks.listops import CLOSE, PAD, VOCAB

WRITTEN = VOCAB  # ids: the value v, written down, is 16+v


def most_written(length: int) -> int:
    """The most tokens that an expression of ``length`` has together with its values.

    An operator takes at least three tokens, itself, its bracket and a digit that no other has.

    >>> most_written(8)  # [MAX 2 [MIN 4 7 ] 0 ] has one
    10
    """
    return length + length // 3


def with_room(split: Split) -> Split:
    """The same examples, each with padding at its end for the values of all operators but the root.

    Args:
        split: of ListOps; its brackets may carry values (``marked_values``).

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=5, validation=1, test=1, min_length=20, max_length=60)
    >>> split = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)["train"]
    >>> tokens, roomy = split.sequence(0), with_room(split).sequence(0)
    >>> len(roomy) - len(tokens) == int((tokens == CLOSE).sum()) - 1
    True
    """
    if split.spec.encoding != "listops":
        raise DataError("only expressions of listops have values to write down")
    blocks, counts = [], []
    for start in range(0, len(split), BLOCK):
        stop = min(start + BLOCK, len(split))
        first = split.starts[start]
        tokens = split.arrays["flat"].slice(int(first), int(split.starts[stop]))
        room = np.add.reduceat(tokens >= CLOSE, split.starts[start:stop] - first) - 1
        before = np.repeat(np.cumsum(room) - room, split.lengths[start:stop])
        roomy = np.full(len(tokens) + int(room.sum()), PAD, np.uint8)
        roomy[np.arange(len(tokens)) + before] = tokens
        blocks.append(roomy)
        counts.append(room)
    lengths = (split.lengths + np.concatenate(counts)).astype("i4")
    arrays = {**split.arrays, "flat": Rows([np.concatenate(blocks)]), "lengths": Rows([lengths])}
    spec = replace(split.spec, max_length=int(lengths.max()))
    return Split(split.name, spec, arrays, None)
