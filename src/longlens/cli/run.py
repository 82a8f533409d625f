"""``longlens run NAME|TABLE``: all runs of an experiment or a table, by one worker or many."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from longlens.cli.terminal import complain
from longlens.cli.train import parse
from longlens.cli.words import key_values
from longlens.experiments.catalog import NAMES, find
from longlens.experiments.catalog.base import Experiment
from longlens.experiments.cells import Cell, read_table
from longlens.experiments.plan import QUICK_SUFFIX, folder_of, plan, quick_data, write_labels
from longlens.experiments.queue import STUDY, Queue
from longlens.experiments.worker import Stop, run_workers, train_cell, validation
from longlens.training.options import TrainOptions

OWN = ("only", "seeds", "budget", "changes", "quick", "list")  # options of experiments alone

EPILOG = """experiments:
{experiments}

  longlens run table2 --only 'LaS*' --only image --seeds 3 --budget 8m
  longlens run readings --quick            # a few steps on stand-in data: does all of it work?
  longlens run mine.py                     # your own, see docs/experiments.md
  longlens collect runs/table2             # the records as one file, results/table2.json

A table is a JSON or YAML file: a list of cells (options of `longlens train`) or a grid:

  base: {{task: listops, epochs: 40}}
  grid: {{mixer: [las, softmax, s4d], seed: [0, 1, 2], mixer_options.window: [3, 5]}}

All cells are checked before the first one runs. The same command again goes on where it was cut
off, and does what is new. With --workers 2 or more, or with --storage, the runs are a queue that
`longlens worker` on other machines can share (needs longlens[search])."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``longlens run``."""
    width = max(map(len, NAMES))
    listed = "\n".join(f"  {name:<{width}}  {find(name).title}" for name in NAMES)
    p = argparse.ArgumentParser(
        prog="longlens run",
        description="Run every cell of an experiment or a table, and keep one record each.",
        epilog=EPILOG.format(experiments=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("what", metavar="NAME|FILE", help="an experiment, or a file of cells or a grid")
    p.add_argument("--runs", default="runs", help="folder of records (default: runs)")
    p.add_argument("--retry_failed", action="store_true", help="try again what has failed")
    own = p.add_argument_group("experiments only")
    own.add_argument(
        "--only", action="append", default=[], metavar="PATTERN",
        help="rows or columns, as in 'LaS*'; may be given again",
    )  # fmt: skip
    own.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 … N-1 (default: 1)")
    own.add_argument("--budget", default=None, metavar="8m", help="wall time of each run")
    own.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
        help="an option of longlens train for every run, as in graphs=step; may be given again",
    )  # fmt: skip
    own.add_argument("--quick", action="store_true", help="tiny models, a few steps, no results")
    own.add_argument("--list", action="store_true", help="print the runs and do nothing")
    add_queue_options(p, "RUNS/NAME.journal")
    return p


def add_queue_options(p: argparse.ArgumentParser, storage: str) -> None:
    """The options of commands that fill a queue and may work on it."""
    p.add_argument("--workers", type=int, default=1, help="processes here; 0: only fill the queue")
    p.add_argument(
        "--devices", default="", metavar="0,1", help="CUDA devices that workers take in turn"
    )
    p.add_argument("--storage", default=None, help=f"a file or a database's URL; {storage}")
    p.add_argument("--study", default=STUDY, help="name of the queue in the storage")


def check_names(names: Iterable[str]) -> None:
    """Raise for a name that is no option of ``longlens train``."""
    known = {field.name for field in fields(TrainOptions)}
    for name in names:
        if (head := name.split(".")[0]) not in known:
            near = get_close_matches(head, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{head!r} is no option of longlens train{hint}")


def checked(cell: Mapping[str, Any]) -> Cell:
    """Check a cell as `longlens train` would its options; return it with values of their types."""
    from jsonargparse import ArgumentError

    check_names(cell)
    words = [f"--{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in cell.items()]
    try:
        options = parse(words).to_json()
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return {name: options[name] for name in cell}


def read_cells(table: str, runs: str) -> list[Cell]:
    """Read a table's cells and check them all before the first is run."""
    cells = []
    for number, cell in enumerate(read_table(table)):
        try:
            if "runs" in cell:  # a table of somebody else's must not write elsewhere
                raise ValueError("runs is no option of a table; give --runs")
            cells.append(checked({"runs": runs, **cell}))
        except ValueError as error:
            raise ValueError(f"{table}: cell {number}: {error}") from None
    return cells


def read_changes(words: Iterable[str]) -> dict[str, Any]:
    """The options of ``--set`` for every run of an experiment."""
    found = key_values(words, "--set")
    check_names(found)
    for name in found:
        if name in ("seed", "runs", "name", "task"):
            raise ValueError(f"--set cannot change {name!r}, which the experiment itself decides")
    return found


def is_experiment(what: str) -> bool:
    """Whether the command's argument names an experiment rather than a table's file.

    >>> is_experiment("table2"), is_experiment("mine.py"), is_experiment("table.yaml")
    (True, True, False)
    """
    path = Path(what)
    return what in NAMES or path.suffix == ".py" or not (path.suffix or path.is_file())


def plan_cells(experiment: Experiment, args: argparse.Namespace) -> list[Cell]:
    """The checked cells of an experiment; its labels are written beside where the records go."""
    planned = plan(
        experiment, args.runs, only=args.only, seeds=args.seeds, budget=args.budget,
        changes=read_changes(args.changes), quick=args.quick,
    )  # fmt: skip
    if args.list:
        for run in planned:
            shown = {k: v for k, v in run.cell.items() if k not in ("runs", "name", "seed")}
            print(f"{run.name}  {json.dumps(shown)}")
        return []
    from longlens.experiments.built import build_on_meta

    cells = []
    for run in planned:
        try:
            cells.append(checked(run.cell))
            build_on_meta(run.cell)
        except ValueError as error:
            raise ValueError(f"{experiment.name}: {run.row}, {run.column}: {error}") from None
    folder = folder_of(experiment, args.runs, args.quick)
    command = f"longlens run {Path(args.what).name}" if args.what.endswith(".py") else None
    write_labels(folder, experiment, planned, command)
    if args.quick:
        from longlens.experiments.standins import prepare_stand_in

        root = quick_data(args.runs)
        made = {
            cell["task"]: None
            for cell in cells
            if prepare_stand_in(cell["task"], root, **cell["task_options"])
        }
        print(
            f"--quick: {len(cells)} runs of two steps on synthetic stand-in data in {root}"
            + (f" (made now: {', '.join(made)})" if made else "")
            + f"; the records in {folder} are no results"
        )
    return cells


def run_here(cells: Sequence[Cell]) -> int:
    """Run cells one after another in this process; return how many failed."""
    failed = 0
    for number, cell in enumerate(cells, 1):
        try:
            record = train_cell(cell)
            print(f"{number}/{len(cells)} {record['name']}: {validation(record):.4f}", flush=True)
        except Stop:
            raise
        except Exception as error:  # the others shall have their turn; the record says what it was
            failed += 1
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            name = f"{cell['name']} " if cell.get("name") else ""
            complain(f"{number}/{len(cells)} {name}failed", f"{kind}{error}")
    return failed


def refuse_other_data(cells: Sequence[Cell]) -> None:
    """Raise for a finished run whose data were replaced: the queue would count it as done."""
    from longlens.assemble.finished import other_data
    from longlens.assemble.run import run_folder
    from longlens.training.records import read_record

    for cell in cells:
        options = TrainOptions(**cell)
        folder = run_folder(options)
        try:
            record = read_record(folder)
        except ValueError:  # none, or a damaged one, which the run itself will report
            continue
        finished = record["status"] == "finished"
        if finished and (different := other_data(record, options)):
            raise ValueError(f"{folder} is finished, but {different}; move it away, or give --runs")


def work_on(queue: Queue, args: argparse.Namespace) -> int:
    """Let the workers that ``args`` ask for work on a filled queue; return the exit code."""
    if args.workers == 0:
        print(f"{queue.tally()}; work on it with: longlens worker {queue.where}")
        return 0
    devices = args.devices.split(",") if args.devices else ()
    run_workers(queue.where, args.workers, study=args.study, devices=devices)
    tally = queue.tally()
    print(tally)
    for key, reason in queue.failures().items():
        complain(f"{key} failed", reason)
    return 1 if tally.failed or tally.open else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens run``; returns the exit code."""
    args = parser().parse_args(argv)
    if args.workers < 0:
        raise ValueError(f"workers must be 0 or more, got {args.workers}")
    if is_experiment(args.what):
        experiment = find(args.what)
        cells = plan_cells(experiment, args)
        name = experiment.name + (QUICK_SUFFIX if args.quick else "")
    elif given := [name for name in OWN if getattr(args, name) != parser().get_default(name)]:
        flag = "set" if given[0] == "changes" else given[0]
        raise ValueError(f"--{flag} is for experiments, and {args.what} is a table")
    else:
        cells, name = read_cells(args.what, args.runs), Path(args.what).stem
    if args.list:
        return 0
    if args.workers == 1 and args.storage is None:
        try:
            return 1 if run_here(cells) else 0
        except Stop as stop:
            print(f"longlens run: {stop}", file=sys.stderr)
            return 130
    refuse_other_data(cells)
    storage = args.storage or str(Path(args.runs) / f"{name}.journal")
    queue = Queue(storage, args.study)
    added = queue.add(cells)
    if args.retry_failed:
        added += queue.retry_failed()
    print(f"{added} runs put into {storage}")
    return work_on(queue, args)


if __name__ == "__main__":
    sys.exit(main())
