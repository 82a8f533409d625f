"""Shuffled ListOps expressions keep value, arguments and padding; every order is as likely."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from longlens.tasks.collapse import evaluate
from longlens.tasks.decode import listops_value
from longlens.tasks.listops import CLOSE, DIGIT, OPERATOR, ListOpsOptions, make_block
from longlens.training import augment
from longlens.training.augment import ShuffleArguments
from longlens.training.augment.digits import redraw_digits
from longlens.training.augment.listops import shuffle_arguments


def padded(block, length):
    rows = torch.zeros(len(block["lengths"]), length, dtype=torch.long)
    pieces = np.split(block["flat"], np.cumsum(block["lengths"])[:-1])
    for row, piece in zip(rows, pieces, strict=True):
        row[: len(piece)] = torch.from_numpy(piece.astype(np.int64))
    return rows


def parse(tokens):
    """Parse into nested tuples with sorted arguments: equal for equal trees in any order."""
    stack = [[]]
    for token in tokens:
        if OPERATOR <= token < CLOSE:
            stack.append([token])
        elif token == CLOSE:
            operator, *arguments = stack.pop()
            stack[-1].append((operator, *sorted(arguments, key=repr)))
        elif token:
            stack[-1].append(token)
    (tree,) = stack[0]
    return tree


@pytest.fixture(scope="module")
def block():
    return make_block(ListOpsOptions(), "train", 0, 60)


def test_values_trees_and_padding_stay(block):
    tokens = padded(block, 2048)
    shuffled = ShuffleArguments()(tokens, None, torch.Generator().manual_seed(3))
    assert (shuffled != tokens).any(1).all()
    for before, after, value, length in zip(
        tokens.numpy(), shuffled.numpy(), block["targets"], block["lengths"], strict=True
    ):
        assert listops_value(after)[0] == value
        assert parse(after.tolist()) == parse(before.tolist())
        assert (after[length:] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_small_trees_of_every_shape(seed):
    options = ListOpsOptions(min_length=2, max_length=40, max_depth=6, max_args=3, seed=seed)
    small = make_block(options, "train", 0, 200)
    tokens = padded(small, 41)
    shuffled = shuffle_arguments(tokens, torch.randint(1 << 31, tokens.shape))
    for before, after, value in zip(
        tokens.numpy(), shuffled.numpy(), small["targets"], strict=True
    ):
        assert parse(after.tolist()) == parse(before.tolist())
        assert listops_value(after)[0] == value


def test_every_order_is_equally_likely():
    # [SM 0 [MIN 1 2 3 ] 4 ]: six orders outside times six inside, independent of each other
    d = lambda value: DIGIT + value  # noqa: E731
    tokens = torch.tensor([14, d(0), 11, d(1), d(2), d(3), 15, d(4), 15])
    count = 36 * 1000
    many = ShuffleArguments()(tokens.repeat(count, 1), None, torch.Generator().manual_seed(0))
    seen = Counter(tuple(row) for row in many.tolist())
    expected = set()
    for inner in permutations([d(1), d(2), d(3)]):
        for outer in permutations([[d(0)], [11, *inner, 15], [d(4)]]):
            expected.add((14, *(t for part in outer for t in part), 15))
    assert set(seen) == expected
    chi_square = sum((n - 1000) ** 2 / 1000 for n in seen.values())
    assert chi_square < 66.6  # 35 degrees of freedom: above this once in a thousand


def draw(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return redraw_digits(tokens, torch.randint(1 << 31, tokens.shape, generator=generator))


@pytest.mark.parametrize("marked", [False, True])
def test_new_digits_keep_the_value_of_every_operator(block, marked):
    tokens = padded(block, 2048)
    values = [evaluate(row[row > 0].numpy().astype(np.uint8)) for row in tokens]
    if marked:  # closing brackets may carry values
        for row, (_, ends, of) in zip(tokens, values, strict=True):
            row[torch.from_numpy(ends)] += torch.from_numpy(of.astype(np.int64))
    drawn = draw(tokens)
    digit = (tokens >= DIGIT) & (tokens < OPERATOR)
    assert torch.equal(drawn[~digit], tokens[~digit])
    assert (drawn[digit] >= DIGIT).all() and (drawn[digit] < OPERATOR).all()
    for row, (_, _, before) in zip(drawn.clamp(max=CLOSE), values, strict=True):
        assert np.array_equal(evaluate(row[row > 0].numpy().astype(np.uint8))[2], before)
    assert 0.6 < (drawn[digit] != tokens[digit]).float().mean() < 0.75


@pytest.mark.parametrize("seed", range(5))
def test_new_digits_in_small_trees_of_every_shape(seed):
    options = ListOpsOptions(min_length=2, max_length=40, max_depth=6, max_args=5, seed=seed)
    small = make_block(options, "train", 0, 400)
    for row, value in zip(draw(padded(small, 41), seed).numpy(), small["targets"], strict=True):
        assert listops_value(row)[0] == value


NESTED = [14, 1, 2, 15]  # [SM 0 1 ]


@pytest.mark.parametrize("operator", range(OPERATOR, CLOSE), ids=["MIN", "MAX", "MED", "SM"])
@pytest.mark.parametrize("nested", [0, 1, 2])
def test_new_digits_are_as_likely_as_those_of_the_generator(operator, nested):
    """All triples of digits, each drawn anew many times, are as frequent as before."""
    triples = torch.cartesian_prod(*3 * [torch.arange(DIGIT, OPERATOR)])
    start, end = torch.tensor([operator]), torch.tensor(nested * NESTED + [CLOSE])
    rows = torch.cat([start.expand(1000, 1), triples, end.expand(1000, -1)], dim=1).repeat(60, 1)
    drawn = draw(rows)[:, 1:4]
    counts = torch.bincount((drawn - DIGIT) @ torch.tensor([100, 10, 1]), minlength=1000)
    chi_square = float(((counts - 60.0) ** 2 / 60).sum())
    assert chi_square < 1143  # 999 degrees of freedom: above this once in a thousand


@pytest.mark.parametrize(
    ("expression", "free"),
    [
        ([11, 4, 7, 9, 15], [{4}, {*range(4, 11)}, {*range(4, 11)}]),  # [MIN 3 6 8 ]
        ([11, 7, 4, 9, 15], [{*range(5, 11)}, {4}, {*range(4, 11)}]),  # one 3 stays the first
        ([12, 4, 7, 9, 15], [{*range(1, 10)}, {*range(1, 10)}, {9}]),
        ([13, 4, 7, 9, 15], [{*range(1, 8)}, {7}, {*range(7, 11)}]),
        ([13, 4, 7, 9, *NESTED, 15], [{4}, {7}, {9}]),  # each may be one of the two in the middle
        ([13, 4, 7, 9, 9, *NESTED, 15], [{*range(1, 8)}, {7}, {9}, {9, 10}]),
        ([13, 4, 7, *NESTED, *NESTED, 15], [{4}, {7}]),
        ([14, 4, 7, 15], [{*range(1, 11)}, {*range(1, 11)}]),
        ([14, 4, *NESTED, 15], [{4}]),
    ],
)
def test_what_is_held_and_what_is_free(expression, free):
    drawn = draw(torch.tensor([expression]).repeat(2000, 1))
    for place, allowed in enumerate(free, 1):
        assert set(drawn[:, place].tolist()) == allowed


def test_new_digits_are_an_option_of_the_task():
    tokens = torch.tensor([[11, 5, 8, 15]])
    kinds = [augment.build("listops", None, redraw=redraw) for redraw in (False, True)]
    many = [kind(tokens.repeat(50, 1), None, torch.Generator()) for kind in kinds]
    plain, redrawn = ({tuple(sorted(row)) for row in rows.tolist()} for rows in many)
    assert len(plain) == 1 and len(redrawn) > 3
    with pytest.raises(ValueError, match="no option 'digits'; its options: redraw"):
        augment.build("listops", None, digits=True)


def test_the_generator_decides(block):
    tokens = padded(block, 2048)[:4]
    shuffle = ShuffleArguments()
    generator = torch.Generator().manual_seed(1)
    first, second = shuffle(tokens, None, generator), shuffle(tokens, None, generator)
    again = shuffle(tokens, None, torch.Generator().manual_seed(1))
    assert torch.equal(first, again) and not torch.equal(first, second)
    # Rows are independent: a rank that takes its rows of the global noise agrees with one process.
    noise = shuffle.noise(tokens, torch.Generator().manual_seed(1))
    assert torch.equal(first[2:], shuffle.transform(tokens[2:], None, noise[2:]))


def test_a_cut_expression_is_left_alone(block):
    tokens = padded(block, 2048)[:4]
    tokens[1, 300:] = 0
    tokens[2, 0] = DIGIT  # a bracket too many
    shuffled = ShuffleArguments(redraw=True)(tokens, None, torch.Generator())
    assert torch.equal(shuffled[1:3], tokens[1:3])
    assert not torch.equal(shuffled[0], tokens[0])


def test_too_long():
    with pytest.raises(ValueError, match="at most 65536 long, got 65537"):
        shuffle_arguments(torch.zeros(1, 65537, dtype=torch.long), torch.zeros(1, 65537).long())


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")  # inductor warns of its own parts
def test_compiled_in_one_graph(block, backend):
    tokens = padded(block, 2048)[:8]
    noise = ShuffleArguments().noise(tokens, torch.Generator())
    for function in (shuffle_arguments, redraw_digits):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        assert torch.equal(compiled(tokens, noise), function(tokens, noise))
