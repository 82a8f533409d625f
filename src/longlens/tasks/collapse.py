"""ListOps with subtrees replaced by their values: shorter expressions that have the same value.

From LRA's long trees and the labels of their roots no model that we know learns sums modulo 10:
they stay at chance. Lists of digits teach them in minutes, and a list with one operator inside is
the next step; whether that leads to whole trees is open. Copies of the training expressions, each
collapsed at random, hold every step from such lists to whole trees, and keep lists from being
forgotten over deeper ones. Values of subtrees shorten training inputs and are no targets;
validation and test keep their whole trees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from longlens.tasks.arrays import Array, Bools, Bytes, Ints
from longlens.tasks.data import Rows, Split
from longlens.tasks.errors import DataError
from longlens.tasks.listops import CLOSE, DIGIT, OPERATOR, reduce_arguments
from longlens.tasks.mix import join_splits
from longlens.tasks.order import generator

BLOCK = 1_000  # examples at a time: about a million tokens


def collapsed_copies(
    split: Split, copies: int = 1, seed: int = 0, depth: int | None = None
) -> Split:
    """Every example ``copies`` times, each time with other operators replaced by their values.

    A copy replaces each of its operators but the root with a probability that it draws, uniform in
    0 … 1: copies range from lists of digits to whole trees. What is known of an example beside
    its label (``depth``, ``decided``) stays that of the whole tree.

    Args:
        split: of ListOps.
        copies: how many.
        seed: of what is drawn.
        depth: of the operators that stay, and nothing is drawn; 1 leaves the root and a list of
            digits.

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=5, validation=1, test=1, min_length=20, max_length=60)
    >>> split = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)["train"]
    >>> short = collapsed_copies(split, 2)
    >>> len(short), bool((short.lengths <= np.tile(split.lengths, 2)).all())
    (10, True)
    """
    if split.spec.encoding != "listops":
        raise DataError("only expressions of listops can be collapsed")
    if copies < 1:
        raise DataError(f"copies must be 1 or more, got {copies}")
    tokens: list[list[Bytes]] = [[] for _ in range(copies)]
    lengths: list[list[Ints]] = [[] for _ in range(copies)]
    for block, start in enumerate(range(0, len(split), BLOCK)):
        count = min(BLOCK, len(split) - start)
        first, last = split.starts[start], split.starts[start + count]
        flat = np.asarray(split.arrays["flat"].slice(int(first), int(last)))
        example = np.repeat(np.arange(count), split.lengths[start : start + count])
        operators, ends, values = evaluate(flat)
        level = levels(flat)[operators]
        for copy in range(copies):
            rng = generator(seed, block, copy)
            if depth is None:
                shares = rng.random(count)
                replaced = (rng.random(len(operators)) < shares[example[operators]]) & (level > 1)
            else:
                replaced = level > depth
            kept, collapsed = collapse(flat, operators[replaced], ends[replaced], values[replaced])
            tokens[copy].append(collapsed)
            lengths[copy].append(np.bincount(example[kept], minlength=count))
    arrays: dict[str, Array] = {
        name: np.concatenate([rows.whole()] * copies)
        for name, rows in split.arrays.items()
        if name not in ("flat", "lengths")
    }
    arrays["flat"] = np.concatenate([part for parts in tokens for part in parts])
    arrays["lengths"] = np.concatenate([part for parts in lengths for part in parts]).astype("i4")
    spec = replace(split.spec, max_length=int(arrays["lengths"].max()))
    return Split(split.name, spec, {name: Rows([array]) for name, array in arrays.items()}, None)


def growing_trees(split: Split, depth: int) -> list[Split]:
    """From lists of digits to trees of ``depth`` levels: what each of ``depth`` stages trains on.

    The first stage has lists alone. Each later one adds every expression with one level more and
    keeps the shorter ones, so that they are not forgotten.

    Args:
        split: of ListOps.
        depth: of the operators that stay in the last stage.

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=5, validation=1, test=1, min_length=20, max_length=60)
    >>> split = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)["train"]
    >>> [len(stage) for stage in growing_trees(split, 3)]
    [5, 10, 15]
    """
    cut = []
    for level in range(depth, 0, -1):  # the longest first: each is cut from the one before
        split = collapsed_copies(split, depth=level)
        cut.append(split)
    return [join_splits(cut[-count:]) for count in range(1, depth + 1)]


def marked_values(split: Split) -> Split:
    """The same examples with the value of every operator in its closing bracket: CLOSE + value.

    Args:
        split: of ListOps.
    """
    if split.spec.encoding != "listops":
        raise DataError("only expressions of listops have values")
    blocks = []
    for start in range(0, len(split), BLOCK):
        stop = min(start + BLOCK, len(split))
        tokens = split.arrays["flat"].slice(int(split.starts[start]), int(split.starts[stop]))
        marked = np.array(tokens)
        _, ends, values = evaluate(marked)
        marked[ends] += values
        blocks.append(marked)
    arrays = {**split.arrays, "flat": Rows([np.concatenate(blocks)])}
    return Split(split.name, split.spec, arrays, None)


def levels(tokens: Bytes) -> npt.NDArray[np.int8]:
    """How many operators are open after each token (n,), its own among them.

    >>> levels(np.array([12, 3, 11, 5, 8, 15, 1, 15], np.uint8)).tolist()  # [MAX 2 [MIN 4 7 ] 0 ]
    [1, 1, 2, 2, 2, 1, 1, 0]
    """
    opens = (tokens >= OPERATOR) & (tokens < CLOSE)
    return np.cumsum(opens.astype(np.int8) - (tokens == CLOSE), dtype=np.int8)


def evaluate(tokens: Bytes) -> tuple[Ints, Ints, Bytes]:
    """First and last tokens of all operators (m,), (m,) and their values (m,), outer ones first.

    Args:
        tokens: (n,) of whole expressions, one after another.

    >>> nested = np.array([12, 3, 11, 5, 8, 15, 1, 15], np.uint8)  # [MAX 2 [MIN 4 7 ] 0 ]
    >>> [array.tolist() for array in evaluate(nested)]
    [[0, 2], [7, 5], [4, 4]]
    """
    opens = (tokens >= OPERATOR) & (tokens < CLOSE)
    closes = tokens == CLOSE
    depth = levels(tokens)  # after each token
    level = depth - opens  # of whose arguments a token is one; 0: a root
    value = tokens - np.uint8(DIGIT)  # of digits; of operators at their first token, from below
    nodes = np.flatnonzero(~closes)
    nodes = nodes[np.argsort(level[nodes], kind="stable")]
    borders = np.searchsorted(level[nodes], np.arange(int(level.max()) + 2))
    for current in range(int(level.max()), 0, -1):
        arguments = nodes[borders[current] : borders[current + 1]]
        above = nodes[borders[current - 1] : borders[current]]
        starts = above[opens[above]]
        counts = np.diff(np.searchsorted(arguments, np.append(starts, len(tokens))))
        given = value[arguments][None]
        kind = tokens[starts].astype(np.int64) - OPERATOR
        value[starts] = reduce_arguments(kind, counts, given, given)[0][0]
    operators = nodes[opens[nodes]]
    ends = np.flatnonzero(closes)  # those of one level follow each other as their operators do
    ends = ends[np.argsort(depth[ends], kind="stable")]
    return operators, ends, value[operators]


def collapse(tokens: Bytes, operators: Ints, ends: Ints, values: Bytes) -> tuple[Bools, Bytes]:
    """Replace operators by their values.

    Args:
        tokens: (n,) of whole expressions, one after another.
        operators: (m,) first tokens of those to replace; they may hold each other.
        ends: (m,) their last tokens.
        values: (m,) their values.

    Returns:
        Which tokens stay (n,), and what they are now: an operator's first token stays.

    >>> nested = np.array([12, 3, 11, 5, 8, 15, 1, 15], np.uint8)  # [MAX 2 [MIN 4 7 ] 0 ]
    >>> inner = evaluate(nested)
    >>> collapse(nested, *(array[1:] for array in inner))[1].tolist()  # [MAX 2 4 0 ]
    [12, 3, 5, 1, 15]
    """
    steps = np.zeros(len(tokens) + 1, np.int8)
    steps[operators] += 1
    np.subtract.at(steps, ends + 1, 1)
    within = np.cumsum(steps[:-1], dtype=np.int8)  # how many of them a token lies in
    changed = tokens.copy()
    changed[operators] = values + np.uint8(DIGIT)
    kept = within == 0
    kept[operators] = within[operators] == 1
    return kept, changed[kept]
