"""Splits as data sets of torch and of Hugging Face: the same examples and batches as ours."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from longlens.tasks import (
    Batches,
    DataError,
    TaskDataset,
    import_arrays,
    import_dataset,
    load,
    prepare,
    to_datasets,
)

from . import layouts

SIZES = dict(train=12, validation=4, test=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def tasks(root):
    yield load("listops", root, **SIZES), {}
    yield load("cumsum", root, length=16, **SIZES), {}
    yield load("far-order", root, distance=8, **SIZES), {}
    stream = np.arange(500) % 7
    import_arrays("stream", stream, root=root, replace=True)
    yield load("stream", root), dict(length=30)


def same(a, b):
    for name in ("inputs", "targets", "mask", "index"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None and y is None) or torch.equal(x, y), name
    assert (a.tokens, a.padded_tokens) == (b.tokens, b.padded_tokens)
    assert a.extras.keys() == b.extras.keys()
    assert all(torch.equal(a.extras[key], b.extras[key]) for key in a.extras)


def test_a_loader_gives_the_batches_of_ours(root):
    for task, options in tasks(root):
        split = task["train"]
        data = TaskDataset(split, **options)
        loader = DataLoader(data, batch_size=5, collate_fn=data.collate)
        ours = Batches(split, 5, shuffle=False, **options)
        found = list(loader)
        assert len(found) == len(ours)
        for batch in found:
            same(batch, ours.examples(batch.index.numpy()))


def test_pairs(root):
    folder = layouts.write_folder(root / "aan", layouts.aan_files(8))
    prepare("retrieval", root, source=folder, quiet=True, subset=True)
    split = load("retrieval", root, subset=True)["train"]
    data, ours = TaskDataset(split, length=40), Batches(split, 3, shuffle=False, length=40)
    for batch in DataLoader(data, batch_size=3, collate_fn=data.collate):
        same(batch, ours.examples(batch.index.numpy()))


def test_examples_out_of_range_and_streams_without_length(root):
    data = TaskDataset(load("listops", root, **SIZES)["train"])
    assert data[-1]["index"] == 11
    with pytest.raises(IndexError, match="example 12 of 12"):
        data[12]
    with pytest.raises(DataError, match="needs length"):
        import_arrays("stream", np.arange(500) % 7, root=root, replace=True)
        TaskDataset(load("stream", root)["train"])


def test_a_pass_over_batches_is_the_next_epoch(root):
    split = load("listops", root, **SIZES)["train"]
    batches = Batches(split, 4, seed=3)
    first, second = ([b.index.tolist() for b in batches] for _ in range(2))
    expected = [[b.index.tolist() for b in Batches(split, 4, seed=3).epoch(e)] for e in (0, 1)]
    assert [first, second] == expected and first != second


def test_a_batch_moves_as_one(root):
    split = load("listops", root, **SIZES)["train"]
    batch = next(iter(Batches(split, 4)))
    moved = batch.to("meta")
    assert moved.inputs.is_meta and moved.mask.is_meta and moved.extras["depth"].is_meta
    assert not moved.index.is_meta and moved.tokens == batch.tokens


def test_to_a_hugging_face_data_set_and_back(root):
    pytest.importorskip("datasets")
    for name, options in (("listops", {}), ("cumsum", dict(length=16))):
        task = load(name, root, **options, **SIZES)
        made = to_datasets(task)
        import_dataset(made, f"{name}-again", root=root)
        again = load(f"{name}-again", root)
        assert again.examples == task.examples and again.spec.kind == task.spec.kind
        for split in SIZES:
            for ours, theirs in zip(task[split], again[split], strict=True):
                np.testing.assert_allclose(ours.inputs[0], theirs.inputs[0])
                np.testing.assert_allclose(ours.target, theirs.target)
    with pytest.raises(DataError, match="one stream of tokens"):
        import_arrays("stream", np.arange(500) % 7, root=root, replace=True)
        to_datasets(load("stream", root))


def test_examples_whose_labels_are_kept_secret_are_named(root):
    """Hugging Face writes -1 for them, which would be a class of its own."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])
    )
    known = dict(text=["a", "b"] * 10, label=[0, 1] * 10)
    secret = dict(text=["a", "b"] * 3, label=[-1] * 6)
    parts = {"train": known, "test": secret}
    made = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict(part, features=kinds) for name, part in parts.items()}
    )
    with pytest.raises(DataError, match=r"example 21 \(test\) has no label, -1"):
        import_dataset(made, "secret", root=root)
