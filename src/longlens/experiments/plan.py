"""From an experiment to cells: which ones, how long, where, and what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from longlens.experiments.catalog.base import Experiment, Run, slug
from longlens.experiments.standins import small_options
from longlens.runs.cell import Cell, with_options
from longlens.runs.results import Place

LENGTHS = ("steps", "epochs", "budget")  # a run has one of them


@dataclass(frozen=True)
class Planned:
    """A run to be done: its labels, and the options with seed and folder filled in."""

    row: str
    column: str
    seed: int
    cell: Cell

    @property
    def name(self) -> str:
        """The run's folder, inside the experiment's."""
        return f"{slug(self.row)}--{slug(self.column)}--{self.seed}"

    @property
    def place(self) -> Place:
        """Where the experiment's table shows it."""
        return {"row": self.row, "column": self.column, "seed": self.seed}


def choose(experiment: Experiment, only: Sequence[str] = ()) -> list[Run]:
    """The runs whose row and column match ``only``.

    A pattern (``LaS*``; case does not count) restricts the rows or the columns, whichever it
    matches; several patterns for rows are alternatives, as are several for columns. The row that
    an experiment's numbers are relative to always comes along.

    Raises:
        ValueError: a pattern matches nothing, or nothing is left.

    >>> from longlens.experiments.catalog import find
    >>> [(run.row, run.column) for run in choose(find("table2"), ["LaS*", "image"])]
    [('LaS', 'Image'), ('LaS-chunk', 'Image')]
    """
    rows: set[str] = set()
    columns: set[str] = set()
    for pattern in only:
        in_rows = {label for label in experiment.rows if _matches(label, pattern)}
        in_columns = {label for label in experiment.columns if _matches(label, pattern)}
        if not in_rows and not in_columns:
            raise ValueError(
                f"--only {pattern!r} matches no row and no column of {experiment.name}; rows: "
                f"{', '.join(experiment.rows)}; columns: {', '.join(experiment.columns)}"
            )
        rows |= in_rows
        columns |= in_columns
    if rows and experiment.relative_to is not None:
        rows.add(experiment.relative_to)
    chosen = [
        run
        for run in experiment.runs
        # a run of an experiment with ``reads`` fills all columns of its row
        if (not rows or run.row in rows)
        and (not columns or experiment.reads or run.column in columns)
    ]
    if not chosen:
        raise ValueError(
            f"{experiment.name} has no run for --only {' --only '.join(only)}: these rows have "
            "published numbers alone, or none in these columns"
        )
    return chosen


def _matches(label: str, pattern: str) -> bool:
    return fnmatchcase(label.lower(), pattern.lower()) or slug(label) == pattern.lower()


def plan(
    experiment: Experiment,
    runs: str | Path,
    *,
    only: Sequence[str] = (),
    seeds: int = 1,
    budget: str | None = None,
    changes: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> list[Planned]:
    """The runs to be done, all of the first seed before those of the next.

    Args:
        experiment: what is declared.
        runs: folder of records; the experiment's own is inside it, see :func:`folder_of`.
        only: patterns, see :func:`choose`.
        seeds: 0 … seeds-1 are run.
        budget: wall time of each run, instead of its declared length.
        changes: options for all runs (a dot reaches into a nested one).
        quick: a few steps of a tiny model on stand-in data, to see that everything works.

    """
    if seeds < 1:
        raise ValueError(f"seeds must be 1 or more, got {seeds}")
    if quick and budget is not None:
        raise ValueError("--quick fixes the length of the runs; leave out --budget")
    folder = folder_of(experiment, runs, quick)
    found = []
    for seed in range(seeds):
        for run in choose(experiment, only):
            cell = run.options
            if quick:
                cell = shrink(cell, quick_data(runs))
            if budget is not None:
                cell = _with_length(cell, "budget", budget)
            for name, value in (changes or {}).items():
                cell = _with_length(cell, name, value)
            planned = Planned(run.row, run.column, seed, {})
            own = {"seed": seed, "runs": str(folder), "name": planned.name}
            found.append(Planned(run.row, run.column, seed, {**cell, **own}))
    return found


def _with_length(cell: Cell, name: str, value: Any) -> Cell:
    """Set an option; steps, epochs and budget replace each other."""
    kept = {k: v for k, v in cell.items() if name not in LENGTHS or k not in LENGTHS}
    return with_options(kept, {name: value})


def folder_of(experiment: Experiment, runs: str | Path, quick: bool = False) -> Path:
    """The folder of an experiment's records; that of quick ones says so."""
    return Path(runs) / experiment.described(quick).name


def quick_data(runs: str | Path) -> Path:
    """The data cache of quick runs: never the user's own."""
    return Path(runs) / "quick-data"


def shrink(cell: Cell, root: Path) -> Cell:
    """The cell as a quick run: its mixer and protocol, with everything else as small as can be.

    >>> small = shrink({"task": "image", "mixer": "s4", "dim": 512, "epochs": 200.0}, Path("q"))
    >>> small["dim"], small["steps"], small["task_options"]["subset"], "epochs" in small
    (16, 2, True, False)
    """
    options = small_options(cell["task"], cell.get("task_options", {}))
    small = {name: value for name, value in cell.items() if name not in LENGTHS}
    heads = cell.get("mixer_options", {}).get("num_heads", 1)
    width = 16 if 16 % heads == 0 else 8 * heads
    small |= dict(task_options=options, root=str(root), device="cpu")
    small |= dict(dim=width, depth=1)
    small |= dict(steps=2, batch_size=4, evaluate_batch=8, log_every=1, warmup=0.0)
    small.pop("length", None)
    augments = "augment" in str(cell.get("protocol")).split("+")  # which needs whole pictures
    if not augments and "length" not in options:
        small["length"] = 64
    for name, value in (("limit", 8), ("pretrain_steps", 2)):
        if small.get(name) is not None:
            small[name] = value
    return with_options(small, {})
