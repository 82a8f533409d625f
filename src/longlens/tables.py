"""One type for tables: rows of words, written as text, Markdown or CSV, and for pages."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

MISSING = "—"
Row = Mapping[str, object]


def number(value: float) -> str:
    """A number of any size in four or five characters where it can be.

    >>> number(1234567), number(40.0), number(0.125), number(12.34), number(843.2)
    ('1,234,567', '40', '0.125', '12.3', '843')
    """
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def word(value: object) -> str:
    """A value as it stands in a cell.

    >>> word(0.25), word(None), word([3, 5]), word(True), word("x"), word({"a": 1})
    ('0.25', '—', '3, 5', 'yes', 'x', 'a 1')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value).replace("-", "−")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {word(inner)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(word, value))
    return str(value)


def columns_of(rows: Iterable[Row]) -> list[str]:
    """The names of all columns, in the order in which rows name them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Sequence[Row]) -> str:
    r"""Rows as CSV; what a row lacks is empty.

    >>> csv_text([{"a": 1, "b": None}, {"c": "x"}])
    'a,b,c\n1,,\n,,x\n'
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


@dataclass(frozen=True)
class Table:
    """A head and rows of words, with a caption.

    >>> print(Table(["model", "size"], [["a|b", "1"], ["c", "10"]]).text())
    model  size
    a|b       1
    c        10
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @classmethod
    def of(
        cls, rows: Sequence[Row], caption: str = "", write: Callable[[object], str] = word
    ) -> Table:
        """Values by column as words; what a row lacks is written as None is."""
        head = columns_of(rows)
        return cls(head, [[write(row.get(name)) for name in head] for row in rows], caption)

    @property
    def right(self) -> list[bool]:
        """Which columns hold numbers, and are flush right; the first names rows.

        >>> Table.of([{"model": "LaS", "Text": "73.3 (79.3)", "Image": "[1 stopped] (70.4)"}]).right
        [False, True, True]
        """
        number_or_none = re.compile(r"(\[[^]]*\] ?)?([(−+-]?[\d.]|[—–-]?$)")  # a mark may precede
        return [
            number > 0 and all(map(number_or_none.match, column))
            for number, column in enumerate(zip(*self.rows, strict=True))
        ] or [False] * len(self.head)

    def text(self, gap: str = "  ") -> str:
        """Aligned columns; after the first, which names rows, numbers are to the right."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        right = self.right
        lines = [
            gap.join(
                word.rjust(width) if flush else word.ljust(width)
                for word, width, flush in zip(line, widths, right, strict=True)
            )
            for line in (self.head, *self.rows)
        ]
        return "\n".join(line.rstrip() for line in lines)

    def markdown(self) -> str:
        r"""A Markdown table.

        >>> print(Table(["", "a|b"], [["x", "1"]]).markdown())
        |  | a\|b |
        | --- | --- |
        | x | 1 |
        """
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        escaped = ([word.replace("|", "\\|") for word in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
