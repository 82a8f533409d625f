"""``longlens show RUN …``: what a run was and how it went, with its curves."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longlens.cli.terminal import complain
from longlens.files import write_output
from longlens.report.charts import draw_svg, draw_text, series
from longlens.report.read import Run, read_run
from longlens.report.tables import render, show


def parser() -> argparse.ArgumentParser:
    """The command line of ``longlens show``."""
    p = argparse.ArgumentParser(
        prog="longlens show",
        description="Show runs: options, results, events and curves.",
        epilog="example: longlens show runs/listops-las-0-5e1cd8ed runs/listops-s4d-0-91ad33c0 "
        "--curve validation.accuracy --svg curves.svg",
    )
    p.add_argument("run", nargs="+", help="folder of a run")
    p.add_argument(
        "--curve", nargs="+", default=None, metavar="SPLIT.METRIC",
        help="default: train.loss, validation.loss and the metric on validation",
    )  # fmt: skip
    p.add_argument("--x", default="step", choices=("step", "epoch", "seconds"))
    p.add_argument("--svg", default=None, metavar="FILE", help="draw all runs into a picture")
    p.add_argument("--width", type=int, default=None, help="characters of a drawn curve")
    return p


def describe(run: Run) -> str:
    """A run's facts as text: where it comes from, what it found."""
    values = run.values
    data, origin = values.get("data") or {}, values.get("provenance") or {}
    facts: dict[str, Any] = {
        "status": values.get("status"),
        "task": f"{values.get('task')}, data {str(data.get('identity'))[:16]}",
        "stands in for": data.get("stands_in_for"),
        "model": f"{values.get('mixer')}, {show(values.get('parameters'))} parameters",
        "protocol": f"{values.get('protocol')}, seed {values.get('seed')}",
        "steps": f"{show(values.get('steps'))}, selected {show(values.get('selected_step'))}",
        "time": f"{show(run.get('seconds'))} s, {show(run.get('tokens/s'))} tokens/s, "
        f"{show(run.get('flop/s'))} FLOP/s, share of peak {show(run.get('peak'))}",
        "memory": f"{show(run.get('memory'))} MiB",
        "device": values.get("device"),
        "code": f"{origin.get('commit')}, torch {origin.get('torch')}",
        "error": values.get("error"),
    }
    lines = [run.name, "=" * len(run.name)]
    lines += [f"{name:<14}{fact}" for name, fact in facts.items() if fact is not None]
    lines += [f"{'event':<14}{_event(event)}" for event in values.get("events") or []]
    for split, metrics in (values.get("metrics") or {}).items():
        plain = {k: v for k, v in (metrics or {}).items() if not isinstance(v, dict)}
        lines.append(f"{split:<14}" + ", ".join(f"{k} {show(v)}" for k, v in plain.items()))
    for name, table in ((values.get("metrics") or {}).get("test") or {}).items():
        if isinstance(table, dict):
            rows = [{name: key, **entry} for key, entry in table.items()]
            lines += ["", render(rows)]
    return "\n".join(lines)


def _event(event: dict[str, Any]) -> str:
    rest = {k: v for k, v in event.items() if k not in ("kind", "time")}
    return f"{event.get('time')} {event.get('kind')} " + ", ".join(
        f"{k} {show(v)}" for k, v in rest.items()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens show``; returns the exit code."""
    args = parser().parse_args(argv)
    runs, problems = [], []
    for folder in args.run:
        try:
            runs.append(read_run(folder))
        except ValueError as error:
            problems.append(str(error))
    problems += [run.problem for run in runs if run.problem is not None]
    if not runs:
        raise ValueError("; ".join(problems))
    wanted = args.curve or list(
        dict.fromkeys(["train.loss", "validation.loss", f"validation.{runs[0].metric}"])
    )
    if bad := [name for name in wanted if "." not in name]:
        raise ValueError(f"a curve is SPLIT.METRIC, as in validation.loss, got {bad[0]!r}")
    width = args.width or min(100, shutil.get_terminal_size((80, 24)).columns - 12)
    for run in runs:
        print(describe(run))
        for name in wanted:
            split, metric = name.split(".", 1)
            print()
            title = f"{split} {metric} by {args.x}"
            print(draw_text(series(run.curves, split, metric, title, args.x), max(10, width)))
        print()
    if args.svg:
        curves = []
        for run in runs:
            for name in wanted:
                split, metric = name.split(".", 1)
                curves.append(series(run.curves, split, metric, f"{run.name} {name}", args.x))
        drawn = [curve for curve in curves if curve.points]
        title = ", ".join(wanted)
        write_output(Path(args.svg), draw_svg(title, drawn, args.x).encode())
        print(f"picture: {args.svg}")
    for problem in problems:
        complain("longlens show", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
