"""``longlens tune``: search over any options of ``longlens train``."""

from __future__ import annotations

from collections.abc import Sequence

from longlens.cli.parser import Parser, UsageError
from longlens.cli.run import add_engine_options, engine_of, report_failures, shows_progress
from longlens.cli.train import parse as parse_train
from longlens.report.tables import render
from longlens.runs.cell import Cell, grid, with_options
from longlens.runs.record import Record, inside
from longlens.runs.search import (
    SAMPLERS,
    Range,
    grid_choices,
    parse,
    selection_value,
    tune,
)
from longlens.runs.sweeps import as_options, sweep
from longlens.training.options import TrainOptions

EPILOG = """Every other option is one of `longlens train` and holds for all runs.

  longlens tune --task listops --mixer las --steps 2000 --trials 20 \\
      --search lr=1e-4:1e-2:log dim=64,128 mixer_options.window=3,5,9
  longlens tune --task image --sampler grid --search lr=1e-4:1e-2:log:5 seed=0,1,2

lr=1e-4:1e-2:log is a range (even in the logarithm), depth=2:8:2 one in steps, dim=64,128 a choice.
A grid needs choices, steps or a number of points. Runs are compared by their validation metric
alone; the test split takes no part in the choice. The same command again goes on where it was cut
off. Needs longlens[search]."""


def parser() -> Parser:
    """The command line of ``longlens tune``, less the options of ``longlens train``."""
    p = Parser("tune", "Search over options of `longlens train`.", EPILOG)
    p.add_argument("--search", nargs="+", required=True, metavar="NAME=RANGE")
    p.add_argument("--sampler", default="tpe", choices=(*SAMPLERS, "grid"))
    p.add_argument("--trials", type=int, default=20, help="runs (a grid has as many as it has)")
    p.add_argument("--search-seed", type=int, default=0, help="of what the sampler chooses")
    add_engine_options(p)
    return p


def base_cell(words: Sequence[str]) -> Cell:
    """Read options of ``longlens train``; return those that differ from their defaults."""
    given = parse_train(words).to_json()
    defaults = TrainOptions().to_json()
    return {name: value for name, value in given.items() if value != defaults[name]}


def main(argv: Sequence[str]) -> int:
    """Run ``longlens tune``; returns the exit code."""
    args, rest = parser().parse_known_args(argv)
    space = parse(args.search)
    base = base_cell(rest)
    if "name" in base:
        raise UsageError("--name is for one run; those of a search are named by their options")
    if args.trials < 1:
        raise ValueError(f"trials must be 1 or more, got {args.trials}")
    for name, values in space.items():  # before twenty trials fail for the same reason
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            as_options(with_options(base, {name: value}))
    engine = engine_of(args)

    def run(cells: Sequence[Cell]) -> list[Record]:
        cells = [{"progress": shows_progress(args), **cell} for cell in cells]
        return sweep(cells, engine, each=lambda _, record: print(_line(record), flush=True))

    if args.sampler == "grid":
        cells = list(grid(base, grid_choices(space)))
        trained = list(zip(cells, run(cells), strict=True))
    else:
        trained = tune(base, space, args.trials, sampler=args.sampler, seed=args.search_seed,
                       run=run, at_once=max(1, args.workers))  # fmt: skip
    done = [(cell, record) for cell, record in trained if record.value("validation") is not None]
    done.sort(key=lambda pair: -(selection_value(pair[1]) or 0.0))
    rows = [
        {"validation": record.value("validation"), "metric": record.metric_name}
        | {"run": record.name}
        | {name: inside(cell, name) for name in space}
        for cell, record in done
    ]
    if rows:
        print(render(rows[:10]))
    return report_failures([record for _, record in trained])


def _line(record: Record) -> str:
    value = record.value("validation")
    return f"{record.name}: {'failed' if value is None else f'validation {value:.4f}'}"
