"""Tables of values parted by commas, tabs or semicolons: an example in every line, with a label."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError
from longlens.tasks.given import LABELS, Given, first_of

Array = npt.NDArray[Any]
MISSING = ("", "?")


@dataclass
class Table:
    """The rows of a file with the lines that they end on, and its header, where it has one."""

    path: Path
    rows: list[list[str]]
    lines: list[int]
    header: list[str] | None = None

    def names(self) -> list[str]:
        """Of the columns, in small letters; none without a header."""
        return [cell.strip().lower() for cell in self.header or ()]


def read_table(path: Path, label: str | None) -> Given:
    """Read a table; ``label`` is the name or number of its column with the labels."""
    table = _rows(path)
    column, why = _label_column(table, label)
    names = table.names()
    notes = [f"label in column {column} ({why})"]
    labels = [row[column].strip() for row in table.rows]
    for line, word in zip(table.lines, labels, strict=True):
        if word in MISSING:
            raise DataError(f"{path}: line {line} has no label (column {column})")
    others = [n for n in range(len(table.rows[0])) if n != column]
    split = None
    if "split" in names:
        others.remove(names.index("split"))
        split = [row[names.index("split")] for row in table.rows]
    for n in [n for n in others if names and names[n] in ("", "unnamed: 0")]:
        if [row[n].strip() for row in table.rows] == [str(i) for i in range(len(table.rows))]:
            others.remove(n)
            notes.append(f"column {n} counts the rows and is left out")
    given = _examples(table, others)
    given.labels, given.split, given.notes = labels, split, notes + given.notes
    given.label = names[column] if names else str(column)
    return given


def _rows(path: Path) -> Table:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    start = text.lstrip().partition("\n")[0]
    marks = ("\t",) if path.suffix == ".tsv" else ("\t", ",", ";")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(marks, key=start.count))
    table = Table(path, [], [])
    for row in reader:
        if any(cell.strip() for cell in row):
            table.rows.append(row)
            table.lines.append(reader.line_num)
    if not table.rows:
        raise DataError(f"{path} is empty")
    wide = len(table.rows[0])
    for line, row in zip(table.lines, table.rows, strict=True):
        if len(row) != wide:
            raise DataError(
                f"{path}: line {line} has {len(row)} columns, line {table.lines[0]} has {wide}"
            )
    if _has_header(table.rows):
        table.header, table.rows, table.lines = table.rows[0], table.rows[1:], table.lines[1:]
        if not table.rows:
            raise DataError(f"{path} has a header and nothing else")
    if wide < 2:
        raise DataError(f"{path}: one column; a table needs a label and values in every line")
    return table


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns.

    It does where it has words and the next one numbers, or a name of labels that does not come
    again below it, as that of a class would.
    """
    first = [cell.strip() for cell in rows[0]]
    words = not any(_is_number(cell) for cell in first if cell)
    if words and len(rows) > 1 and any(map(_is_number, rows[1])):
        return True
    return any(
        cell.lower() in LABELS and all(row[n].strip() != cell for row in rows[1:])
        for n, cell in enumerate(first)
    )


def _examples(table: Table, columns: list[int]) -> Given:
    """The examples of a table: numbers in all columns, or one column of text."""
    if len(columns) == 1:
        texts = [row[columns[0]] for row in table.rows]
        if not all(map(_is_number, texts)):
            return Given(texts, notes=["inputs are text"])
    values = np.empty((len(table.rows), len(columns)), np.float64)
    for number, row in enumerate(table.rows):
        for place, column in enumerate(columns):
            cell = row[column].strip()
            try:
                values[number, place] = float("nan" if cell in MISSING else cell)
            except ValueError:
                raise DataError(
                    f"{table.path}: line {table.lines[number]}, column {column}: {cell!r} is no "
                    "number"
                ) from None
    whole = not any("." in row[column] or "e" in row[column].lower() for row in table.rows[:100]
                    for column in columns)  # fmt: skip
    return Given(without_ends(table.path, values, table.lines, whole))


def without_ends(
    path: Path | str, values: Array, lines: Sequence[int], whole: bool = False
) -> list[Array]:
    """Rows without what is missing at their ends, which is how tables write shorter examples.

    Args:
        path: of the file, for messages.
        values: (N, L), NaN where a value is missing.
        lines: of the rows, for messages.
        whole: make whole numbers of them, where all are.
    """
    found = []
    for line, row in zip(lines, values, strict=True):
        there = np.flatnonzero(~np.isnan(row))
        short = row[: there[-1] + 1] if len(there) else row[:0]
        if not len(short):
            raise DataError(f"{path}: line {line} has no values")
        if len(short) != len(there):
            place = int(np.flatnonzero(np.isnan(short))[0])
            raise DataError(
                f"{path}: line {line}: value {place + 1} is missing (NaN) inside the example; "
                "fill it first"
            )
        found.append(short)
    if whole and all((row == np.floor(row)).all() and row.min() >= 0 for row in found):
        return [row.astype(np.int64) for row in found]
    return found


def _is_number(cell: str) -> bool:
    """Whether a cell holds a number, NaN and infinity included, or nothing."""
    try:
        float(cell)
    except ValueError:
        return cell.strip() in MISSING
    return True


def _label_column(table: Table, label: str | None) -> tuple[int, str]:
    names, rows = table.names(), table.rows
    if label is not None:
        if label.lower() in names:
            return names.index(label.lower()), f"named {label!r}, as asked"
        if label.lstrip("-").isdigit() and -len(rows[0]) <= int(label) < len(rows[0]):
            return int(label) % len(rows[0]), "as asked"
        known = ", ".join(names[:8]) or f"0 … {len(rows[0]) - 1}"
        raise DataError(f"{table.path}: label must be a column ({known}), got {label!r}")
    if (name := first_of(names, LABELS)) is not None:
        return names.index(name), f"named {name!r}"
    last = len(rows[0]) - 1
    few = {n: len({row[n] for row in rows}) for n in (0, last)}
    words = {n: not all(_is_number(row[n]) for row in rows) for n in (0, last)}
    for n, other in ((0, last), (last, 0)):
        if words[n] and not words[other]:
            return n, "the only one of text"
    if table.path.suffix == ".tsv" or few[0] <= few[last]:
        return 0, "the first, as in the UCR archive; --label changes it"
    return last, "the last, whose values repeat; --label changes it"
