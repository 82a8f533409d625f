"""``longlens predict RUN INPUTS``: what a finished run says about inputs without labels."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longlens.cli.parser import Parser
from longlens.files import write_output
from longlens.report.tables import render
from longlens.tables import csv_text
from longlens.tasks.npy import open_npy

EPILOG = """examples:
  longlens predict runs/mine-las-0-5e1cd8ed new.npy               classes and their probabilities
  longlens predict runs/mine-las-0-5e1cd8ed new.csv -o new.json
  longlens predict runs/text-las-0-5e1cd8ed reviews.txt           a text in each line
  head -1 reviews.txt | longlens predict runs/text-las-0-5e1cd8ed - --json

INPUTS is a .npy file, (N, L) or (N, L, C), or a text file with an example in each line: the text
itself where the run's task is one on texts, else numbers with commas or spaces between them; no
header and no labels, as a table that was imported has them. No line may be empty, and no value
missing inside an example. Examples are counted from 0, and cut as in training.
Numbers are predicted for the last positions of an example, to which the task's targets belong."""


def read_examples(path: str) -> list[Any]:
    """The examples of a file, or of standard input: arrays, or lines of text.

    Raises:
        ValueError: it cannot be read, or holds no examples.
    """
    if path.endswith(".npy"):
        array = open_npy(Path(path), path)
        examples = list(array if array.ndim > 1 else array[None])
    else:
        examples = _read_lines(path)
    if not examples:
        raise ValueError(f"{path} holds no examples")
    return examples


def _read_lines(path: str) -> list[str]:
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        content = raw.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError:
        raise ValueError(f"{path} is neither text in UTF-8 nor a .npy file") from None
    # A text may hold what str.splitlines takes for an end, too: form feeds, U+2028 …
    lines = re.split(r"\r\n|\r|\n", content)
    while lines and not lines[-1].strip():  # at the end they shift no numbers
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip():  # left out, it would shift the numbers of the next ones
            raise ValueError(f"{path}: line {number} is empty; give an example in every line")
    return lines


def main(argv: Sequence[str]) -> int:
    """Run ``longlens predict``; returns the exit code."""
    parser = Parser("predict", "Ask a finished run about inputs without labels.", EPILOG)
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("inputs", help="a file of examples, or - for standard input")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_output(
        "write the predictions (.json or .csv) instead of printing them", ".json", ".csv"
    )
    parser.add_json()
    args = parser.parse_args(argv)
    from longlens.runs.run import find_device
    from longlens.runs.trained import predict_run

    examples = read_examples(args.inputs)
    answers = predict_run(args.run, examples, find_device(args.device).type)
    rows = [{"example": number, **answer} for number, answer in enumerate(answers)]
    if args.output is not None:
        as_csv = args.output.suffix == ".csv"
        write_output(args.output, (csv_text(rows) if as_csv else json.dumps(rows)).encode())
        print(f"{args.output}: {len(rows)} predictions")
    else:
        print(json.dumps(rows, indent=1) if args.json else render(rows))
    return 0
