"""`longlens demo`: softmax and LaS attention on a small generated task, with two controls."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.cli import report
from longlens.cli.parser import Parser
from longlens.runs import train_run
from longlens.runs.record import Record, read_record
from longlens.runs.run import run_folder
from longlens.tables import Table
from longlens.tasks import import_arrays
from longlens.training.options import TrainOptions

PERIODS = (6.0, 8.0, 11.0, 15.0)
NOISE = 0.7
TASK = "demo-waves"
BATCH = 32
# LaS against softmax, and what solves this task as well: positions, and a short convolution.
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"mixer": "softmax", "mixer_options": {"num_heads": 4}},
    "LaS": {"mixer": "las", "mixer_options": {"num_heads": 4}},
    "softmax, rotary": {
        "mixer": "softmax", "mixer_options": {"num_heads": 4}, "positions": "rotary"
    },
    "convolution of 9": {"mixer": "conv", "mixer_options": {"kernel_size": 9}},
}  # fmt: skip


def waves(
    count: int, length: int, seed: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Noisy sines of random phase, (count, length, 1), and which of four periods each has.

    Every period gives the same set of values, so the class lies in their order alone: in how
    neighbours go together, which is what a local and smooth bias looks at.

        x    0.1  0.9  0.4 -0.6 -1.2  0.3 …      y  0 (period 6)
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(len(PERIODS), size=count)
    angle = np.arange(length) / np.array(PERIODS)[y, None] + rng.random((count, 1))
    x = np.sin(2 * np.pi * angle) + NOISE * rng.standard_normal((count, length))
    return x[..., None].astype(np.float32), y


def table(records: dict[str, Record]) -> str:
    """The runs side by side, as aligned text."""
    rows = [
        {
            "mixer": name,
            "test accuracy": f"{100 * (record.value('test') or 0):.1f} %",
            "time": f"{record.train_seconds:.1f} s",
            "tokens/s": record.speed["tokens_per_second"],
            "peak memory": f"{record.peak_memory_mib:.0f} MiB",
            "parameters": record.parameters,
        }
        for name, record in records.items()
    ]
    return Table.of(rows).text()


def options(name: str, steps: int, seed: int, folder: Path) -> TrainOptions:
    """What is trained: two blocks of width 64."""
    return TrainOptions(
        task=TASK,
        **MODELS[name],
        dim=64,
        depth=2,
        lr=2e-3,
        batch_size=BATCH,
        evaluate_batch=100,
        steps=steps,
        warmup=0.3,
        log_every=max(1, steps // 5),
        evaluate_every=max(1, steps // 2),
        seed=seed,
        device="cpu",
        runs=str(folder),
        name=name.replace(",", "").replace(" ", "-").lower(),
        root=str(folder / "data"),
    )


def _is_demo(folder: Path) -> bool:
    """Whether a folder holds a run of the demo, and not one of the user's."""
    try:
        return read_record(folder).task == TASK
    except ValueError:
        return False


def main(argv: Sequence[str]) -> int:
    """Entry of `longlens demo`."""
    about = "Train softmax and LaS attention, and two controls, to tell the periods of noisy waves."
    parser = Parser("demo", about)
    parser.add_argument("--steps", type=int, default=160, help="training steps (default: 160)")
    parser.add_argument(
        "--length", type=int, default=256, help="tokens per sequence (default: 256)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--runs", default="runs/demo", help="folder of records (default: runs/demo)"
    )
    given = parser.parse_args(list(argv))
    for name in ("steps", "length"):
        if getattr(given, name) < 2:
            raise ValueError(f"{name} must be at least 2, got {getattr(given, name)}")
    print(f"Noisy waves of {given.length} samples, four periods; chance is 25 %.", flush=True)
    folder = Path(given.runs)
    count = given.steps * BATCH + 1500  # every training sequence is seen once
    import_arrays(
        TASK,
        *waves(count, given.length, given.seed),
        validation=500 / count,
        test=1000 / count,
        root=folder / "data",
        replace=True,
    )
    records = {}
    for name in MODELS:
        run = options(name, given.steps, given.seed, folder)
        if _is_demo(run_folder(run)):  # an earlier one: trained anew every time
            shutil.rmtree(run_folder(run))
        print(f"\n{name}", flush=True)
        records[name] = train_run(run)
    print("\n" + table(records))
    print(
        "\nThe first two have no positional encoding and the same parameters: LaS adds a decay of"
        "\nthe scores and an average over five positions, nothing that is learned. The others show"
        "\nthat this task asks for nothing but neighbours: rotary positions or a short convolution"
        "\ndo as well, so it says what a local and smooth bias is, not that one needs LaS for it."
    )
    for record in records.values():
        print(f"record: {folder / record.name}{os.sep}")
    page = folder / "report.html"
    report.main([str(folder), "--title", "longlens demo", "-o", str(page)])
    return 0
