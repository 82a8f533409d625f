"""Batches: one global order whatever the ranks, few shapes, the same on host and device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longlens.tasks import Batches, DataError, import_arrays, load, prepare
from longlens.tasks.order import bucket_edges, cut_into_batches, draw, permutation
from tests.tasks import layouts

SIZES = {"train": 60, "validation": 8, "test": 8}
SHORT = {"min_length": 4, "max_length": 90, "max_depth": 6, "max_args": 6}


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    return load("listops", tmp_path_factory.mktemp("listops"), **SIZES, **SHORT)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    source = layouts.write_folder(root / "f", layouts.aan_files(10))
    prepare("retrieval", root, source=source, quiet=True, subset=True)
    return load("retrieval", root, subset=True)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    root = tmp_path_factory.mktemp("stream")
    import_arrays("stream", np.arange(1000) % 251, root=root)
    return load("stream", root)


def test_every_example_once_with_its_own_content(listops):
    split = listops["train"]
    batches = Batches(split, 8, seed=1, buckets=3, multiple=8)
    seen = []
    for batch in batches.epoch(0):
        assert batch.inputs.shape[1] in batches.shapes and batch.inputs.shape[1] % 8 == 0
        assert batch.padded_tokens == batch.inputs.numel()
        assert batch.mask is None or int(batch.mask.sum()) == batch.tokens
        for row, index in enumerate(batch.index.tolist()):
            example = split[index]
            length = len(example.inputs[0])
            assert batch.inputs[row, :length].tolist() == example.inputs[0].tolist()
            assert not batch.inputs[row, length:].any()
            assert batch.targets[row] == example.target
            assert {key: int(value[row]) for key, value in batch.extras.items()} == example.extras
            if batch.mask is not None:
                assert batch.mask[row].tolist() == [k < length for k in range(batch.mask.shape[1])]
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(60))
    assert len(list(batches.epoch(0))) == len(batches) == 8


def test_at_most_one_batch_of_an_epoch_is_not_full(listops):
    sizes = [len(b.index) for b in Batches(listops["train"], 16, buckets=4, multiple=8).epoch(3)]
    assert sorted(sizes) == [12, 16, 16, 16]
    dropped = Batches(listops["train"], 16, buckets=4, multiple=8, drop_last=True)
    assert [len(b.index) for b in dropped.epoch(3)] == [16, 16, 16] and len(dropped) == 3


def test_order_is_a_pure_function_of_seed_and_epoch(listops):
    def order(seed, epoch):
        return [b.index.tolist() for b in Batches(listops["train"], 8, seed=seed).epoch(epoch)]

    assert order(5, 2) == order(5, 2)
    assert len({str(order(s, e)) for s in range(3) for e in range(3)}) == 9


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_same_global_batches(listops, pairs, world_size):
    for split in (listops["train"], pairs["train"]):
        whole = list(Batches(split, 8, seed=3, multiple=8).epoch(1))
        shares = [
            list(Batches(split, 8, seed=3, multiple=8, rank=r, world_size=world_size).epoch(1))
            for r in range(world_size)
        ]
        for number, batch in enumerate(whole):
            parts = [share[number] for share in shares]
            assert torch.equal(batch.inputs, torch.cat([part.inputs for part in parts]))
            assert torch.equal(batch.targets, torch.cat([part.targets for part in parts]))
            assert batch.tokens == sum(part.tokens for part in parts)


def test_starting_in_the_middle_gives_the_same_batches(listops, stream):
    for batches in (Batches(listops["train"], 8, seed=2), Batches(stream["train"], 4, length=16)):
        whole = list(batches.epoch(4))
        for rest, again in zip(whole[3:], batches.epoch(4, start=3), strict=True):
            assert torch.equal(rest.inputs, again.inputs)
        assert list(batches.epoch(4, start=len(whole))) == []


@pytest.mark.parametrize("which", ["listops", "pairs", "stream", "floats", "fixed"])
def test_resident_equals_gathered(which, listops, pairs, stream, tmp_path):
    options = {}
    if which == "stream":
        split, options = stream["validation"], {"length": 16, "shuffle": False}
    elif which == "floats":
        values = np.random.default_rng(0).normal(size=(57, 3)).astype(np.float32)
        lengths = np.array([3, 9, 1, 7, 12, 2, 6, 5, 8, 4])
        import_arrays("ragged", values, np.arange(10) % 2, lengths=lengths, root=tmp_path)
        split = load("ragged", tmp_path)["train"]
    elif which == "fixed":
        split = load("select", tmp_path, length=16, marked=4, train=9, validation=2, test=2)[
            "train"
        ]
    else:
        split = {"listops": listops, "pairs": pairs}[which]["train"]
    plain = Batches(split, 4, multiple=4, resident=False, **options)
    fast = Batches(split, 4, multiple=4, resident=True, **options)
    for a, b in zip(plain.epoch(0), fast.epoch(0), strict=True):
        assert torch.equal(a.inputs, b.inputs) and a.inputs.dtype == b.inputs.dtype
        assert torch.equal(a.targets, b.targets) and a.targets.dtype == b.targets.dtype
        assert (a.mask is None) == (b.mask is None)
        assert a.mask is None or torch.equal(a.mask, b.mask)
        assert (a.tokens, a.padded_tokens) == (b.tokens, b.padded_tokens)


def test_pairs_have_two_documents_and_a_mask_of_their_own(pairs):
    split = pairs["train"]
    for batch in Batches(split, 4, multiple=8, buckets=2).epoch(0):
        assert batch.inputs.shape[:2] == (len(batch.index), 2)
        for row, index in enumerate(batch.index.tolist()):
            for side, document in enumerate(split[index].inputs):
                assert batch.inputs[row, side, : len(document)].tolist() == document.tolist()
        assert batch.padded_tokens == batch.inputs.numel()
        real = int((batch.inputs > 0).sum())
        assert batch.tokens == real


def test_longer_examples_are_cut(listops, pairs):
    for split in (listops["train"], pairs["train"]):
        for batch in Batches(split, 4, length=10, multiple=1).epoch(0):
            assert batch.inputs.shape[-1] <= 10


def test_regression_is_not_cut(tmp_path):
    split = load("reverse", tmp_path, length=16, train=4, validation=2, test=2)["train"]
    Batches(split, 2, length=16)
    with pytest.raises(DataError, match="cannot be cut"):
        Batches(split, 2, length=8)


def test_evaluation_reads_every_token_of_a_stream_once(stream):
    split = stream["validation"]
    predicted = []
    for batch in Batches(split, 3, length=16, shuffle=False).epoch(0):
        for row in range(len(batch.inputs)):
            length = 16 if batch.mask is None else int(batch.mask[row].sum())
            assert torch.equal(batch.inputs[row, 1:length], batch.targets[row, : length - 1])
            predicted += batch.targets[row, :length].tolist()
    assert predicted == split.stream[1:].tolist()


def test_training_windows_move_from_epoch_to_epoch(stream):
    batches = Batches(stream["train"], 4, length=16)
    firsts = set()
    for epoch in range(6):
        for batch in batches.epoch(epoch):
            assert batch.inputs.shape[1] == 16 and batch.mask is None
            assert torch.equal((batch.inputs + 1) % 251, batch.targets)
        firsts.add(int(batches._batch(np.array([0]), 16, draw(16, 0, epoch, 1)).inputs[0, 0]))
    assert len(firsts) > 2


def test_a_limit_is_a_fixed_subset(listops):
    small = Batches(listops["train"], 4, limit=10, seed=1)
    large = Batches(listops["train"], 4, limit=20, seed=2)
    few = {i for batch in small.epoch(0) for i in batch.index.tolist()}
    more = {i for batch in large.epoch(5) for i in batch.index.tolist()}
    assert len(few) == 10 and len(more) == 20 and few < more


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
    buckets=st.integers(1, 6),
    multiple=st.sampled_from([1, 8, 64]),
)
def test_batches_cover_everything_and_pad_enough(lengths, batch_size, buckets, multiple):
    sizes = np.array(lengths)
    edges = bucket_edges(sizes, buckets, multiple)
    assert len(edges) <= buckets and edges[-1] >= sizes.max() and not (edges % multiple).any()
    order = permutation(len(sizes), 7)
    batches = cut_into_batches(sizes, edges, batch_size, order, drop_last=False)
    assert sorted(np.concatenate([index for index, _ in batches])) == list(range(len(sizes)))
    assert sum(len(index) != batch_size for index, _ in batches) <= 1
    assert len(batches) == -(-len(sizes) // batch_size)
    for index, length in batches:
        assert sizes[index].max() <= length and length in edges


def test_orders_never_change():
    """Pinned: a change here would change every run's batches."""
    assert permutation(8, 0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert permutation(8, 3, 1).tolist() == [5, 6, 3, 7, 0, 1, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"batch_size": 6, "world_size": 4}, "multiple of world_size"),
        ({"batch_size": 8, "world_size": 2, "rank": 2}, "rank must be"),
        ({"batch_size": 8, "length": 0}, "length must be"),
        ({"batch_size": 8, "limit": 61}, "limit must be"),
        ({"batch_size": 8, "buckets": 0}, "buckets"),
    ],
)
def test_wrong_arguments_are_named(listops, arguments, problem):
    with pytest.raises(DataError, match=problem):
        Batches(listops["train"], **arguments)


def test_streams_need_a_window_that_fits(stream):
    with pytest.raises(DataError, match="needs length"):
        Batches(stream["train"], 4)
    with pytest.raises(DataError, match="at most half"):
        Batches(stream["train"], 4, length=700)
    with pytest.raises(DataError, match="epoch"):
        next(Batches(stream["train"], 4, length=8).epoch(-1))
    with pytest.raises(DataError, match="start"):
        next(Batches(stream["train"], 4, length=8).epoch(0, start=999))


@pytest.mark.gpu
def test_resident_on_the_gpu_equals_the_host(listops, pairs):
    for split in (listops["train"], pairs["train"]):
        host = Batches(split, 4, multiple=8)
        device = Batches(split, 4, multiple=8, device="cuda")
        assert device.resident
        for a, b in zip(host.epoch(0), device.epoch(0), strict=True):
            assert torch.equal(a.inputs, b.inputs.cpu()) and torch.equal(a.targets, b.targets.cpu())


def test_a_task_that_is_asked_at_its_end_is_not_cut(tmp_path):
    task = load("lag", tmp_path, length=64, distance=8, train=8, validation=4, test=4)
    with pytest.raises(DataError, match="length must be 64 or more, got 48"):
        Batches(task["train"], 2, length=48)
    assert len(Batches(task["train"], 2, length=64)) == 4
