"""``longlens run TABLE``: all runs of a table, by one worker or many."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from longlens.cli.train import parse
from longlens.experiments.cells import Cell, read_table
from longlens.experiments.queue import STUDY, Queue
from longlens.experiments.worker import Stop, run_workers, train_cell, validation
from longlens.training.options import TrainOptions

EPILOG = """A table is a JSON or YAML file: a list of cells (options of `longlens train`) or a grid:

  base: {task: listops, epochs: 40}
  grid: {mixer: [las, softmax, s4d], seed: [0, 1, 2], mixer_options.window: [3, 5]}

The same command again goes on where it was cut off, and does what is new in the table. With
--workers 2 or more, or with --storage, the runs are a queue that `longlens worker` on other
machines can share (needs longlens[search])."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``longlens run``."""
    p = argparse.ArgumentParser(
        prog="longlens run",
        description="Run every cell of a table, and keep one record each.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("table", help="a file of cells, or of a grid")
    p.add_argument("--runs", default="runs", help="folder of records (default: runs)")
    p.add_argument("--retry_failed", action="store_true", help="try again what has failed")
    add_queue_options(p, "RUNS/TABLE.journal")
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
            cells.append(checked({"runs": runs, **cell}))
        except ValueError as error:
            raise ValueError(f"{table}: cell {number}: {error}") from None
    return cells


def run_here(cells: Sequence[Cell]) -> int:
    """Run cells one after another in this process; return how many failed."""
    failed = 0
    for number, cell in enumerate(cells, 1):
        try:
            record = train_cell(cell)
            print(f"{number}/{len(cells)} {record['name']}: {validation(record):.4f}")
        except ValueError as error:
            failed += 1
            print(f"{number}/{len(cells)} failed: {error}", file=sys.stderr)
    return failed


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
        print(f"{key} failed: {reason}", file=sys.stderr)
    return 1 if tally.failed or tally.open else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens run``; returns the exit code."""
    args = parser().parse_args(argv)
    if args.workers < 0:
        raise ValueError(f"workers must be 0 or more, got {args.workers}")
    cells = read_cells(args.table, args.runs)
    if args.workers == 1 and args.storage is None:
        try:
            return 1 if run_here(cells) else 0
        except Stop as stop:
            print(f"longlens run: {stop}", file=sys.stderr)
            return 130
    storage = args.storage or str(Path(args.runs) / f"{Path(args.table).stem}.journal")
    queue = Queue(storage, args.study)
    added = queue.add(cells)
    if args.retry_failed:
        added += queue.retry_failed()
    print(f"{added} runs put into {storage}")
    return work_on(queue, args)


if __name__ == "__main__":
    sys.exit(main())
