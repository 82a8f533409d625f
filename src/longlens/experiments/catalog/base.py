"""What an experiment is: labelled rows and columns, a run for each cell, and published numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from longlens.experiments.standins import shrink
from longlens.runs.cell import Cell, with_options
from longlens.runs.record import Record
from longlens.runs.results import Header, Place, ResultTable, fill_rows

METRICS = ("accuracy", "r2", "bits_per_token", "perplexity", "ratio")
KINDS = ("table", "curve")
LENGTHS = ("steps", "epochs", "budget")  # a run has one of them
QUICK_SUFFIX = "-quick"
Row = Callable[[str], Cell | None]  # what a row is in a column; None: nothing


@dataclass(frozen=True)
class Run:
    """One cell of an experiment's table: its labels and the options of ``longlens train``."""

    row: str
    column: str
    options: Cell

    @property
    def name(self) -> str:
        """The run's folder inside the experiment's, less the seed."""
        return f"{slug(self.row)}--{slug(self.column)}"


@dataclass(frozen=True, kw_only=True)
class Experiment(Header):
    """A table or figure, declared: its header, and the cells that can be run.

    Rows and columns that are not given are those of ``reads``, the runs and the published numbers.

    >>> mine = Experiment(name="mine", title="A line", metric="r2",
    ...                   runs=(Run("LaS", "sum", {"task": "cumsum"}),))
    >>> mine.rows, mine.columns, mine.cells(seeds=2)[1]["name"]
    (('LaS',), ('sum',), 'las--sum--1')
    """

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        rows = dict.fromkeys([*(run.row for run in self.runs), *self.published])
        columns = dict.fromkeys(self.reads or [run.column for run in self.runs])
        object.__setattr__(self, "rows", self.rows or tuple(rows))
        object.__setattr__(self, "columns", self.columns or tuple(columns))
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

    def choose(self, only: str | Sequence[str] = ()) -> list[Run]:
        """The runs whose row and column match ``only``.

        A pattern (``LaS*``; case does not count) restricts the rows or the columns, whichever it
        matches; several patterns for rows are alternatives, as are several for columns. The row
        that an experiment's numbers are relative to always comes along.

        Raises:
            ValueError: a pattern matches nothing, or nothing is left.
        """
        rows: set[str] = set()
        columns: set[str] = set()
        patterns = [only] if isinstance(only, str) else only
        for pattern in patterns:
            in_rows = {label for label in self.rows if _matches(label, pattern)}
            in_columns = {label for label in self.columns if _matches(label, pattern)}
            if not in_rows and not in_columns:
                raise ValueError(
                    f"only: {pattern!r} matches no row and no column of {self.name}; rows: "
                    f"{', '.join(self.rows)}; columns: {', '.join(self.columns)}"
                )
            rows |= in_rows
            columns |= in_columns
        if rows and self.relative_to is not None:
            rows.add(self.relative_to)
        chosen = [
            run
            for run in self.runs
            # a run of an experiment with ``reads`` fills all columns of its row
            if (not rows or run.row in rows)
            and (not columns or self.reads or run.column in columns)
        ]
        if not chosen:
            raise ValueError(
                f"{self.name} has no run for only={', '.join(patterns)}: these rows have published "
                "numbers alone, or none in these columns"
            )
        return chosen

    def cells(
        self,
        only: str | Sequence[str] = (),
        seeds: int | Sequence[int] = 1,
        *,
        budget: str | None = None,
        changes: Mapping[str, Any] | None = None,
        quick: bool = False,
        runs: str | Path = "runs",
    ) -> list[Cell]:
        """What :func:`longlens.runs.sweep` runs, all of the first seed before those of the next.

        Args:
            only: patterns of rows and columns, see :meth:`choose`.
            seeds: how many, from 0 on, or which: ``range(1, 3)`` where seed 0 was run elsewhere.
            budget: wall time of each run, instead of its declared length; a warm-up in steps keeps
                its share of them, as with ``steps`` or ``epochs`` among the changes.
            changes: options for all runs (a dot reaches into a nested one).
            quick: a few steps of a tiny model on stand-in data, to see that everything works.
            runs: folder of records; the experiment's own is inside it, see :meth:`folder`.
        """
        chosen = range(seeds) if isinstance(seeds, int) else seeds
        if not chosen or min(chosen) < 0:
            raise ValueError(f"seeds must be 1 or more, or seeds from 0 on, got {seeds}")
        if quick and budget is not None:
            raise ValueError("--quick fixes the length of the runs; leave out --budget")
        changed = {**({} if budget is None else {"budget": budget}), **(changes or {})}
        cells = []
        for seed in chosen:
            for run in self.choose(only):
                cell = shrink(run.options, runs) if quick else run.options
                if set(LENGTHS) & set(changed):
                    cell = with_shared_warmup(cell)
                for name, value in changed.items():
                    if name in LENGTHS:  # which replace each other
                        cell = {key: old for key, old in cell.items() if key not in LENGTHS}
                    cell = with_options(cell, {name: value})
                place = {"runs": str(self.folder(runs, quick)), "name": f"{run.name}--{seed}"}
                cells.append({**cell, "seed": seed, **place})
        return cells

    def place(self, name: str) -> Place:
        """Where a run of that name stands in the table."""
        run_name, _, seed = name.rpartition("--")
        run = next(run for run in self.runs if run.name == run_name)
        return {"row": run.row, "column": run.column, "seed": int(seed)}

    def folder(self, runs: str | Path, quick: bool = False) -> Path:
        """The folder of the experiment's records; that of quick ones says so."""
        return Path(runs) / self.described(quick).name

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

    def results(self, records: Iterable[Record]) -> ResultTable:
        """The table of what a sweep over :meth:`cells` returned."""
        table = ResultTable(**vars(self.described()))
        labelled = [replace(record.thinned(), **self.place(record.name)) for record in records]
        return table.with_records(fill_rows(labelled, table))


def _matches(label: str, pattern: str) -> bool:
    return fnmatchcase(label.lower(), pattern.lower()) or slug(label) == pattern.lower()


def slug(label: str) -> str:
    """A label as part of a folder's name.

    >>> slug("Pathfinder (own)"), slug("P = 3, B = 0.001"), slug("LaS+")
    ('pathfinder-own', 'p-3-b-0.001', 'lasplus')
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("+", "plus")).strip("-")


def with_shared_warmup(cell: Cell) -> Cell:
    """The cell with a warm-up in steps as a share of its steps, which may then be others.

    >>> with_shared_warmup({"steps": 25_000, "warmup": 10_000.0})
    {'steps': 25000, 'warmup': 0.4}
    """
    steps, warmup = cell.get("steps"), cell.get("warmup") or 0.0
    if steps is None or not 1 <= warmup < steps:
        return cell
    return {**cell, "warmup": warmup / steps}


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


def cross(rows: Mapping[str, Row | Cell], columns: Iterable[str]) -> tuple[Run, ...]:
    """A run for every row and column; a row is one cell, or says what it is in a column.

    >>> cross({"LaS": lambda column: {"task": column}}, ["listops", "text"])[1]
    Run(row='LaS', column='text', options={'task': 'text'})
    """
    columns = tuple(columns)
    cells = [
        (row, column, make(column) if callable(make) else make)
        for row, make in rows.items()
        for column in columns
    ]
    return tuple(Run(row, column, cell) for row, column, cell in cells if cell is not None)
