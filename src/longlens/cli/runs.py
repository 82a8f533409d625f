"""``longlens runs``: list, filter, sort and compare records."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from longlens.cli.parser import Parser, UsageError
from longlens.cli.terminal import complain
from longlens.report.read import check_columns, differing_options, select, sort
from longlens.report.tables import FORMATS, grouped_rows, render, rows_of
from longlens.runs.folders import find_runs
from longlens.runs.record import DAMAGED, FIELDS

COLUMNS = ("name", "task", "mixer", "protocol", "seed", "status", "validation", "test", "steps",
           "seconds", "tokens/s")  # fmt: skip
EPILOG = f"""examples:
  longlens runs --where task=listops status=finished --sort test --down
  longlens runs --by task,mixer                        mean ± deviation over seeds
  longlens runs --diff                                 the options in which the runs differ
  longlens runs --columns name,lr,dim,mixer_options.window,validation,test.loss --format csv
Columns are {", ".join(FIELDS)}, validation and test (the task's metric there), keys of the record
and options. A status is finished, quick (finished, but of `longlens run --quick`: no result),
stopped (by Ctrl-C or a signal), cut off (killed), failed, running or damaged; what is stopped or
cut off goes on by the same command."""


def parser() -> Parser:
    """The command line of ``longlens runs``."""
    p = Parser("runs", "List and compare the records of runs.", EPILOG)
    p.add_argument("folder", nargs="?", default="runs", help="folder of records (default: runs)")
    p.add_argument(
        "--where", nargs="+", default=[], metavar="CONDITION", help="lr<0.01, seed=0,1 …"
    )
    p.add_argument("--sort", default="name", metavar="COLUMN")
    p.add_argument("--down", action="store_true", help="sort from high to low")
    p.add_argument("--columns", default=None, metavar="A,B", help=f"default: {','.join(COLUMNS)}")
    p.add_argument("--diff", action="store_true", help="add the options in which the runs differ")
    p.add_argument("--by", default=None, metavar="A,B", help="one row for all runs that agree here")
    p.add_argument("--format", default="text", choices=FORMATS[:-1], help="default: text")
    p.add_json()
    p.add_argument("--all", action="store_true", help="also runs that were set aside")
    return p


def main(argv: Sequence[str]) -> int:
    """Run ``longlens runs``; returns the exit code."""
    args = parser().parse_args(argv)
    if args.by and (args.columns or args.diff):
        alone = "--columns" if args.columns else "--diff"
        raise UsageError(f"{alone} is for single runs; the columns of groups (--by) are fixed")
    everything = find_runs(args.folder, args.all)
    for run in everything:
        if run.status == DAMAGED:  # in the table as well, but without the reason
            complain("longlens runs", run.error)
    columns = args.columns.split(",") if args.columns else list(COLUMNS)
    by = args.by.split(",") if args.by else []
    check_columns([args.sort, *columns, *by], everything)
    runs = sort(select(everything, args.where), args.sort, args.down)
    if by:
        rows = grouped_rows(runs, by)
    else:
        if args.diff:
            columns[1:1] = [name for name in differing_options(runs) if name not in columns]
        rows = rows_of(runs, columns)
    if not rows and not args.json:
        nothing = f"no runs in {args.folder}" + (" meet the conditions" if args.where else "")
        print(nothing, file=sys.stdout if args.format == "text" else sys.stderr)
        return 0
    print(render(rows, "json" if args.json else args.format))
    return 0
