"""Your own arrays: every kind of data that is promised, and every mistake named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from longlens.tasks import Batches, DataError, import_arrays, load
from longlens.tasks.files import locked
from longlens.tasks.imported import home_folder


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def collect(task):
    """All examples of all splits, as stored."""
    return [example for split in task.splits.values() for example in split]


def test_tokens_of_one_length(tmp_path, rng):
    tokens, classes = rng.integers(0, 50, (40, 12)), rng.integers(0, 3, 40)
    np.save(tmp_path / "x.npy", tokens)
    np.save(tmp_path / "y.npy", classes)
    import_arrays("mine", tmp_path / "x.npy", str(tmp_path / "y.npy"), root=tmp_path)
    task = load("mine", tmp_path)
    assert task.manifest.examples == {"train": 32, "validation": 4, "test": 4}
    assert (task.spec.vocab_size, task.spec.num_classes, task.spec.pad_id) == (
        tokens.max() + 1,
        3,
        None,
    )
    found = {(e.inputs[0].tobytes(), int(e.target)) for e in collect(task)}
    dtype = task["train"][0].inputs[0].dtype
    assert found == {
        (x.astype(dtype).tobytes(), int(y)) for x, y in zip(tokens, classes, strict=True)
    }


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("zero_used", [False, True])
def test_tokens_of_varying_length(tmp_path, rng, flat, zero_used):
    lengths = rng.integers(1, 9, 30)
    rows = [rng.integers(0 if zero_used else 1, 7, n) for n in lengths]
    padded = np.zeros((30, 9), np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    tokens = np.concatenate(rows) if flat else padded
    import_arrays("r", tokens, np.arange(30) % 2, lengths=lengths, root=tmp_path)
    task = load("r", tmp_path)
    assert (task.spec.pad_id, task.spec.vocab_size) == ((7, 8) if zero_used else (0, 7))
    assert sorted(e.inputs[0].tolist() for e in collect(task)) == sorted(r.tolist() for r in rows)
    for batch in Batches(task["train"], 4, multiple=4).epoch(0):
        padding = batch.inputs[~batch.mask] if batch.mask is not None else batch.inputs[:0]
        assert (padding == task.spec.pad_id).all()


def test_float_channels_and_regression(tmp_path, rng):
    values, goals = rng.normal(size=(20, 6, 2)), rng.normal(size=(20, 4, 3))
    import_arrays("f", values, goals, root=tmp_path)
    spec = load("f", tmp_path).spec
    assert (spec.kind, spec.channels, spec.target_length, spec.target_dim) == (
        "regression",
        2,
        4,
        3,
    )
    import_arrays("g", values[..., 0], goals[:, 0, 0], root=tmp_path)
    spec = load("g", tmp_path).spec
    assert (spec.channels, spec.target_length, spec.target_dim) == (1, 1, 1)
    batch = next(Batches(load("g", tmp_path)["train"], 4).epoch(0))
    assert batch.inputs.shape == (4, 6, 1) and batch.targets.shape == (4, 1, 1)


def test_regression_on_integer_targets_by_name(tmp_path, rng):
    import_arrays("k", rng.normal(size=(20, 6)), np.arange(20), kind="regression", root=tmp_path)
    assert load("k", tmp_path).spec.kind == "regression"


def test_a_stream(tmp_path):
    import_arrays(
        "s", np.arange(100, dtype=np.int16), root=tmp_path, validation=0.2, vocab_size=300
    )
    task = load("s", tmp_path)
    assert task["train"].stream.tolist() == list(range(70))
    assert task["test"].stream.tolist() == list(range(90, 100)) and task.spec.vocab_size == 300


def test_replacing(tmp_path, rng):
    x, y = rng.integers(0, 5, (20, 4)), np.arange(20) % 2
    first = import_arrays("m", x, y, root=tmp_path).identity
    with pytest.raises(DataError, match="exists"):
        import_arrays("m", x, y, root=tmp_path)
    assert import_arrays("m", x + 1, y, root=tmp_path, replace=True).identity != first
    assert load("m", tmp_path).spec.vocab_size == x.max() + 2


def test_an_import_that_waited_does_not_overwrite(tmp_path, rng):
    x, y = rng.integers(0, 5, (20, 4)), np.arange(20) % 2
    home = home_folder(tmp_path, "m")
    with ThreadPoolExecutor(1) as pool:
        with locked(home.parent / ".m.lock", "m"):
            waiting = pool.submit(import_arrays, "m", x, y, root=tmp_path)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            (home / "1").mkdir(parents=True)
        with pytest.raises(DataError, match="exists"):
            waiting.result(timeout=60)


X = np.ones((20, 4), np.int64)
Y = np.arange(20) % 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": "listops"}, "belongs to a task"),
        ({"name": "../x"}, "name must be"),
        ({"tokens": "nowhere.npy"}, "nowhere.npy"),
        ({"tokens": X.astype(object)}, "integers or floats"),
        ({"tokens": X - 2}, "0 or more"),
        ({"tokens": np.full((20, 4), np.nan)}, "NaN"),
        ({"tokens": X[:0], "targets": Y[:0]}, "empty"),
        ({"tokens": X[:, 0]}, "lengths"),
        ({"tokens": X[:, :, None]}, "shape"),
        ({"targets": Y[:-1]}, "19 rows for 20"),
        ({"targets": Y - 1}, "classes must be"),
        ({"targets": np.where(Y, np.nan, 0.0)}, "NaN"),
        ({"targets": np.ones((20, 9))}, "9 positions"),
        ({"targets": np.ones((20, 2, 2, 2))}, "regression targets"),
        ({"targets": Y * 1.0, "kind": "classification"}, "classes must be"),
        ({"kind": "next_token"}, "kind must be"),
        ({"num_classes": 1}, "num_classes"),
        ({"vocab_size": 1}, "tokens must be in 0 … 0"),
        ({"lengths": np.full(20, 5)}, "do not fit"),
        ({"lengths": np.zeros(20, int)}, "1 or more"),
        ({"tokens": np.ones(50, int), "lengths": np.full(20, 2)}, "add up to 40"),
        ({"validation": 0.0}, "shares"),
        ({"validation": 0.6, "test": 0.5}, "shares"),
        ({"tokens": X[:2], "targets": Y[:2]}, "too few"),
        ({"tokens": X, "targets": None}, "stream"),
        ({"tokens": X[:, 0] * 1.5, "targets": None}, "stream"),
        ({"tokens": X[:5, 0], "targets": None}, "too few"),
        ({"tokens": X[:, 0], "targets": None, "lengths": Y + 1}, "needs targets"),
        ({"tokens": X[:, 0], "targets": None, "kind": "regression"}, "needs targets"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(tmp_path, arguments, problem):
    given = {"name": "mine", "tokens": X, "targets": Y} | arguments
    with pytest.raises(DataError, match=problem):
        import_arrays(**given, root=tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".npy", ".json", ".partial")]


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a readable"):
        import_arrays("mine", tmp_path / "evil.npy", Y, root=tmp_path)
