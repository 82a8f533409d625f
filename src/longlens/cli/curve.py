"""``longlens curve RUN …``: accuracy against context window, training examples, or any option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from longlens.charts import Line, line_chart, standalone
from longlens.cli.parser import Parser, UsageError, command_line, ending_in, numbers, read_value
from longlens.runs.results import ResultTable, write_results

EPILOG = """examples:
  longlens curve runs/listops-las-0-5e1cd8ed --context 64,128,256,512
  longlens curve runs/listops-las-0-5e1cd8ed runs/listops-s4d-0-91ad33c0 --examples 1000,5000,25000
  longlens curve runs/far-order-s4d-0-0c1e --vary task_options.distance=64,256,1024 --seeds 3

Every point is trained anew with the run's own options, of which one is replaced, and gets a record
of its own; points that are finished are taken as they are, so the same command goes on."""


def parser() -> Parser:
    """The command line of ``longlens curve``."""
    p = Parser("curve", "Draw what runs reach over one of their options.", EPILOG)
    p.add_argument("run", nargs="+", help="folder of a run; several give several lines")
    over = p.add_mutually_exclusive_group(required=True)
    over.add_argument("--context", help="context windows of each layer, as in 64,128,256 (the "
                      "mixer's chunk, window or kernel_size)")  # fmt: skip
    over.add_argument("--examples", help="training set sizes, as in 1000,5000,25000")
    over.add_argument("--length", help="positions to which examples are cut")
    over.add_argument("--vary", metavar="KEY=V1,V2,…", help="any option of `longlens train`")
    p.add_argument("--seeds", type=int, metavar="N", help="seeds 0 … N-1 (default: each run's own)")
    p.add_output("where to write (default: results/curve_RUN_OPTION.json)", ".json")
    p.add_argument("--plot", type=ending_in(".svg"), metavar="FILE",
                   help="the picture (default: as --output, ending in .svg)")  # fmt: skip
    p.add_argument("--runs", help="folder of the new records (default: beside the run)")
    p.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time")
    p.add_argument("--root", help="the data cache")
    return p


def draw(table: ResultTable) -> str:
    """The curve as SVG: a line for each run, the mean over seeds at every value."""
    values: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for record in table.records:
        if (value := record.value("test")) is not None:
            values[record.row, record.column].append(value)
    lines = []
    for style, row in enumerate(table.rows):
        points = [(float(x), mean(values[row, x])) for x in table.columns if values[row, x]]
        lines.append(Line(row, points, style, mark=True))
    title = f"test {table.metric} against {table.x_label}"
    return standalone(line_chart(title, lines, table.x_label, width=640, height=360))


def main(argv: Sequence[str]) -> int:
    """Run ``longlens curve``; returns the exit code."""
    args = parser().parse_args(argv)
    if args.seeds is not None and args.seeds < 1:
        raise UsageError(f"seeds must be 1 or more, got {args.seeds}")
    from longlens.files import write_output
    from longlens.lens.curves import Axis, context_axis, curve, read_options

    folders = list(dict.fromkeys(Path(folder) for folder in args.run))
    if len({folder.name for folder in folders}) < len(folders):
        raise ValueError("two of these runs have the same name, and so would their lines")
    runs = {
        folder.name: read_options(folder, args.runs or str(folder.parent), args.root)
        for folder in folders
    }
    if args.context:
        axes = {context_axis(r.mixer, numbers(args.context, "context")) for r in runs.values()}
        if len(axes) > 1:
            raise ValueError("these mixers bound their context in different ways; draw them apart")
        axis = axes.pop()
    elif args.examples:
        axis = Axis("training examples", "limit", numbers(args.examples, "examples"))
    elif args.length:
        axis = Axis("positions", "length", numbers(args.length, "length"))
    else:
        key, equals, text = args.vary.partition("=")
        if not key or not equals:
            raise UsageError(f"vary must be KEY=V1,V2,…, got {args.vary!r}")
        if key == "seed":
            raise UsageError("vary takes what a curve runs over; seeds are given as --seeds 3")
        values = [read_value(word) for word in text.split(",")]
        if not all(isinstance(value, int | float) for value in values):
            raise UsageError(f"vary needs numbers, as in {key}=1,2,4; got {text!r}")
        axis = Axis(key.rpartition(".")[2], key, tuple(values))
    short = axis.key.rpartition(".")[2]
    output = args.output or Path(f"results/curve_{folders[0].name}_{short}.json")
    plot = args.plot or output.with_suffix(".svg")
    command = command_line("curve", argv)

    def save(table: ResultTable) -> None:
        write_results(output, replace(table, name=output.stem, command=command))
        write_output(plot, draw(table).encode())

    table = curve(
        runs, axis, tuple(range(args.seeds)) if args.seeds else None, save,
        lambda line: print(line, flush=True), workers=args.workers,
    )  # fmt: skip
    print(f"{output}\n{plot}")
    return 1 if any(record.status == "failed" for record in table.records) else 0
