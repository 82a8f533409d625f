"""``longlens tune``: search over any options of ``longlens train``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from longlens.cli.parser import Parser, UsageError
from longlens.cli.run import add_engine_options, engine_of, report_failures, shows_progress
from longlens.cli.train import parse as parse_train
from longlens.layers.registry import check_options
from longlens.report.tables import render
from longlens.runs.cell import Cell, grid, with_options
from longlens.runs.record import Record, inside
from longlens.runs.search import (
    SAMPLERS,
    Choices,
    Range,
    grid_choices,
    parse,
    selection_value,
    tune,
)
from longlens.runs.sweeps import as_options, sweep
from longlens.training.options import PLACEMENT, TrainOptions

EPILOG = """Every other option is one of `longlens train` and holds for all runs.

  longlens tune --task listops --mixer las --steps 2000 --trials 20 \\
      --search lr=1e-4:1e-2:log dim=64,128 mixer_options.window=3,5,9
  longlens tune --task image --sampler grid --search lr=1e-4:1e-2:log:5 seed=0,1,2

lr=1e-4:1e-2:log is a range (even in the logarithm), depth=2:8:2 one in steps, dim=64,128 a choice.
A grid needs choices, steps or a number of points. Runs are compared by their validation metric
alone; the test split takes no part in the choice. Options that make no model together fail, and the
search goes on. The same command again goes on where it was cut off. Needs longlens[search]."""


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
    check_values(base, space)
    engine = engine_of(args)

    def run(cells: Sequence[Cell]) -> list[Record]:
        found = [_options(cell, space, shows_progress(args)) for cell in cells]
        valid = [options for options in found if isinstance(options, TrainOptions)]
        each = iter(sweep(valid, engine, each=lambda _, r: print(_line(r), flush=True)))
        return [next(each) if isinstance(one, TrainOptions) else one for one in found]

    if args.sampler == "grid":
        cells = list(grid(base, grid_choices(space)))
        trained = list(zip(cells, run(cells), strict=True))
    else:
        trained = tune(base, space, args.trials, sampler=args.sampler, seed=args.search_seed,
                       run=run, at_once=max(1, args.workers))  # fmt: skip
    if not any(record.options for _, record in trained):  # no trial could be built
        raise ValueError(trained[0][1].error)
    # A sampler may ask for the same run twice.
    told = {record.name: (cell, record) for cell, record in trained}.values()
    done = [(cell, record) for cell, record in told if record.value("validation") is not None]
    done.sort(key=lambda pair: -(selection_value(pair[1]) or 0.0))
    rows = [
        {"validation": record.value("validation"), "metric": record.metric_name}
        | {"run": record.name}
        | {name: inside(cell, name) for name in space}
        for cell, record in done[:10]
    ]
    failed = [(cell, record) for cell, record in told if record.value("validation") is None]
    rows += [
        {"validation": "failed", "run": record.name} | {name: inside(cell, name) for name in space}
        for cell, record in failed[:10]
    ]
    print(render(rows))
    return report_failures([record for _, record in failed])


def check_values(base: Cell, space: Mapping[str, Range | Choices]) -> None:
    """Raise ValueError where a value is wrong in itself, before twenty trials fail for it.

    Whether there is a model of these options depends on whatever else is searched: trials tell.
    """
    for name, values in space.items():
        if name in PLACEMENT:
            raise ValueError(f"search: {name} says where a run is kept, not what it computes")
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            options = TrainOptions.from_values(with_options(base, {name: value}))
            if "mixer" not in space:
                check_options(options.mixer, options.mixer_options)


def _options(cell: Cell, searched: Iterable[str], progress: bool) -> TrainOptions | Record:
    """A trial's options; if there is no such model, a record that says so, without options."""
    try:
        return as_options({"progress": progress, **cell})
    except ValueError as error:
        name = ", ".join(f"{name}={inside(cell, name)}" for name in searched)
        return Record(status="failed", name=name, error=str(error))


def _line(record: Record) -> str:
    value = record.value("validation")
    return f"{record.name}: {'failed' if value is None else f'validation {value:.4f}'}"
