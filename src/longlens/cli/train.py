"""``longlens train``: any mixer on any task under any protocol, with a record of how it went."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from longlens.cli.parser import Parser, UsageError, add_options, key_values
from longlens.config import closest
from longlens.runs.cell import read_values, with_options
from longlens.runs.record import Record
from longlens.tables import MISSING
from longlens.training.options import CHOICES, TrainOptions

EPILOG = """examples:
  longlens train --task listops --mixer las --dim 128 --depth 6 --epochs 40
  longlens train --task image --mixer s4d --norm batch --lr 0.004 --budget 8m
  longlens train --task far-order --set task_options.distance=64 --set mixer_options.window=9
  longlens train --config run.yaml --seed 1
  torchrun --nproc_per_node 4 -m longlens.cli.train --task listops --mixer las
A run that was cut off goes on when the same command is given again."""

# The first option of each group of the help.
GROUPS = {
    "task": "data", "mixer": "model", "pixels": "protocol", "steps": "how long (one of these)",
    "optimizer": "optimisation", "evaluate_every": "evaluation", "device": "arithmetic",
    "nonfinite": "faults, files, and what is shown",
}  # fmt: skip
NAMES = [field.name for field in fields(TrainOptions)]


@cache
def make_parser() -> Parser:
    """The command line of ``longlens train``, made once: a table parses hundreds of cells."""
    about = "Train a model, or go on with what was begun, and write its record."
    parser = Parser("train", about, EPILOG, settable=NAMES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="options, in YAML or JSON")
    parser.add_set("an option inside another (mixer_options.window=5, task_options.distance=64; "
                   "`longlens layers KEY --options`, `longlens data list NAME`), or any"
                   )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="the same as --progress false")
    group: Any = parser
    for name in NAMES:
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        if not name.endswith("_options"):
            add_options(group, TrainOptions, [name], CHOICES)
    return parser


def parse(words: Sequence[str]) -> TrainOptions:
    """Read options from words of a command line; ``--batch-size`` is ``--batch_size`` too."""
    given = vars(make_parser().parse_args(words))
    path, changes = given.pop("config"), key_values(given.pop("changes"))
    if given.pop("quiet"):
        given["progress"] = False
    try:
        config = {} if path is None else read_values(path)
        if not isinstance(config, Mapping):
            raise ValueError(f"{path} must hold options by their names, as in dim: 64")
        known = TrainOptions.from_values(config)
    except ValueError as error:
        in_file = f"{path}: " if path is not None and str(path) not in str(error) else ""
        raise ValueError(f"{in_file}{error}") from None
    for name in changes:
        values = vars(known) | given
        if name.partition(".")[0] not in NAMES and (
            full := inside(name, values["task"], values["mixer"])
        ):
            raise UsageError(f"{name!r} is no option of train; did you mean --set {full}=…?")
    return TrainOptions.from_values(with_options({**config, **given}, changes))


def inside(name: str, task: str, mixer: str | None = None) -> str | None:
    """The option of the task or the mixer that somebody may have meant by a name.

    >>> inside("distnce", "far-order"), inside("window", "listops", "las"), inside("x", "listops")
    ('task_options.distance', 'mixer_options.window', None)
    """
    from longlens.layers.registry import MIXERS, options_of
    from longlens.tasks.registry import TASKS

    found: dict[str, str] = dict(zip(NAMES, NAMES, strict=True))
    if task in TASKS:
        options = fields(TASKS[task].options)
        found |= {f.name: f"task_options.{f.name}" for f in options if f.name not in found}
    if mixer in MIXERS:
        found |= {k: f"mixer_options.{k}" for k in options_of(mixer) if k not in found}
    near = closest(name, found)
    return found[near] if near else None


def summary(record: Record) -> str:
    """A few lines about a finished run."""

    def shown(value: float | None) -> str:
        return MISSING if value is None else f"{value:.4f}"  # None: it was not finite

    lines = [
        f"{split:<12}{record.metric_name} {shown(record.value(split))}   "
        f"loss {shown(record.get(f'{split}.loss'))}"
        for split in record.metrics
    ]
    rate = record.speed["tokens_per_second"]
    speed = "" if rate is None else f", {rate:,.0f} tokens/s"
    lines.append(
        f"selected step {record.selected_step} of {record.steps}, "
        f"{record.parameters:,} parameters, {record.train_seconds:.0f} s of training{speed}"
    )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run ``longlens train``; returns the exit code."""
    options = parse(argv)
    from longlens.runs import train_run
    from longlens.runs.run import run_folder
    from longlens.runs.sweeps import as_options

    options = as_options(options)
    record = train_run(options)
    if os.environ.get("RANK", "0") == "0":
        print(f"{summary(record)}\n{run_folder(options)}")
    return 0


if __name__ == "__main__":  # torchrun starts this module itself
    from longlens.cli.main import main as run

    sys.exit(run(["train", *sys.argv[1:]]))
