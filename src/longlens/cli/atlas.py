"""``longlens atlas``: many tasks audited, on one page: how long they are, how far they reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longlens.cli.parser import Parser, command_line, ending_in

EPILOG = """examples:
  longlens atlas                                  every task whose data are there, a minute each
  longlens atlas 'far-*' ListOps 'UCR archive'    some, by name, pattern or group
  longlens atlas ListOps mine.csv --output mine.json      your own data beside a known task

The same command again goes on where it was cut off, and costs nothing where all is done. Several of
them at a time share the work. Data that must be prepared (`longlens data prepare image`) and are
not are listed as missing."""


def parser() -> Parser:
    """The command line of ``longlens atlas``."""
    p = Parser(
        "atlas",
        "Audit a list of tasks and draw them on one page: an example's length against the reach "
        "that 95 % of what is learnable needs.",
        EPILOG,
    )
    p.add_argument("tasks", nargs="*", metavar="TASK",
                   help="names, groups, patterns, tasks or files (default: the whole list)"
                   )  # fmt: skip
    p.add_argument("--list", action="store_true", help="print the list of tasks; audit nothing")
    p.add_argument("--collect", action="store_true",
                   help="audit nothing: the page and the record of what was audited")  # fmt: skip
    p.add_argument("--budget", default="60s", help="time of an audit (default: 60s)")
    p.add_argument("--mixers", default="",
                   help="also train these global models, as in s4d (default: probes alone)"
                   )  # fmt: skip
    p.add_output("the record (default: results/atlas.json)", ".json",
                 default=Path("results/atlas.json"))  # fmt: skip
    p.add_argument("--page", type=ending_in(".html"), metavar="FILE",
                   help="the page (default: as --output, ending in .html)")  # fmt: skip
    p.add_argument("--runs", default="runs/atlas", help="folder of audits (default: runs/atlas)")
    p.add_argument("--root", help="the data cache")
    p.add_argument("--quiet", action="store_false", dest="progress", help="no progress")
    return p


def main(argv: Sequence[str]) -> int:
    """Run ``longlens atlas``; returns the exit code."""
    args = parser().parse_args(argv)
    from longlens.files import to_json, write_output
    from longlens.lens.atlas import find_entries, make_atlas
    from longlens.report.atlas import atlas_page, atlas_table
    from longlens.tables import Table
    from longlens.tasks.errors import DataError
    from longlens.tasks.formats import ENDINGS

    entries = find_entries(args.tasks, args.root)
    if args.list:
        print(Table.of([{"name": e.name, "group": e.group, "task": e.task, "options": e.options}
                        for e in entries]).text())  # fmt: skip
        return 0
    for word in () if args.collect else args.tasks:
        if word.lower().endswith(ENDINGS) and not Path(word).exists():
            raise DataError(f"{word}: there is no such file")
    page = args.page or args.output.with_suffix(".html")
    command = command_line("atlas", argv)

    def save(atlas: dict[str, Any]) -> None:
        write_output(args.output, to_json({**atlas, "command": command}))
        write_output(page, atlas_page(atlas).encode())

    atlas = make_atlas(
        entries, runs=args.runs, root=args.root, budget=args.budget, progress=args.progress,
        collect=args.collect,
        mixers=tuple(filter(None, args.mixers.split(","))), each=save,
    )  # fmt: skip
    print(f"{atlas_table(atlas).text()}\n{args.output}\n{page}")
    return 0
