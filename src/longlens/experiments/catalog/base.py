"""What an experiment is: labelled rows and columns, a run for each cell, and published numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from longlens.runs.cell import Cell, with_options
from longlens.runs.results import Header

METRICS = ("accuracy", "r2", "bits_per_token", "perplexity", "ratio")
KINDS = ("table", "curve")
QUICK_SUFFIX = "-quick"
Published = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Run:
    """One cell of an experiment's table: its labels and the options of ``longlens train``."""

    row: str
    column: str
    options: Cell


@dataclass(frozen=True, kw_only=True)
class Experiment(Header):
    """A table or figure, declared: its header, and the cells that can be run.

    >>> run = Run("LaS", "sum", {"task": "cumsum"})
    >>> mine = Experiment(name="mine", title="A line", metric="r2", rows=("LaS",),
    ...                   columns=("sum",), runs=(run,))
    >>> mine.described().command
    'longlens run mine'
    """

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {METRICS}, got {self.metric!r}")
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {KINDS}, got {self.kind!r}")
        places = [(run.row, run.column) for run in self.runs]
        for row, column in places:
            if row not in self.rows or column not in self.columns:
                raise ValueError(f"{self.name}: the run {row!r}, {column!r} is in no row or column")
            if places.count((row, column)) > 1:
                raise ValueError(f"{self.name}: {row!r}, {column!r} is declared twice")
        if self.reads and tuple(self.reads) != self.columns:
            raise ValueError(f"{self.name}: reads must name every column, got {list(self.reads)}")
        if (self.metric == "ratio") != (self.relative_to in self.rows):
            raise ValueError(
                f"{self.name}: a ratio is relative to a row, got metric={self.metric!r} and "
                f"relative_to={self.relative_to!r}"
            )
        if strange := sorted(set(self.published) - set(self.rows)):
            raise ValueError(
                f"{self.name}: numbers are published for {strange[0]!r}, which is no row"
            )
        for labels in (self.rows, self.columns):
            if len({slug(label) for label in labels}) < len(labels):
                raise ValueError(f"{self.name}: two of the labels {labels} would share a folder")

    def described(self, quick: bool = False, command: str = "") -> Header:
        """The header of its results: those of ``--quick`` say so; ``command`` if it is another."""
        header = Header(**{f.name: getattr(self, f.name) for f in fields(Header)})
        command = command or f"longlens run {self.name}"
        if not quick:
            return replace(header, command=command)
        return replace(
            header,
            name=self.name + QUICK_SUFFIX,
            title=f"{self.title} (--quick: no results)",
            command=f"{command} --quick",
            quick=True,
        )


def slug(label: str) -> str:
    """A label as part of a folder's name.

    >>> slug("Pathfinder (own)"), slug("P = 3, B = 0.001"), slug("LaS+")
    ('pathfinder-own', 'p-3-b-0.001', 'lasplus')
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("+", "plus")).strip("-")


def merged(*parts: Mapping[str, Any]) -> Cell:
    """Options laid over each other, later ones on top; nested ones (``*_options``) are joined.

    >>> merged({"mixer_options": {"window": 3}, "dim": 8}, {"mixer_options": {"bound": 0.1}})
    {'mixer_options': {'window': 3, 'bound': 0.1}, 'dim': 8}
    """
    cell: Cell = {}
    for part in parts:
        for name, value in part.items():
            joined = isinstance(value, Mapping) and isinstance(cell.get(name), dict)
            cell[name] = merged(cell[name], value) if joined else value
    return with_options(cell, {})  # a copy


def cross(
    rows: Mapping[str, Callable[[str], Cell | None]], columns: Sequence[str]
) -> tuple[Run, ...]:
    """A run for every row and column; a row says what it is in a column, None: nothing.

    >>> cross({"LaS": lambda column: {"task": column}}, ["listops", "text"])[1]
    Run(row='LaS', column='text', options={'task': 'text'})
    """
    found = [(row, column, make(column)) for row, make in rows.items() for column in columns]
    return tuple(Run(row, column, cell) for row, column, cell in found if cell is not None)


def read_rows(doc: str | None) -> dict[str, dict[str, str]]:
    """The first table of a module's header: row -> column -> text; empty cells are left out.

    The header that a reader sees is then the one place where published numbers stand.

    >>> read_rows('''Title.
    ...
    ... | model | Text | Image |
    ... | --- | --- | --- |
    ... | LaS | 79.28 | |
    ... ''')
    {'LaS': {'Text': '79.28'}}
    """
    if doc is None:
        raise ValueError("the published numbers stand in docstrings, which python -OO leaves out")
    lines = [line.strip() for line in doc.splitlines()]
    start = next((n for n, line in enumerate(lines) if line.startswith("|")), len(lines))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    if len(table) < 3 or any(len(line) != len(table[0]) for line in table):
        raise ValueError(f"the header must hold a table with lines of one width, got {table}")
    (_, *columns), _, *body = table
    return {
        row: {column: cell for column, cell in zip(columns, cells, strict=True) if cell}
        for row, *cells in body
    }


def published_numbers(doc: str | None) -> Published:
    """The first table of a module's header as numbers; 5.5× is 5.5."""
    return {
        row: {column: float(cell.rstrip("×")) for column, cell in cells.items()}
        for row, cells in read_rows(doc).items()
    }
