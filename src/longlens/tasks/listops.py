"""ListOps (Nangia & Bowman 2018) with the Long Range Arena's constants, made level by level.

An example is a tree of nested operators on digits and the digit that it evaluates to::

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

A node is an operator with probability 1/4 and a digit otherwise; an operator has 2 … 10 arguments;
the root has depth 1 and nodes of depth 10 are digits. Trees are kept when 500 < length < 2000,
where an operator, its closing bracket and a digit count one each. One tree in twelve passes (of
those whose root is an operator, one in three), so a thousand candidates grow at once, one level at
a time, as shapes only; digits and operators are drawn for the kept ones, and values and token
positions follow from whole-level array operations (``reduceat`` upwards, cumulative sums
downwards).

Kept beside the label, so that accuracy can be reported by them: the root's operator, the depth of
the tree, and the depth to which it must be read to know its value.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from longlens.tasks.arrays import Array, Bools, Bytes, Ints
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least
from longlens.tasks.order import generator
from longlens.tasks.spec import SPLITS, Spec

OPERATORS = ("MIN", "MAX", "MED", "SM")
PAD, DIGIT, OPERATOR, CLOSE, VOCAB = 0, 1, 11, 15, 16  # ids: digit d is 1+d, operator o is 11+o
OPERATOR_SHARE = 0.25
BLOCK = 2000
_CANDIDATES = 512
_GIVE_UP = 400  # rounds of candidates without a single new example


@dataclass(frozen=True)
class ListOpsOptions:
    """Options of the generator; the defaults are the Long Range Arena's.

    Args:
        train: examples to make.
        validation: examples to make.
        test: examples to make.
        min_length: an example is kept if it is longer than this.
        max_length: an example is kept if it is shorter than this.
        max_depth: of a tree; only digits at the last level.
        max_args: of an operator, at most; at least two.
        seed: of everything that is drawn.
    """

    train: int = 96_000
    validation: int = 2_000
    test: int = 2_000
    min_length: int = 500
    max_length: int = 2_000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, "listops", train=1, validation=1, test=1, min_length=0, max_length=1)
        check_least(self, "listops", max_depth=2, max_args=2, seed=0)
        if self.max_length - self.min_length < 2:
            raise DataError(
                f"listops: max_length must exceed min_length by 2 or more, "
                f"got {self.min_length} and {self.max_length}"
            )


@dataclass
class _Level:
    """Nodes of one depth over all trees, siblings side by side."""

    tree: Ints  # (n,) which tree a node belongs to
    parent: Ints  # (n,) the parent's place in the level above (the root: 0)
    args: Ints  # (n,) number of arguments; 0: a digit


def _grow(options: ListOpsOptions, rng: np.random.Generator, count: int) -> list[_Level]:
    """Grow ``count`` trees whose root is an operator (a lone digit is never long enough)."""
    tree = np.arange(count)
    parent = np.zeros(count, np.int64)
    length = np.zeros(count, np.int64)
    levels = []
    for depth in range(1, options.max_depth + 1):
        is_operator = np.full(len(tree), depth < options.max_depth)
        if 1 < depth < options.max_depth:
            is_operator = rng.random(len(tree)) < OPERATOR_SHARE
        args = np.where(is_operator, rng.integers(2, options.max_args + 1, len(tree)), 0)
        length += np.bincount(tree, minlength=count) + np.bincount(
            tree[is_operator], minlength=count
        )
        levels.append(_Level(tree, parent, args))
        alive = (length < options.max_length)[tree] & is_operator  # too long already: stop growing
        parent = np.repeat(np.arange(len(tree)), np.where(alive, args, 0))
        tree = tree[parent]
    kept = (length > options.min_length) & (length < options.max_length)
    return _select(levels, kept)


def _select(levels: list[_Level], kept: Bools) -> list[_Level]:
    """Only the kept trees, renumbered from 0."""
    number = np.cumsum(kept) - 1
    out = []
    place = np.zeros(1, np.int64)
    for depth, level in enumerate(levels):
        mine = kept[level.tree]
        parent = place[level.parent[mine]] if depth else level.parent[mine]
        out.append(_Level(number[level.tree[mine]], parent, level.args[mine]))
        place = np.cumsum(mine) - 1
    return [level for level in out if len(level.tree)]


def reduce_arguments(operator: Ints, args: Ints, low: Bytes, high: Bytes) -> tuple[Bytes, Bytes]:
    """Bounds on each operator's value from bounds on its arguments.

    All four operators are monotone except the sum, which is known only when every argument is.

    Args:
        operator: (m,) which of the four.
        args: (m,) number of arguments.
        low: (k, n) lower bounds of all n arguments, siblings side by side, in k views.
        high: (k, n) upper bounds.

    Returns:
        (k, m) lower and upper bounds.
    """
    starts = np.cumsum(args) - args
    node = np.repeat(np.arange(len(args), dtype=np.int32) << 4, args)
    bounds = []
    for side in (low, high):
        ordered = (np.sort(node | side, axis=1) & 15).astype(np.uint8)  # sorted inside each node
        middle = ordered[:, starts + (args - 1) // 2] + ordered[:, starts + args // 2]
        bounds.append(
            [
                ordered[:, starts],
                ordered[:, starts + args - 1],
                middle // 2,  # the median, rounded down where it falls between two digits
            ]
        )
    known = ~np.logical_or.reduceat(low != high, starts, axis=1)
    total = np.add.reduceat(low, starts, axis=1, dtype=np.uint16) % 10
    bounds[0].append(np.where(known, total, 0).astype(np.uint8))
    bounds[1].append(np.where(known, total, 9).astype(np.uint8))
    return np.choose(operator, bounds[0]), np.choose(operator, bounds[1])


def _evaluate(levels: list[_Level], symbols: list[Ints]) -> tuple[Bytes, Bytes]:
    """Values of the trees (count,), and the depth to which each must be read to know it (count,).

    Every level is evaluated in several views at once: in view r of a level, operators r or more
    levels further down are unknown (0 … 9). A value is decided in the first view whose bounds meet
    at the root: a 9 among the arguments of a MAX decides it at depth 2.
    """
    low = high = np.zeros((0, 0), np.uint8)
    for level, symbol in zip(reversed(levels), reversed(symbols), strict=True):
        inner = level.args > 0
        views = len(low) + 1
        next_low = np.tile(symbol.astype(np.uint8), (views, 1))
        next_high = next_low.copy()
        next_low[0, inner], next_high[0, inner] = 0, 9
        if inner.any():
            reduced = reduce_arguments(symbol[inner], level.args[inner], low, high)
            next_low[1:, inner], next_high[1:, inner] = reduced
        low, high = next_low, next_high
    return low[-1], (low == high).argmax(axis=0).astype(np.uint8) + np.uint8(1)


def _layout(levels: list[_Level], symbols: list[Ints]) -> tuple[Bytes, Ints, Bytes]:
    """Tokens in reading order (total,), length (count,) and depth (count,) of each tree."""
    sizes: list[Ints] = []
    below: Ints = np.zeros(0, np.int64)
    for level in reversed(levels):
        inner = level.args > 0
        size = np.ones(len(level.args), np.int64)
        if inner.any():
            args = level.args[inner]
            size[inner] = 2 + np.add.reduceat(below, np.cumsum(args) - args)
        below = size
        sizes.append(size)
    sizes.reverse()
    lengths = sizes[0]
    flat = np.empty(int(lengths.sum()), np.uint8)
    depths = np.zeros(len(lengths), np.uint8)
    start = np.cumsum(lengths) - lengths  # of each root
    for depth, (level, symbol, size) in enumerate(zip(levels, symbols, sizes, strict=True)):
        if depth:  # after the parent's bracket and the siblings before
            before = np.cumsum(size) - size
            eldest = np.flatnonzero(np.r_[True, level.parent[1:] != level.parent[:-1]])
            offset = np.repeat(before[eldest], np.diff(np.r_[eldest, len(size)]))
            start = start[level.parent] + 1 + before - offset
        inner = level.args > 0
        flat[start] = np.where(inner, OPERATOR, DIGIT) + symbol
        flat[start[inner] + size[inner] - 1] = CLOSE
        depths[level.tree] = depth + 1
    return flat, lengths, depths


def _finish(levels: list[_Level], rng: np.random.Generator) -> dict[str, Array]:
    """Draw digits and operators; evaluate and lay out the trees."""
    symbols = []
    for level in levels:
        digit, operator = rng.integers(0, 10, len(level.tree)), rng.integers(0, 4, len(level.tree))
        symbols.append(np.where(level.args > 0, operator, digit))
    targets, decided = _evaluate(levels, symbols)
    flat, lengths, depth = _layout(levels, symbols)
    return {
        "flat": flat,
        "lengths": lengths.astype(np.int32),
        "targets": targets,
        "operator": symbols[0].astype(np.uint8),
        "depth": depth,
        "decided": decided,
    }


def example_hashes(arrays: dict[str, Array]) -> list[bytes]:
    """Sixteen bytes for each example that are equal for equal token sequences only."""
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    sequences = np.split(arrays["flat"], ends[:-1])
    return [hashlib.blake2b(tokens.tobytes(), digest_size=16).digest() for tokens in sequences]


def _pick(arrays: dict[str, Array], index: list[int]) -> dict[str, Array]:
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    sequences = np.split(arrays["flat"], ends[:-1])
    out = {key: value[index] for key, value in arrays.items() if key != "flat"}
    out["flat"] = np.concatenate([sequences[i] for i in index]) if index else arrays["flat"][:0]
    return out


def make_block(
    options: ListOpsOptions,
    split: str,
    block: int,
    count: int,
    avoid: frozenset[bytes] = frozenset(),
) -> dict[str, Array]:
    """Make ``count`` different examples, a pure function of the arguments.

    Returns:
        ``flat`` tokens (total,), ``lengths`` (count,), ``targets`` (count,) 0 … 9, ``operator``
        (count,) the root's, 0 … 3 in the order of :data:`OPERATORS`, ``depth`` (count,) of the
        tree, ``decided`` (count,) the depth to which it must be read to know its value.

    >>> tiny = ListOpsOptions(min_length=3, max_length=20, max_depth=3)
    >>> block = make_block(tiny, "train", 0, 4)
    >>> len(block["targets"]), int(block["lengths"].sum()) == len(block["flat"])
    (4, True)
    """
    rng = generator(options.seed, SPLITS.index(split), block)
    seen = set(avoid)
    parts: list[dict[str, Array]] = []
    missing, fruitless = count, 0
    while missing:
        levels = _grow(options, rng, _CANDIDATES)
        index: list[int] = []
        if levels:
            candidates = _finish(levels, rng)
            for i, key in enumerate(example_hashes(candidates)):
                if key not in seen and len(index) < missing:
                    seen.add(key)
                    index.append(i)
        if index:
            parts.append(_pick(candidates, index))
            missing -= len(index)
        fruitless = 0 if index else fruitless + 1
        if fruitless == _GIVE_UP:
            raise DataError(
                f"listops: found no further example with {options.min_length} < length < "
                f"{options.max_length} and depth up to {options.max_depth}; ask for fewer examples "
                "or allow other lengths"
            )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits; no example occurs twice, within a split or between two."""
    options: ListOpsOptions = draft.options
    sizes = {split: getattr(options, split) for split in SPLITS}
    draft.blocks(make_block, sizes, BLOCK)
    seen: set[bytes] = set()
    longest = 0
    for split in ("test", "validation", "train"):  # in a clash the training example is replaced
        for block, start in enumerate(range(0, sizes[split], BLOCK)):
            arrays = draft.writer.read_block(split, block)
            hashes = example_hashes(arrays)
            if not seen.isdisjoint(hashes):
                count = min(BLOCK, sizes[split] - start)
                arrays = make_block(options, split, block, count, frozenset(seen))
                draft.writer.write_block(split, block, arrays)
                hashes = example_hashes(arrays)
            seen.update(hashes)
            longest = max(longest, int(arrays["lengths"].max()))
    return replace(spec(options), max_length=longest), sizes


def spec(options: ListOpsOptions) -> Spec:
    """The shape of the task; its examples may all be shorter."""
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=options.max_length - 1,
        vocab_size=VOCAB,
        pad_id=PAD,
        num_classes=10,
        encoding="listops",
        class_names=tuple("0123456789"),
        extras=("operator", "depth", "decided"),
    )


def estimate(options: ListOpsOptions) -> int:
    """Bytes of the result, from above."""
    examples = options.train + options.validation + options.test
    return examples * (options.max_length + 16)
