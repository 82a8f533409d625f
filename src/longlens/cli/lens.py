"""``longlens lens RUN|MIXER …``: look inside layers, by numbers and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from longlens.cli.parser import Parser
from longlens.files import write_output

if TYPE_CHECKING:
    from longlens.lens.look import View
    from longlens.lens.subjects import Subject

EPILOG = """examples:
  longlens lens s4d mega sgconv las
  longlens lens runs/listops-las-0-5e1cd8ed runs/listops-softmax-0-77aa31c2
  longlens lens las:bound=0.05,window=9 softmax --folder wide/"""


def parser() -> Parser:
    """The command line of ``longlens lens``."""
    p = Parser(
        "lens",
        "Look inside layers: convolution kernels, attention by distance, effective receptive "
        "fields, how fast they decay and how smooth they are. Writes lens.json, tables and "
        "pictures.",
        EPILOG,
    )
    p.add_argument("subjects", nargs="+", metavar="RUN|MIXER",
                   help="the folder of a finished run, or a key of `longlens layers`, with options "
                   "as in las:bound=0.05,window=9; 'all' stands for every key")  # fmt: skip
    p.add_argument("--folder", type=Path, default=Path("lens"),
                   help="where tables and pictures go (default: lens)")  # fmt: skip
    p.add_output("also write the measurements here: results/lens_NAME.json")
    p.add_argument("--title", help="of the measurements (the subjects' names)")
    p.add_argument("--length", type=int, help="positions (default: 512, for a run at most its own)")
    p.add_argument("--dim", type=int, default=64, help="width of a fresh mixer (default: 64)")
    p.add_argument(
        "--batch_size", type=int, default=4, help="sequences to average over (default: 4)"
    )
    p.add_argument("--seed", type=int, default=0, help="of fresh weights and random inputs")
    p.add_argument("--inputs", default="task", choices=("task", "random"),
                   help="a run sees examples of its task, or random ones (default: task)"
                   )  # fmt: skip
    p.add_argument("--no-before", dest="before", action="store_false",
                   help="leave out the run's model as it was before training")  # fmt: skip
    p.add_argument("--no-pictures", dest="pictures", action="store_false",
                   help="numbers only: needs neither Pillow nor resvg_py")  # fmt: skip
    return p


def write_pictures(looked: Sequence[tuple[Subject, list[View]]], folder: Path) -> list[str]:
    """Draw everything that there is to draw; returns the names without endings."""
    from longlens.charts import standalone, table_chart
    from longlens.charts.raster import as_png
    from longlens.lens.pictures import aspect_table, draw_all

    aspects = aspect_table(looked)
    write_output(folder / "aspects.md", (aspects.markdown() + "\n").encode())
    drawn = draw_all(looked) | {"aspects": table_chart("Design aspects", aspects)}
    for name, picture in drawn.items():
        whole = standalone(picture)
        write_output(folder / f"{name}.svg", whole.encode())
        write_output(folder / f"{name}.png", as_png(whole))
    return list(drawn)


def main(argv: Sequence[str]) -> int:
    """Run ``longlens lens``; returns the exit code."""
    args = parser().parse_args(argv)
    from longlens.charts.raster import check_pictures
    from longlens.layers import MIXERS
    from longlens.lens.look import lens_json, look
    from longlens.lens.subjects import find_subjects
    from longlens.report.measurements import LENS_NOTES, lens_table

    if args.pictures:
        check_pictures()  # before minutes of work, not after
    words = [w for word in args.subjects for w in (MIXERS if word == "all" else [word])]
    subjects = [
        subject
        for word in words
        for subject in find_subjects(
            word,
            length=args.length,
            dim=args.dim,
            batch=args.batch_size,
            seed=args.seed,
            inputs=args.inputs,
            before=args.before,
        )
    ]
    looked = [(subject, look(subject)) for subject in subjects]
    values = lens_json(args.title or ", ".join(subject.name for subject in subjects), looked)
    text = json.dumps(values, allow_nan=False) + "\n"
    write_output(args.folder / "lens.json", text.encode())
    if args.output is not None:
        write_output(args.output, text.encode())
    notes = [fill(note, 100) for note in LENS_NOTES]
    print(lens_table("", values).text(), "", *notes, "", sep="\n")
    print(f"{args.folder}/lens.json" + (f", {args.output}" if args.output else ""))
    if args.pictures:
        names = write_pictures(looked, args.folder)
        print(f"{args.folder}/{{{','.join(names)}}}.{{png,svg}}, {args.folder}/aspects.md")
    return 0
