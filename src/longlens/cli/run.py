"""``longlens run NAME|TABLE``: all runs of an experiment or a table, here or on a cluster."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longlens.cli.parser import Parser, UsageError, key_values
from longlens.cli.terminal import complain
from longlens.cli.train import NAMES as TRAIN_OPTIONS
from longlens.config import did_you_mean
from longlens.experiments.catalog import NAMES, find
from longlens.experiments.catalog.base import Experiment
from longlens.experiments.standins import prepare_stand_in, quick_data
from longlens.runs.cell import read_cells, with_options
from longlens.runs.record import Record
from longlens.runs.results import write_labels

if TYPE_CHECKING:
    from longlens.runs.sweeps import Engine
    from longlens.training.options import TrainOptions

OWN = ("only", "seeds", "budget", "quick", "list")  # options of experiments alone

EPILOG = """experiments:
{experiments}

  longlens run table2 --only 'LaS*' --only image --seeds 3 --budget 8m
  longlens run readings --quick            # a few steps on stand-in data: does all of it work?
  longlens run mine.py                     # your own, see docs/experiments.md
  longlens collect runs/table2             # the records as one file, results/table2.json

A table is a JSON or YAML file: a list of cells (options of `longlens train`) or a grid:

  base: {{task: listops, epochs: 40}}
  grid: {{mixer: [las, softmax, s4d], seed: [0, 1, 2], lr: [0.001, 0.002]}}

An option of one mixer belongs in a list of cells, not in a grid over several mixers. The options of
all cells are checked before the first one runs. The same command again goes on where it was cut
off, tries again what failed, and does what is new; given twice at once, both share the work."""


def parser() -> Parser:
    """The command line of ``longlens run``."""
    width = max(map(len, NAMES))
    listed = "\n".join(f"  {name:<{width}}  {find(name).title}" for name in NAMES)
    about = "Run every cell of an experiment or a table, and keep one record each."
    p = Parser("run", about, EPILOG.format(experiments=listed), settable=TRAIN_OPTIONS)
    p.add_argument("what", metavar="NAME|FILE", help="an experiment, or a file of cells or a grid")
    p.add_argument("--runs", default="runs", help="folder of records (default: runs)")
    group = p.add_argument_group("experiments only")
    group.add_argument(
        "--only", action="append", default=[], metavar="PATTERN",
        help="rows or columns, as in 'LaS*'; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--seeds", type=read_seeds, default=1, metavar="N|A-B",
        help="seeds 0 … N-1, or A … B (default: 1)",
    )  # fmt: skip
    group.add_argument("--budget", default=None, metavar="8m", help="wall time of each run")
    group.add_argument("--quick", action="store_true", help="tiny models, a few steps, no results")
    group.add_argument("--list", action="store_true", help="print the runs and do nothing")
    p.add_set("an option of `longlens train` for every run, as in graphs=step")
    p.add_json()
    add_engine_options(p)
    return p


def read_seeds(word: str) -> int | range:
    """How many seeds, or from which to which.

    >>> read_seeds("3"), read_seeds("1-2")
    (3, range(1, 3))
    """
    first, dash, last = word.partition("-")
    if first.isdecimal() and not dash:
        return int(first)
    if first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    raise argparse.ArgumentTypeError(f"must be a number (3) or a range (1-2), got {word!r}")


def add_engine_options(p: argparse.ArgumentParser) -> None:
    """The options that say where runs are done."""
    where = p.add_argument_group("where")
    where.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time")
    where.add_argument(
        "--devices", default="", metavar="0,1", help="CUDA devices that workers take in turn"
    )
    where.add_argument(
        "--on", default="here", metavar="WHERE",
        help="here, ray, ray://HOST:PORT (longlens[ray]) or slurm (longlens[slurm])",
    )  # fmt: skip
    p.add_argument("--quiet", action="store_true", help="one line a run, without its progress")


def shows_progress(args: argparse.Namespace) -> bool:
    """Whether runs show how far they are: where they come one after the other, here."""
    return bool(args.workers == 1 and args.on == "here" and not args.quiet)


def engine_of(args: argparse.Namespace) -> Engine:
    """The engine that the options of a command ask for."""
    from longlens.runs.engines import find_engine  # needs torch, as all that runs something

    return find_engine(args.on, args.workers, args.devices.split(",") if args.devices else ())


def checked_cells(table: str, runs: str, changes: dict[str, Any]) -> list[TrainOptions]:
    """Read a table's cells and check them all before the first is run."""
    from longlens.runs.sweeps import as_options

    cells = []
    for number, plain in enumerate(read_cells(table)):
        cell = with_options(plain, changes)
        try:
            if "runs" in cell:  # a table of somebody else's must not write elsewhere
                raise ValueError("runs is no option of a table; give --runs")
            cells.append(as_options({"runs": runs, **cell}))
        except ValueError as error:
            raise ValueError(f"{table}: cell {number}: {error}") from None
    return cells


def read_changes(words: Iterable[str]) -> dict[str, Any]:
    """The options of ``--set`` for every run of an experiment."""
    changes = key_values(words)
    for name in changes:
        if (first := name.partition(".")[0]) not in TRAIN_OPTIONS:
            raise UsageError(f"{first!r} is no option of train{did_you_mean(first, TRAIN_OPTIONS)}")
        if name in ("seed", "runs", "name", "task"):
            raise UsageError(f"--set cannot change {name!r}, which the experiment itself decides")
    return changes


def is_experiment(what: str) -> bool:
    """Whether the command's argument names an experiment rather than a table's file.

    >>> is_experiment("table2"), is_experiment("mine.py"), is_experiment("table.yaml")
    (True, True, False)
    """
    path = Path(what)
    return what in NAMES or path.suffix == ".py" or not (path.suffix or path.is_file())


def plan_cells(experiment: Experiment, args: argparse.Namespace) -> list[TrainOptions]:
    """The checked cells of an experiment; its labels are written beside where the records go."""
    cells = experiment.cells(
        args.only, args.seeds, budget=args.budget, changes=read_changes(args.changes),
        quick=args.quick, runs=args.runs,
    )  # fmt: skip
    if args.list and args.json:
        print(json.dumps(cells, indent=1))
        return []
    if args.list:
        for cell in cells:
            shown = {k: v for k, v in cell.items() if k not in ("runs", "name", "seed")}
            print(f"{cell['name']}  {json.dumps(shown)}")
        return []
    from longlens.runs.sweeps import as_options

    places = {cell["name"]: experiment.place(cell["name"]) for cell in cells}
    checked = []
    for cell in cells:
        try:
            checked.append(as_options(cell))
        except ValueError as error:
            place = places[cell["name"]]
            where = f"{experiment.name}: {place['row']}, {place['column']}"
            raise ValueError(f"{where}: {error}") from None
    command = f"longlens run {Path(args.what).name}" if args.what.endswith(".py") else ""
    folder = experiment.folder(args.runs, args.quick)
    write_labels(folder, experiment.described(args.quick, command), places)
    if args.quick:
        root = quick_data(args.runs)
        new = {
            options.task: None
            for options in checked
            if prepare_stand_in(options.task, root, **options.task_options)
        }
        print(
            f"--quick: {len(cells)} runs of two steps on synthetic stand-in data in {root}"
            + (f" (made now: {', '.join(new)})" if new else "")
            + f"; the records in {folder} are no results"
        )
    return checked


def report_failures(records: Sequence[Record]) -> int:
    """Say which runs failed, and why; return the exit code."""
    failed = [record for record in records if record.status == "failed"]
    for record in failed:
        complain(f"{record.name} failed", record.error)
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run ``longlens run``; returns the exit code."""
    args = parser().parse_args(argv)
    if args.json and not args.list:
        raise UsageError("--json is for --list; `longlens runs --json` prints what was run")
    if args.list and is_experiment(args.what):
        plan_cells(find(args.what), args)
        return 0
    from longlens.runs.sweeps import sweep

    engine = engine_of(args)
    if is_experiment(args.what):
        cells = plan_cells(find(args.what), args)
    elif given := [name for name in OWN if getattr(args, name) != parser().get_default(name)]:
        raise UsageError(f"--{given[0]} is for experiments, and {args.what} is a table")
    else:
        cells = checked_cells(args.what, args.runs, key_values(args.changes))
    if shows_progress(args) and not args.quick:
        cells = [replace(cell, progress=True) for cell in cells]
    done = 0

    def each(place: int, record: Record) -> None:
        nonlocal done
        done += 1
        values = [(split, record.value(split)) for split in ("validation", "test")]
        shown = "  ".join(f"{split} {value:.4f}" for split, value in values if value is not None)
        print(f"{done}/{len(cells)} {record.name}: {shown or record.status}", flush=True)

    return report_failures(sweep(cells, engine, each=each))
