"""``longlens tune``: search over any options of ``longlens train``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from longlens.cli.run import add_queue_options, check_names, checked, work_on
from longlens.cli.train import parse as parse_train
from longlens.experiments.cells import Cell, cell_key, grid, with_options
from longlens.experiments.queue import Queue
from longlens.experiments.search import SAMPLERS, Range, Search, grid_choices, parse
from longlens.report.tables import render
from longlens.training.options import TrainOptions

EPILOG = """Every other option is one of `longlens train` and holds for all runs.

  longlens tune --task listops --mixer las --steps 2000 --trials 20 \\
      --search lr=1e-4:1e-2:log dim=64,128 mixer_options.window=3,5,9
  longlens tune --task image --sampler grid --search lr=1e-4:1e-2:log:5 seed=0,1,2

lr=1e-4:1e-2:log is a range (even in the logarithm), depth=2:8:2 one in steps, dim=64,128 a choice.
A grid needs choices, steps or a number of points. Runs are compared by their validation metric
alone; the test split takes no part in the choice. Needs longlens[search]."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``longlens tune``, less the options of ``longlens train``."""
    p = argparse.ArgumentParser(
        prog="longlens tune",
        description="Search over options of `longlens train`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--search", nargs="+", required=True, metavar="NAME=RANGE")
    p.add_argument("--sampler", default="tpe", choices=(*SAMPLERS, "grid"))
    p.add_argument("--trials", type=int, default=20, help="runs (a grid has as many as it has)")
    p.add_argument("--search_seed", type=int, default=0, help="of what the sampler chooses")
    add_queue_options(p, "default: one of its own in the folder of records")
    return p


def base_cell(words: Sequence[str]) -> Cell:
    """Read options of ``longlens train``; return those that differ from their defaults."""
    from jsonargparse import ArgumentError

    try:
        given = parse_train(words).to_json()
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from None
    defaults = TrainOptions().to_json()
    return {name: value for name, value in given.items() if value != defaults[name]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens tune``; returns the exit code."""
    args, rest = parser().parse_known_args(argv)
    space = parse(args.search)
    check_names(space)
    base = base_cell(rest)
    if args.trials < 1:
        raise ValueError(f"trials must be 1 or more, got {args.trials}")
    for name, values in space.items():  # before twenty trials fail for the same reason
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            checked(with_options(base, {name: value}))
    cells = []
    if args.sampler == "grid":
        cells = [checked(cell) for cell in grid(base, grid_choices(space))]
        search = None
        identity = cell_key({"cells": cells})
    else:
        search = Search(base, space, args.sampler, args.search_seed)
        identity = cell_key(search.to_json())
    runs = Path(base.get("runs", TrainOptions().runs))
    queue = Queue(args.storage or str(runs / f"tune-{identity}.journal"), args.study)
    if search is None:
        queue.add(cells)
    else:
        queue.add_search(search, args.trials)
    code = work_on(queue, args)
    rows = [
        {"validation": facts["found"], "metric": facts["metric"], "run": facts["run"]}
        | {name: _inside(facts["cell"], name) for name in space}
        for _, facts in queue.finished()
    ]
    if rows:
        print(render(rows[:10]))
    return code


def _inside(cell: Cell, name: str) -> object:
    found: object = cell
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


if __name__ == "__main__":
    sys.exit(main())
