"""``longlens train``: any mixer on any task under any protocol, with a record of how it went."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from longlens.cli.terminal import INTERRUPTED, complain
from longlens.runs.cell import read_values
from longlens.runs.record import Record
from longlens.training.options import TrainOptions

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

EPILOG = """examples:
  longlens train --task listops --mixer las --dim 128 --depth 6 --epochs 40
  longlens train --task image --mixer s4d --norm batch --lr 0.004 --budget 8m
  longlens train --config run.yaml --seed 1
  torchrun --nproc_per_node 4 -m longlens.cli.train --task listops --mixer las
A run that was cut off goes on when the same command is given again."""


def field_docs(kind: type) -> dict[str, str]:
    """What stands below each field of a dataclass, inherited ones included, by name.

    >>> field_docs(TrainOptions)["seed"][:28]
    'Decides initial weights, ord'
    """
    docs = {}
    for part in filter(is_dataclass, kind.__mro__):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
                docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


@cache
def make_parser() -> ArgumentParser:
    """The command line of ``longlens train``, made once: a table parses hundreds of cells."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="longlens train",
        description="Train a model, or go on with what was begun, and write its record.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="a file of options (YAML or JSON)")
    docs, types = field_docs(TrainOptions), get_type_hints(TrainOptions)
    for field in fields(TrainOptions):
        default = {} if field.name.endswith("_options") else field.default
        shown = "" if default is None else f" (default: {default})"
        what = docs[field.name].replace("%", "%%") + shown
        parser.add_argument(f"--{field.name}", type=types[field.name], default=default, help=what)
    return parser


def parse(argv: Sequence[str]) -> TrainOptions:
    """Read options from words of a command line; ``--batch-size`` is ``--batch_size`` too."""
    words = [_with_underscores(word) for word in argv]
    for place, word in enumerate(words):
        if word.startswith("--config"):
            name = word.partition("=")[2] or "".join(words[place + 1 : place + 2])
            if Path(name).is_file():
                read_values(Path(name))  # the parser itself lets dates and numbers as keys through
    values: dict[str, Any] = make_parser().parse_args(words).as_dict()
    values.pop("config", None)
    return TrainOptions(**values)


def _with_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    return "--" + name[2:].replace("-", "_") + equals + value


def summary(record: Record) -> str:
    """A few lines about a finished run."""
    lines = [
        f"{split:<12}{record.metric_name} {record.value(split):.4f}   "
        f"loss {record.get(f'{split}.loss'):.4f}"
        for split in record.metrics
    ]
    rate = record.speed["tokens_per_second"]
    speed = "" if rate is None else f", {rate:,.0f} tokens/s"
    lines.append(
        f"selected step {record.selected_step} of {record.steps}, "
        f"{record.parameters:,} parameters, {record.train_seconds:.0f} s of training{speed}"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens train``; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    from jsonargparse import ArgumentError

    try:
        options = parse(words)
    except (ArgumentError, ValueError) as error:
        complain("longlens train", error)
        return 2 if isinstance(error, ArgumentError) else 1
    from longlens.runs import train_run
    from longlens.runs.run import run_folder
    from longlens.tasks.own import bring_ucr
    from longlens.training.faults import Stopped

    try:
        if options.task.startswith("ucr:"):
            options = replace(options, task=bring_ucr(options.task, options.root))
        record = train_run(options)
    except Stopped as stop:
        print(f"longlens train: {stop}", file=sys.stderr)
        return 128 + stop.signum
    except KeyboardInterrupt:  # torchrun starts this module itself
        complain("longlens train", INTERRUPTED)
        return 130
    except (ValueError, OSError) as error:
        complain("longlens train", error)
        return 1

    if os.environ.get("RANK", "0") == "0":
        print(f"{summary(record)}\n{run_folder(options)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
