"""Files that researchers have: arrays, tables, the UCR and UEA layouts, Parquet, saved data sets.

Every reader gives a :class:`Given`: examples as they are, labels as they are written. What they
mean is inferred, and said, in ``own.py``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.delimited import read_table, without_ends
from longlens.tasks.errors import DataError
from longlens.tasks.files import read_text
from longlens.tasks.given import LABELS, Given, as_number, first_of, places, tells_rows_apart
from longlens.tasks.npy import open_npy
from longlens.tasks.split import WORDS

INPUTS = ("inputs", "x", "tokens", "data", "series", "text", "sequence", "values")
TABLES = (".csv", ".tsv", ".txt")
ENDINGS = (".npy", ".npz", *TABLES, ".ts", ".parquet")


def read_file(path: Path, label: str | None = None, columns: Sequence[str] | None = None) -> Given:
    """Read one file.

    Args:
        path: of a file, or of a saved data set.
        label: name or number (from 0) of the column with the labels; None: it is inferred.
        columns: names of those with the inputs, in the order in which the training file has them.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if path.is_dir():
        return _read_saved(path, label, columns)
    ending = path.suffix.lower()
    if ending == ".npy":
        return Given(open_npy(path, str(path)))
    if ending == ".npz":
        return _read_npz(path, label)
    if ending in TABLES:
        return read_table(path, label, columns)
    if ending == ".ts":
        return _read_ts(path)
    if ending == ".parquet":
        return _read_parquet(path, label, columns)
    raise DataError(f"{path}: the ending must be one of {', '.join(ENDINGS)}, got {ending!r}")


def _read_npz(path: Path, label: str | None) -> Given:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable .npz file ({error})") from None
    lower = {name.lower(): name for name in arrays}
    if first_of(lower, [f"{name}_train" for name in INPUTS]):
        return _parts_of_npz(path, {low: arrays[name] for low, name in lower.items()})
    name = first_of(lower, INPUTS)
    goal = label.lower() if label else first_of(lower, LABELS)
    if name is None or goal is None or goal not in lower:
        raise DataError(f"{path} must have arrays x and y, or x_train, y_train, "
                        f"x_test, y_test; it has {', '.join(arrays)}")  # fmt: skip
    values, targets = arrays[lower[name]], arrays[lower[goal]]
    _same_count(path, targets, values)
    split = arrays[lower["split"]].tolist() if "split" in lower else None
    examples: Sequence[Any] | Array = values
    if "lengths" in lower:
        examples = _shortened(path, values, arrays[lower["lengths"]])
    return Given(examples, targets.tolist(), split, [f"inputs {name}, labels {goal}"])


def _parts_of_npz(path: Path, arrays: dict[str, Array]) -> Given:
    """x_train and y_train, x_test and y_test, and of validation where they are there."""
    examples: list[Any] = []
    labels: list[Any] = []
    split: list[str] = []
    named = []
    for word, part in WORDS.items():
        inputs = first_of(arrays, [f"{name}_{word}" for name in INPUTS])
        goal = first_of(arrays, [f"{name}_{word}" for name in LABELS])
        if (inputs is None) != (goal is None):
            raise DataError(f"{path} has {inputs or goal} without the other of inputs and labels; "
                            f"it has {', '.join(arrays)}")  # fmt: skip
        if inputs is not None and goal is not None:
            _same_count(path, arrays[goal], arrays[inputs])
            examples += [*arrays[inputs]]
            labels += arrays[goal].tolist()
            split += [part] * len(arrays[inputs])
            named.append(inputs)
    if "test" not in split:
        raise DataError(f"{path} has {named[0]} but not all of x_test, y_train and y_test; it has "
                        f"{', '.join(arrays)}")  # fmt: skip
    return Given(examples, labels, split, [f"split as given: {', '.join(named)}"])


def _shortened(path: Path, values: Array, lengths: Array) -> list[Array]:
    """The first positions of each example, as many as its length says."""
    if lengths.shape != (len(values),) or lengths.dtype.kind not in "ui":
        raise DataError(f"{path}: lengths must be {len(values)} whole numbers, got "
                        f"{lengths.dtype} of shape {lengths.shape}")  # fmt: skip
    wrong = np.flatnonzero((lengths < 1) | (lengths > values.shape[1]))
    if len(wrong):
        raise DataError(f"{path}: lengths must be 1 to {values.shape[1]}, got {lengths[wrong[0]]} "
                        f"for example {wrong[0] + 1}")  # fmt: skip
    return [row[:n] for row, n in zip(values, lengths, strict=True)]


def _same_count(path: Path, labels: Array, examples: Array) -> None:
    if labels.ndim != 1 or len(labels) != len(examples):
        raise DataError(f"{path}: {len(examples)} examples but labels of shape {labels.shape}")


def _read_ts(path: Path) -> Given:
    """The UEA/UCR .ts layout: @ lines, then channels parted by ':', the label last."""
    facts: dict[str, str] = {}
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        line = line.strip()
        if line.startswith("@"):
            name, _, rest = line[1:].partition(" ")
            facts[name.lower()] = rest.strip()
        elif line and not line.startswith("#"):
            lines.append((number, line))
    if facts.get("timestamps", "false").lower() == "true":
        raise DataError(f"{path}: time stamps are not read; write the values alone")
    if not facts.get("classlabel", "true").lower().startswith("true"):
        raise DataError(f"{path}: it has no class labels (@classLabel false)")
    examples, labels = [], []
    for number, line in lines:
        *channels, label = line.split(":")
        try:
            rows = [np.array([_value(cell) for cell in channel.split(",")]) for channel in channels]
        except ValueError as error:
            raise DataError(f"{path}: line {number}: {error}") from None
        if not rows or len({len(row) for row in rows}) > 1:
            lengths = [len(row) for row in rows]
            raise DataError(f"{path}: line {number}: channels of lengths {lengths}")
        example = np.stack(rows, axis=1)
        keep = ~np.isnan(example).all(axis=1)
        end = int(np.flatnonzero(keep)[-1]) + 1 if keep.any() else 0
        if not end or np.isnan(example[:end]).any():
            raise DataError(f"{path}: line {number}: a value is missing (NaN); fill it first")
        examples.append(example[:end])
        labels.append(label.strip())
    if not examples:
        raise DataError(f"{path} has no examples after @data")
    return Given(examples, labels)


def _value(cell: str) -> float:
    number = np.nan if cell.strip() == "?" else as_number(cell)
    if number is None:
        raise ValueError(f"{cell.strip()!r} is no number")
    return float(number)


def _read_parquet(path: Path, label: str | None, columns: Sequence[str] | None) -> Given:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise DataError(f"{path}: needs pyarrow: pip install 'longlens[data]'") from None
    return _columns(path, parquet.read_table(path).to_pydict(), label, columns)


def _read_saved(path: Path, label: str | None, columns: Sequence[str] | None) -> Given:
    """A data set, or one for each split, that Hugging Face's ``save_to_disk`` wrote."""
    if not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        raise DataError(f"{path} is a folder without train and test files or a saved data set")
    try:
        from datasets import load_from_disk
    except ModuleNotFoundError:
        raise DataError(f"{path}: needs datasets: pip install 'longlens[data]'") from None
    return read_dataset(load_from_disk(str(path)), str(path), label, columns)


def read_dataset(
    saved: Any, path: str, label: str | None = None, columns: Sequence[str] | None = None
) -> Given:
    """A data set of Hugging Face, or one for each split."""
    parts = dict(saved) if hasattr(saved, "items") else {"": saved}
    every: dict[str, list[Any]] = {}
    for part in parts.values():
        for key, column in part.to_dict().items():
            every.setdefault(key, []).extend(column)
    given = _columns(path, every, label, columns)
    if "" not in parts:
        given.split = [str(name) for name, part in parts.items() for _ in range(len(part))]
        given.notes.append(f"split as given: {', '.join(parts)}")
    lower = {name.lower(): feature for name, feature in part.features.items()}
    feature = lower[label.lower() if label else first_of(lower, LABELS) or ""]
    given.names = getattr(feature, "names", None)
    return given


def _columns(
    path: Path | str,
    columns: dict[str, list[Any]],
    label: str | None,
    wanted: Sequence[str] | None,
) -> Given:
    lower = {name.lower(): name for name in columns}
    goal = label.lower() if label else first_of(lower, LABELS)
    if goal is None or goal not in lower:
        raise DataError(f"{path}: no column of labels (--label); it has {', '.join(columns)}")
    if not columns[lower[goal]]:
        raise DataError(f"{path} has no examples")
    split = [str(v) for v in columns[lower["split"]]] if "split" in lower else None
    rest = [name for name in lower if name not in (goal, "split")]
    apart = [name for name in rest if tells_rows_apart(name, columns[lower[name]], wanted)]
    rest = [name for name in rest if name not in apart]
    if not rest:
        raise DataError(f"{path}: no column has inputs; it has {', '.join(columns)}, and id, idx "
                        "and index number the rows")  # fmt: skip
    inputs = first_of(rest, INPUTS)
    names = [inputs] if inputs else rest
    names = [names[place] for place in places(path, names, wanted)]
    notes = [f"labels {lower[goal]}"]
    notes += [f"column {lower[name]} names or counts the rows and is left out" for name in apart]
    given = Given([], columns[lower[goal]], split, notes, label=goal, columns=names)
    if len(names) == 1:
        chosen = lower[names[0]]
        values = columns[chosen]
        if any(value is None for value in values):
            raise DataError(f"{path}: example {values.index(None) + 1} is missing ({chosen})")
        given.examples = values if isinstance(values[0], str) else [np.asarray(v) for v in values]
        notes.append(f"inputs {chosen}")
        return given
    try:
        table = np.array([columns[lower[name]] for name in names], np.float64).T
    except (TypeError, ValueError):
        raise DataError(
            f"{path}: which column holds the inputs? It has {', '.join(columns)}"
        ) from None
    given.examples = without_ends(path, table, range(1, len(table) + 1))
    return given
