"""Pathfinder images mirrored, turned and shifted; easier sets (ListOps too) mixed into training."""

import numpy as np
import pytest
import torch

from longlens import tasks
from longlens.tasks import Batches, DataError
from longlens.tasks.data import Rows, Split
from longlens.tasks.mix import MixedTask, join_splits, with_easier_sets
from longlens.tasks.spec import Spec
from longlens.training.augment import TurnAndShift, build


def test_flips_are_exact():
    image = torch.arange(36).view(1, 36)
    turn = TurnAndShift((6, 6), angle=0.0, shift=0.0)
    noise = torch.tensor([[0.1, 0.9, 0.5, 0.5, 0.5], [0.9, 0.1, 0.5, 0.5, 0.5]])
    out = turn.transform(image.repeat(2, 1), None, noise).view(2, 6, 6)
    assert torch.equal(out[0], image.view(6, 6).flip(1))
    assert torch.equal(out[1], image.view(6, 6).flip(0))


def test_angles_and_shifts_have_the_stated_range():
    # A bright dot right of the centre: where it lands says the angle; at the centre, the shift.
    size = 45
    dot = torch.zeros(1, size, size, dtype=torch.long)
    dot[0, 21:24, 40:43] = 255
    turn = TurnAndShift((size, size), flip=0.0, shift=0.0, interpolation="bilinear")
    noise = torch.rand(500, 5, generator=torch.Generator().manual_seed(0))
    x, y = centre_of_mass(turn.transform(dot.view(1, -1).repeat(500, 1), None, noise), size)
    angle = np.degrees(np.arctan2(y - 22, x - 22))
    assert np.abs(angle - (2 * noise[:, 2].numpy() - 1) * 10).max() < 0.3
    middle = torch.zeros(1, size, size, dtype=torch.long)
    middle[0, 21:24, 21:24] = 255
    shift = TurnAndShift((size, size), flip=0.0, angle=0.0, interpolation="bilinear")
    x, y = centre_of_mass(shift.transform(middle.view(1, -1).repeat(500, 1), None, noise), size)
    assert np.abs(x - 22 - (2 * noise[:, 3].numpy() - 1) * 4.5).max() < 0.05
    assert np.abs(y - 22 - (2 * noise[:, 4].numpy() - 1) * 4.5).max() < 0.05


def centre_of_mass(tokens, size):
    images = tokens.view(-1, size, size).double().numpy()
    where, total = np.arange(size), images.sum((1, 2))
    return (images.sum(1) @ where) / total, (images.sum(2) @ where) / total


def test_the_generator_decides():
    turn = build("pathfinder", (32, 32))
    images = torch.randint(256, (5, 1024))
    first = turn(images, None, torch.Generator().manual_seed(2))
    assert torch.equal(first, turn(images, None, torch.Generator().manual_seed(2)))
    assert not torch.equal(first, turn(images, None, torch.Generator().manual_seed(3)))
    with pytest.raises(ValueError, match="shift must be in 0 … 1"):
        TurnAndShift((32, 32), shift=-0.1)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    kinds = ("hard", "easy", "intermediate")
    return [tasks.load("pathfinder", root, difficulty=kind, images=40) for kind in kinds]


def test_training_mixes_and_judging_does_not(sets):
    hard, easy, middle = sets
    mixed = MixedTask(hard, [easy, middle])
    assert len(mixed["train"]) == 96
    for split in ("validation", "test"):
        assert np.array_equal(
            mixed[split].arrays["inputs"].whole(), hard[split].arrays["inputs"].whole()
        )
    for start, part in ((0, hard), (32, easy), (64, middle)):
        for index in (0, 31):
            joined, own = mixed["train"][start + index], part["train"][index]
            assert np.array_equal(joined.inputs[0], own.inputs[0]) and joined.target == own.target
    assert len({task.identity for task in (mixed, MixedTask(hard, [easy]), hard, easy)}) == 4
    assert mixed.identity == MixedTask(hard, [easy, middle]).identity


def test_the_easier_sets_are_found_by_themselves(sets):
    hard, easy, middle = sets
    mixed = with_easier_sets(hard, hard.folder.parent.parent)
    assert mixed.identity == MixedTask(hard, [easy, middle]).identity
    assert len(with_easier_sets(middle, hard.folder.parent.parent)["train"]) == 64
    assert len(with_easier_sets(easy)["train"]) == 32


@pytest.mark.parametrize("resident", [True, False])
def test_batches_of_a_mixed_task(sets, resident):
    mixed = MixedTask(sets[0], sets[1:])
    batches = list(Batches(mixed["train"], 10, seed=1, resident=resident).epoch(0))
    index = torch.cat([batch.index for batch in batches])
    assert sorted(index.tolist()) == list(range(96))
    inputs = torch.cat([batch.inputs for batch in batches])
    stored = torch.from_numpy(mixed["train"].arrays["inputs"].whole().astype(np.int64))
    assert torch.equal(inputs, stored[index])


def test_varying_lengths_join(tmp_path):
    sizes = dict(train=5, validation=1, test=1, max_depth=4)
    short = tasks.load("listops", tmp_path, min_length=3, max_length=30, **sizes)
    long = tasks.load("listops", tmp_path, min_length=30, max_length=60, **sizes)
    joined = join_splits([short["train"], long["train"]])
    assert len(joined) == 10 and joined.spec.max_length == long.spec.max_length
    for index in range(5):
        assert np.array_equal(joined[index].inputs[0], short["train"][index].inputs[0])
        assert np.array_equal(joined[5 + index].inputs[0], long["train"][index].inputs[0])
        assert joined[5 + index].extras == long["train"][index].extras


def test_easier_listops_are_shorter(tmp_path):
    task = tasks.load("listops", tmp_path, train=6, validation=2, test=2)
    mixed = with_easier_sets(task, tmp_path)
    lengths = [len(example.inputs[0]) for example in mixed["train"]]
    assert all(n > 500 for n in lengths[:6]) and len(lengths) == 18
    assert all(50 < n < 200 for n in lengths[6:12]) and all(200 < n < 500 for n in lengths[12:])
    assert all(np.array_equal(mixed["test"][n].inputs[0], task["test"][n].inputs[0])
               for n in range(2))  # fmt: skip


def fixed_length(length):
    spec = Spec("classification", "tokens", length, vocab_size=2, num_classes=2)
    arrays = {"inputs": Rows([np.zeros((2, length))]), "targets": Rows([np.zeros(2)])}
    return Split("train", spec, arrays, None)


def test_what_does_not_fit_is_refused(sets, tmp_path):
    sizes = dict(train=5, validation=1, test=1)
    listops = tasks.load("listops", tmp_path, **sizes)
    with pytest.raises(DataError, match="one kind"):
        join_splits([sets[0]["train"], listops["train"]])
    with pytest.raises(DataError, match="lengths are equal"):
        join_splits([fixed_length(3), fixed_length(4)])
    with pytest.raises(DataError, match="none"):
        join_splits([])
    cumsum = tasks.load("cumsum", tmp_path, length=16, **sizes)
    with pytest.raises(DataError, match="cumsum has no easier sets"):
        with_easier_sets(cumsum)
