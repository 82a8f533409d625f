"""Files that researchers have: arrays, tables, the UCR and UEA layouts, Parquet, saved data sets.

Every reader gives a :class:`Given`: examples as they are, labels as they are written. What they
mean is inferred, and said, in ``own.py``.
"""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError
from longlens.tasks.npy import open_npy

Array = npt.NDArray[Any]
INPUTS = ("inputs", "x", "tokens", "data", "series", "text", "sequence", "values")
LABELS = ("label", "labels", "y", "target", "targets", "class")
TABLES = (".csv", ".tsv", ".txt")
ENDINGS = (".npy", ".npz", *TABLES, ".ts", ".parquet")


@dataclass
class Given:
    """Examples (length,) or (length, channels), or texts; labels and split, where there are any."""

    examples: Sequence[Any] | Array
    labels: Sequence[Any] | None = None
    split: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    names: list[str] | None = None  # of classes, where labels are their numbers


def read_file(path: Path, label: str | None = None) -> Given:
    """Read one file; ``label`` is the name or number (from 0) of the column with the labels."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if path.is_dir():
        return _read_saved(path, label)
    ending = path.suffix.lower()
    if ending == ".npy":
        return Given(open_npy(path, str(path)))
    if ending == ".npz":
        return _read_npz(path, label)
    if ending in TABLES:
        return _read_table(path, label)
    if ending == ".ts":
        return _read_ts(path)
    if ending == ".parquet":
        return _read_parquet(path, label)
    raise DataError(f"{path}: the ending must be one of {', '.join(ENDINGS)}, got {ending!r}")


def _read_npz(path: Path, label: str | None) -> Given:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable .npz file ({error})") from None
    lower = {name.lower(): name for name in arrays}
    if train := _first(lower, [f"{name}_train" for name in INPUTS]):
        test = _first(lower, [f"{name}_test" for name in INPUTS])
        goals = [_first(lower, [f"{name}_{part}" for name in LABELS]) for part in ("train", "test")]
        if test is None or None in goals:
            raise DataError(f"{path} has {train} but not all of x_test, y_train and y_test; it has "
                            f"{', '.join(arrays)}")  # fmt: skip
        first, second = arrays[lower[train]], arrays[lower[test]]
        labels = [arrays[lower[goal]] for goal in goals if goal is not None]
        for goal, each in zip(labels, (first, second), strict=True):
            _same_count(path, goal, each)
        return Given([*first, *second], np.concatenate(labels).tolist(),
                     ["train"] * len(first) + ["test"] * len(second),
                     [f"split as given: {train} and {test}"])  # fmt: skip
    name = _first(lower, INPUTS)
    goal = label.lower() if label else _first(lower, LABELS)
    if name is None or goal is None or goal not in lower:
        raise DataError(f"{path} must have arrays x and y, or x_train, y_train, "
                        f"x_test, y_test; it has {', '.join(arrays)}")  # fmt: skip
    values, targets = arrays[lower[name]], arrays[lower[goal]]
    _same_count(path, targets, values)
    split = arrays[lower["split"]].tolist() if "split" in lower else None
    examples: Sequence[Any] | Array = values
    if "lengths" in lower:
        examples = [row[:n] for row, n in zip(values, arrays[lower["lengths"]], strict=True)]
    return Given(examples, targets.tolist(), split, [f"inputs {name}, labels {goal}"])


def _first(names: Iterable[str], wanted: Iterable[str]) -> str | None:
    known = set(names)
    return next((name for name in wanted if name in known), None)


def _same_count(path: Path, labels: Array, examples: Sequence[Any]) -> None:
    if labels.ndim != 1 or len(labels) != len(examples):
        raise DataError(f"{path}: {len(examples)} examples but labels of shape {labels.shape}")


def _read_table(path: Path, label: str | None) -> Given:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty")
    marks = ("\t",) if path.suffix == ".tsv" else ("\t", ",", ";")
    mark = max(marks, key=lines[0].count)
    rows = list(csv.reader(lines, delimiter=mark))
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{path}: line {number} has {len(row)} columns, line 1 has {len(rows[0])}"
            )
    header = None
    words = len(rows) > 1 and not any(map(_number, rows[0])) and any(map(_number, rows[1]))
    if words or any(cell.strip().lower() in LABELS for cell in rows[0]):
        header, rows = rows[0], rows[1:]
        if not rows:
            raise DataError(f"{path} has a header and nothing else")
    if len(rows[0]) < 2:
        raise DataError(f"{path}: one column; a table needs a label and values in every line")
    column, why = _label_column(path, rows, header, label)
    notes = [f"label in column {column} ({why})"]
    labels = [row[column].strip() for row in rows]
    others = [n for n in range(len(rows[0])) if n != column]
    if "split" in [h.strip().lower() for h in header or ()]:
        assert header is not None
        where = [h.strip().lower() for h in header].index("split")
        others.remove(where)
        return _cells(path, rows, others, labels, header, notes, [row[where] for row in rows])
    return _cells(path, rows, others, labels, header, notes, None)


def _cells(
    path: Path,
    rows: list[list[str]],
    columns: list[int],
    labels: list[str],
    header: list[str] | None,
    notes: list[str],
    split: list[str] | None,
) -> Given:
    """The examples of a table: numbers in all columns, or one column of text."""
    if len(columns) == 1 and not all(map(_number, (row[columns[0]] for row in rows))):
        return Given([row[columns[0]] for row in rows], labels, split, [*notes, "inputs are text"])
    values = np.empty((len(rows), len(columns)), np.float64)
    for number, row in enumerate(rows):
        for place, column in enumerate(columns):
            cell = row[column].strip()
            if cell in ("", "?"):
                cell = "nan"
            try:
                values[number, place] = float(cell)
            except ValueError:
                line = number + 1 + (header is not None)
                raise DataError(
                    f"{path}: line {line}, column {column}: {cell!r} is no number"
                ) from None
    whole = not any("." in row[column] or "e" in row[column].lower() for row in rows[:100]
                    for column in columns)  # fmt: skip
    return Given(_without_end(path, values, header is not None, whole), labels, split, notes)


def _without_end(path: Path | str, values: Array, header: bool, whole: bool) -> list[Array]:
    """Rows without what is missing at their ends, which is how tables write shorter examples."""
    found = []
    for number, row in enumerate(values):
        there = np.flatnonzero(~np.isnan(row))
        short = row[: there[-1] + 1] if len(there) else row[:0]
        if not len(short):
            raise DataError(f"{path}: line {number + 1 + header} has no values")
        if len(short) != len(there):
            place = int(np.flatnonzero(np.isnan(short))[0])
            raise DataError(
                f"{path}: line {number + 1 + header}: value {place + 1} is missing (NaN) inside "
                "the example; fill it first"
            )
        found.append(short)
    if whole and all((row == np.floor(row)).all() and row.min() >= 0 for row in found):
        return [row.astype(np.int64) for row in found]
    return found


def _number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell)) or True
    except ValueError:
        return cell.strip() in ("?", "")


def _label_column(
    path: Path, rows: list[list[str]], header: list[str] | None, label: str | None
) -> tuple[int, str]:
    names = [cell.strip().lower() for cell in header or ()]
    if label is not None:
        if label.lower() in names:
            return names.index(label.lower()), f"named {label!r}, as asked"
        if label.lstrip("-").isdigit() and -len(rows[0]) <= int(label) < len(rows[0]):
            return int(label) % len(rows[0]), "as asked"
        known = ", ".join(names[:8]) or f"0 … {len(rows[0]) - 1}"
        raise DataError(f"{path}: label must be a column ({known}), got {label!r}")
    if (name := _first(names, LABELS)) is not None:
        return names.index(name), f"named {name!r}"
    last = len(rows[0]) - 1
    few = {n: len({row[n] for row in rows}) for n in (0, last)}
    words = {n: not all(_number(row[n]) for row in rows) for n in (0, last)}
    for n, other in ((0, last), (last, 0)):
        if words[n] and not words[other]:
            return n, "the only one of text"
    if path.suffix == ".tsv" or few[0] <= few[last]:
        return 0, "the first, as in the UCR archive; --label changes it"
    return last, "the last, whose values repeat; --label changes it"


def _read_ts(path: Path) -> Given:
    """The UEA/UCR .ts layout: @ lines, then channels parted by ':', the label last."""
    facts: dict[str, str] = {}
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
    ):
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
            rows = [np.array([np.nan if v.strip() == "?" else float(v) for v in c.split(",")])
                    for c in channels]  # fmt: skip
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


def _read_parquet(path: Path, label: str | None) -> Given:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise DataError(f"{path}: needs pyarrow: pip install 'longlens[data]'") from None
    return _columns(path, parquet.read_table(path).to_pydict(), label)


def _read_saved(path: Path, label: str | None) -> Given:
    """A data set, or one for each split, that Hugging Face's ``save_to_disk`` wrote."""
    if not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        raise DataError(f"{path} is a folder without train and test files or a saved data set")
    try:
        from datasets import load_from_disk
    except ModuleNotFoundError:
        raise DataError(f"{path}: needs datasets: pip install 'longlens[data]'") from None
    return read_dataset(load_from_disk(str(path)), str(path), label)


def read_dataset(saved: Any, path: str, label: str | None = None) -> Given:
    """A data set of Hugging Face, or one for each split."""
    parts = dict(saved) if hasattr(saved, "items") else {"": saved}
    every: dict[str, list[Any]] = {}
    for part in parts.values():
        for key, column in part.to_dict().items():
            every.setdefault(key, []).extend(column)
    given = _columns(path, every, label)
    if "" not in parts:
        given.split = [str(name) for name, part in parts.items() for _ in range(len(part))]
        given.notes.append(f"split as given: {', '.join(parts)}")
    lower = {name.lower(): feature for name, feature in part.features.items()}
    feature = lower[label.lower() if label else _first(lower, LABELS) or ""]
    given.names = getattr(feature, "names", None)
    return given


def _columns(path: Path | str, columns: dict[str, list[Any]], label: str | None) -> Given:
    lower = {name.lower(): name for name in columns}
    goal = label.lower() if label else _first(lower, LABELS)
    if goal is None or goal not in lower:
        raise DataError(f"{path}: no column of labels (--label); it has {', '.join(columns)}")
    split = [str(v) for v in columns[lower["split"]]] if "split" in lower else None
    rest = [name for key, name in lower.items() if key not in (goal, "split", "idx", "id")]
    inputs = _first([name.lower() for name in rest], INPUTS)
    notes = [f"labels {lower[goal]}"]
    chosen = lower[inputs] if inputs else rest[0] if len(rest) == 1 else None
    if chosen is not None:
        values = columns[chosen]
        examples = values if isinstance(values[0], str) else [np.asarray(v) for v in values]
        return Given(examples, columns[lower[goal]], split, [*notes, f"inputs {chosen}"])
    try:
        table = np.array([columns[name] for name in rest], np.float64).T
    except (TypeError, ValueError):
        raise DataError(
            f"{path}: which column holds the inputs? It has {', '.join(columns)}"
        ) from None
    return Given(_without_end(path, table, False, False), columns[lower[goal]], split, notes)
