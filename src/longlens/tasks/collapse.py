"""ListOps with subtrees replaced by their values: shorter expressions that have the same value.

Whoever learns whole trees from their roots' labels never sees how a sum comes about: sums modulo 10
stay at chance. Lists of digits teach them in minutes. Collapsed expressions begin with such lists
and let depth grow back, as the locality study's code does from depth 5 on. Values of subtrees
shorten training inputs and are no targets; validation and test keep their whole trees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from longlens.tasks.data import Rows, Split
from longlens.tasks.errors import DataError
from longlens.tasks.listops import CLOSE, DIGIT, OPERATOR, reduce_arguments

BLOCK = 2_000  # examples at a time: some two million tokens
Tokens = npt.NDArray[np.uint8]


def collapse_split(split: Split, depth: int) -> Split:
    """The same examples, every operator deeper than ``depth`` replaced by its value.

    Args:
        split: of ListOps.
        depth: that is kept; 1 leaves the root operator and a list of digits.

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=5, validation=1, test=1, min_length=20, max_length=60)
    >>> split = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)["train"]
    >>> flat = collapse_split(split, 1)
    >>> len(flat), flat.spec.max_length <= 12, (flat.targets == split.targets).all().item()
    (5, True, True)
    """
    if split.spec.encoding != "listops":
        raise DataError("only expressions of listops can be collapsed")
    if depth < 1:
        raise DataError(f"depth must be 1 or more, got {depth}")
    tokens, lengths = [], []
    for start in range(0, len(split), BLOCK):
        stop = min(start + BLOCK, len(split))
        block = split.arrays["flat"].slice(int(split.starts[start]), int(split.starts[stop]))
        kept, collapsed = collapse(np.asarray(block), depth)
        tokens.append(collapsed)
        ends = split.starts[start + 1 : stop + 1] - split.starts[start]
        lengths.append(np.diff(np.cumsum(kept)[ends - 1], prepend=0))
    arrays = {
        **split.arrays,
        "flat": Rows([np.concatenate(tokens)]),
        "lengths": Rows([np.concatenate(lengths).astype(np.int32)]),
    }
    spec = replace(split.spec, max_length=int(max(part.max() for part in lengths)))
    return Split(split.name, spec, arrays, None)


def collapse(tokens: Tokens, depth: int) -> tuple[npt.NDArray[np.bool_], Tokens]:
    """Collapse expressions that stand one after another.

    Args:
        tokens: (n,) of whole expressions.
        depth: that is kept.

    Returns:
        Which tokens stay (n,), and what they are now; a collapsed operator's first token stays.

    >>> nested = np.array([12, 3, 11, 5, 8, 15, 1, 15], np.uint8)  # [MAX 2 [MIN 4 7 ] 0 ]
    >>> collapse(nested, 1)[1].tolist()  # [MAX 2 4 0 ]
    [12, 3, 5, 1, 15]
    """
    opens = (tokens >= OPERATOR) & (tokens < CLOSE)
    closes = tokens == CLOSE
    after = np.cumsum(opens.astype(np.int32) - closes)
    level = np.where(closes, after + 1, after)  # of operators, and around digits
    value = tokens - np.uint8(DIGIT)  # of digits; of operators at their first token, from below
    for current in range(int(level.max()), depth, -1):
        starts = np.flatnonzero(opens & (level == current))
        inside = ~opens & ~closes & (level == current)
        arguments = np.flatnonzero(inside | (opens & (level == current + 1)))
        counts = np.diff(np.searchsorted(arguments, np.append(starts, len(tokens))))
        given = value[arguments][None]
        operator = tokens[starts].astype(np.int64) - OPERATOR
        value[starts] = reduce_arguments(operator, counts, given, given)[0][0]
    replaced = opens & (level == depth + 1)
    kept = (level <= depth) | replaced
    return kept, np.where(replaced, value + np.uint8(DIGIT), tokens)[kept]
