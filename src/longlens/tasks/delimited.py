"""Tables of values parted by commas, tabs or semicolons: an example in every line, with a label."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.files import read_text
from longlens.tasks.given import (
    LABELS,
    Given,
    are_whole,
    as_number,
    first_of,
    places,
    tells_rows_apart,
)

MISSING = ("", "?")
GAPS = (*MISSING, "na", "n/a", "null", "none")  # among numbers; of labels these are names


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


def read_table(path: Path, label: str | None, columns: Sequence[str] | None = None) -> Given:
    """Read a table; the arguments are those of ``read_file``."""
    table = _table(path)
    names = table.names()
    notes = [] if table.header is None else ["the first line is a header"]
    others = list(range(len(table.rows[0])))
    apart = [
        n
        for n, name in enumerate(names)
        if (name or names.count(name) == 1)  # several without a name are inputs
        and tells_rows_apart(name, (as_number(row[n]) for row in table.rows), columns)
    ]
    others = [n for n in others if n not in apart]
    split = None
    if "split" in names:
        others.remove(names.index("split"))
        split = [row[names.index("split")] for row in table.rows]
    column, why = _label_column(table, others, label)
    notes.insert(0, f"label in column {column} ({why})")
    apart = [n for n in apart if n != column]
    notes += [f"column {n} names or counts the rows and is left out" for n in apart]
    labels = [row[column].strip() for row in table.rows]
    for line, word in zip(table.lines, labels, strict=True):
        if word in MISSING:
            raise DataError(f"{path}: line {line} has no label (column {column})")
    others = [n for n in others if n != column]
    if not others and apart:
        raise DataError(
            f"{path}: no column but {names[apart[0]]!r} has inputs, and that one numbers the rows; "
            "give it another name if it does not"
        )
    if not others:
        raise DataError(f"{path}: one column; a table needs a label and values in every line")
    if names:
        others = [others[n] for n in places(path, [names[n] for n in others], columns)]
    given = _examples(table, others)
    given.labels, given.split, given.notes = labels, split, notes + given.notes
    given.label = names[column] if names else label or str(column)
    given.columns = [names[n] for n in others] if names else None
    return given


def _table(path: Path) -> Table:
    text = read_text(path)
    table = Table(path, [], [])
    for line, row in _rows(text, path.suffix):
        if any(cell.strip() for cell in row):
            table.rows.append(row)
            table.lines.append(line)
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
            raise DataError(f"{path} has one line alone, which was read as a header")
    return table


def _rows(text: str, suffix: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row, and the line that it ends on."""
    start = text.lstrip().partition("\n")[0]
    marks = ("\t",) if suffix == ".tsv" else ("\t", ",", ";")
    if not any(map(start.count, marks)) and all(map(_is_number, start.split())):
        # numbers with spaces between them, as numpy.savetxt writes them
        yield from ((number, line.split()) for number, line in enumerate(text.splitlines(), 1))
        return
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # an example may be long
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(marks, key=start.count))
    for row in reader:
        yield reader.line_num, row


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns.

    It does where it numbers them from 0; where it has words and the next one numbers; and where a
    name of labels, or in a table of text any word, stands above values that repeat and are others.
    """
    first, below = [cell.strip() for cell in rows[0]], rows[1:]
    there = [cell for cell in first if cell]
    if len(there) > 2 and there == [str(number) for number in range(len(there))]:
        return True
    words = not any(map(_is_number, there))
    # a gap is no evidence of numbers: "none" may be a class
    cells = [cell for cell in below[0] if cell.strip().lower() not in GAPS] if below else []
    if words and any(map(_is_number, cells)):
        return True
    for n, cell in enumerate(first):
        others = {row[n].strip() for row in below}
        repeats = 0 < len(others) <= len(below) // 2
        if cell not in others and (cell.lower() in LABELS or (words and repeats)):
            return True
    return False


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
            value = np.nan if cell.lower() in GAPS else as_number(cell)
            if value is None:
                raise DataError(
                    f"{table.path}: line {table.lines[number]}, column {column}: {cell!r} is no "
                    "number"
                )
            values[number, place] = value
    cells = [row[column].strip().lower() for row in table.rows[:100] for column in columns]
    whole = not any("." in cell or "e" in cell for cell in cells if cell not in GAPS)
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
    if whole and all(row.min() >= 0 and are_whole(row) for row in found):
        return [row.astype(np.int64) for row in found]
    return found


def _is_number(cell: str) -> bool:
    """Whether a cell holds a number, NaN and infinity included, or nothing."""
    return cell.strip().lower() in GAPS or as_number(cell) is not None


def _label_column(table: Table, columns: list[int], label: str | None) -> tuple[int, str]:
    """The column with the labels, and why; a guess is one of ``columns``."""
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
    if not columns:
        raise DataError(f"{table.path} has no column with labels")
    first, last = columns[0], columns[-1]
    few = {n: len({row[n] for row in rows}) for n in (first, last)}
    words = {n: not all(_is_number(row[n]) for row in rows) for n in (first, last)}
    for n, other in ((first, last), (last, first)):
        if words[n] and not words[other]:
            return n, "the only one of text"
    repeats = 1 < few[last] <= len(rows) // 2  # as values of a class do
    if table.path.suffix == ".tsv" or few[first] <= few[last] or not repeats:
        return first, "the first, as in the UCR archive; --label changes it"
    return last, "the last, whose values repeat; --label changes it"
