"""``longlens show RUN …``: what a run was and how it went, with its curves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

from longlens.charts import Line, line_chart, standalone, text_chart
from longlens.cli.parser import Parser
from longlens.cli.terminal import complain
from longlens.files import write_output
from longlens.report.tables import render, show
from longlens.runs.folders import curve_lines, find_run
from longlens.runs.record import Record


def parser() -> Parser:
    """The command line of ``longlens show``."""
    p = Parser("show", "Show runs: options, results, events and curves.", "example: longlens show "
               "runs/listops-las-0-5e1cd8ed runs/listops-s4d-0-91ad33c0\n"
               "         --curve validation.accuracy -o curves.svg")  # fmt: skip
    p.add_argument("run", nargs="+", help="folder of a run")
    p.add_argument(
        "--curve", nargs="+", default=None, metavar="SPLIT.METRIC",
        help="default: train.loss, validation.loss and the metric on validation",
    )  # fmt: skip
    p.add_argument("--x", default="step", choices=("step", "epoch", "seconds"))
    p.add_output("draw all runs into a picture (.svg)", ".svg")
    p.add_json()
    p.add_argument("--width", type=int, default=None, help="characters of a drawn curve")
    return p


def describe(run: Record) -> str:
    """A run's facts as text: where it comes from, what it found."""
    facts: dict[str, Any] = {
        "status": run.get("status"),
        "task": f"{run.task}, data {str(run.data.get('identity'))[:16]}",
        "stands in for": run.data.get("stands_in_for"),
        "model": f"{run.mixer}, {show(run.parameters)} parameters",
        "protocol": f"{run.protocol}, seed {run.seed}",
        "steps": f"{show(run.steps)}, selected {show(run.selected_step)}",
        "time": f"{show(run.train_seconds)} s of training, {show(run.wall_seconds)} s in all",
        "speed": f"{show(run.get('tokens/s'))} tokens/s, {show(run.get('flop/s'))} FLOP/s, "
        f"share of peak {show(run.get('peak'))}",
        "memory": f"{show(run.peak_memory_mib)} MiB",
        "device": run.device,
        "code": f"{run.get('commit')}, torch {run.get('torch')}",
        "error": run.error,
    }
    lines = [run.name, "=" * len(run.name)]
    lines += [f"{name:<14}{fact}" for name, fact in facts.items() if fact is not None]
    lines += [f"{'event':<14}{_event(event)}" for event in run.events]
    for split, metrics in run.metrics.items():
        plain = {k: v for k, v in (metrics or {}).items() if not isinstance(v, dict)}
        lines.append(f"{split:<14}" + ", ".join(f"{k} {show(v)}" for k, v in plain.items()))
    for name, table in run.groups().items():
        lines += ["", render([{name: key, **entry} for key, entry in table.items()])]
    return "\n".join(lines)


def _event(event: dict[str, Any]) -> str:
    rest = {k: v for k, v in event.items() if k not in ("kind", "time")}
    return f"{event.get('time')} {event.get('kind')} " + ", ".join(
        f"{k} {show(v)}" for k, v in rest.items()
    )


def curve(
    lines: Sequence[dict[str, Any]], wanted: str, x: str, name: str = "", style: int = 0
) -> Line:
    """One metric of one split of a run's curves over ``x``; what is missing is left out.

    >>> curve([{"step": 1, "split": "train", "loss": 2.0}], "train.loss", "step", "a").points
    [(1.0, 2.0)]
    """
    split, dot, metric = wanted.partition(".")
    if not dot:
        raise ValueError(f"a curve is SPLIT.METRIC, as in validation.loss, got {wanted!r}")
    points = [
        (float(line[x]), float(line[metric]))
        for line in lines
        if line.get("split") == split
        and isinstance(line.get(metric), int | float)
        and isinstance(line.get(x), int | float)
    ]
    return Line(name, points, style)


def main(argv: Sequence[str]) -> int:
    """Run ``longlens show``; returns the exit code."""
    args = parser().parse_args(argv)
    runs, problems = [], []
    for folder in args.run:
        try:
            runs.append(find_run(folder))
        except ValueError as error:
            problems.append(str(error))
    lines = [curve_lines(run, problems) for run in runs]
    if not runs:
        raise ValueError("; ".join(problems))
    wanted = args.curve or list(
        dict.fromkeys(["train.loss", "validation.loss", f"validation.{runs[0].metric_name}"])
    )
    for name in wanted:
        curve([], name, args.x)  # raises for a wrong one
    width = args.width or min(100, shutil.get_terminal_size((80, 24)).columns - 12)
    if args.json:
        print(json.dumps([run.to_json() for run in runs], indent=1))
    for run, curves in [] if args.json else zip(runs, lines, strict=True):
        print(describe(run))
        for name in wanted:
            title = f"{name.replace('.', ' ', 1)} by {args.x}"
            print(f"\n{text_chart(curve(curves, name, args.x, title), max(10, width))}")
        print()
    if args.output:
        named = [
            (f"{run.name} {name}", name, curves)
            for run, curves in zip(runs, lines, strict=True)
            for name in wanted
        ]
        drawn = [
            curve(curves, name, args.x, title, style)
            for style, (title, name, curves) in enumerate(named)
        ]
        picture = line_chart(", ".join(wanted), [line for line in drawn if line.points], args.x,
                             width=640, height=360)  # fmt: skip
        write_output(args.output, standalone(picture).encode())
        print(f"picture: {args.output}")
    for problem in problems:
        complain("longlens show", problem)
    return 1 if problems else 0
