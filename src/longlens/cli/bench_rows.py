"""What the commands of `longlens bench` share: device, dtype, shapes, and what becomes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from longlens.files import write_output
from longlens.report.bench import bench_table
from longlens.report.results import Bench
from longlens.tables import csv_text
from longlens.training.provenance import provenance

Row = dict[str, Any]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that an option means: "auto" is bfloat16 on cuda and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype must be auto or one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def read_shapes(text: str, names: str, optional: str = "") -> list[list[int]]:
    """Shapes with spaces between, each of as many numbers as there are names, or one more.

    >>> read_shapes("1,8,512,32 2,8,64,16,8", "B,H,L,D", "Dv")
    [[1, 8, 512, 32], [2, 8, 64, 16, 8]]
    """
    count = len(names.split(","))
    allowed, also = (count, count + bool(optional)), f" or {names},{optional}" * bool(optional)
    shapes = []
    for word in text.split():
        numbers = [int(n) for n in word.split(",")] if word.replace(",", "").isdigit() else []
        if len(numbers) not in allowed or min(numbers) < 1:
            raise ValueError(f"a shape must be positive integers {names}{also}, got {word!r}")
        shapes.append(numbers)
    return shapes


class Rows:
    """The rows of a benchmark: printed when they come, and kept in a CSV file.

    The file is written anew each time, so that an interrupted run keeps its rows; there each row
    has hardware, versions, commit and date.
    """

    def __init__(self, device: torch.device, output: Path | None) -> None:
        self.output = output
        self.rows: list[Row] = []
        self.origin = provenance(device) | {"date": datetime.now(UTC).date().isoformat()}
        print(", ".join([self.origin["hardware"], f"torch {self.origin['torch']}",
                         f"commit {self.origin['commit']}"]))  # fmt: skip

    def add(self, rows: Sequence[Row]) -> None:
        """Print rows as a table; write all that there are by now."""
        written = [
            {key: f"{v:.6g}" if isinstance(v, float) else str(v) for key, v in row.items()}
            for row in rows
        ]
        print(f"\n{bench_table(Bench('', tuple(written)), everything=True).text()}", flush=True)
        self.rows += [row | self.origin for row in written]
        if self.output is not None:
            write_output(self.output, csv_text(self.rows).encode())


def dtype_name(dtype: torch.dtype) -> str:
    """The name that rows give to a dtype.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
