"""Workers: each takes cells from a queue, one after another, until none is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longlens.experiments.cells import Cell
from longlens.experiments.queue import STUDY, Queue, Tally
from longlens.files import BusyError

Run = Callable[[Cell], dict[str, Any]]
"""Runs a cell and returns its record."""


class Stop(Exception):  # noqa: N818, not an error: somebody asked for it
    """Raised by a run whose worker was told to stop; the cell goes back to the queue."""


def train_cell(cell: Cell) -> dict[str, Any]:
    """Train as a cell says, or go on with what another worker began; return the record."""
    import torch

    from longlens.assemble import train_run
    from longlens.training.faults import Stopped
    from longlens.training.options import TrainOptions

    try:
        return train_run(TrainOptions(**{"progress": False, **cell}))
    except Stopped as stop:
        raise Stop(str(stop)) from None
    finally:  # the next cell is another model: it needs the memory and its own compiled programs
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def validation(record: dict[str, Any]) -> float:
    """A record's validation metric."""
    value = record["metrics"]["validation"][record["metric"]["name"]]
    if value is None:
        raise ValueError("the validation metric is not a finite number")
    return float(value)


def selection_value(record: dict[str, Any]) -> float:
    """A record's validation metric, turned so that higher is better.

    >>> selection_value({"metric": {"name": "loss", "higher_is_better": False},
    ...                  "metrics": {"validation": {"loss": 0.5}}})
    -0.5
    """
    value = validation(record)
    return value if record["metric"]["higher_is_better"] else -value


def work(queue: Queue, run: Run = train_cell, say: Callable[[str], None] = print) -> Tally:
    """Work on ``queue`` until every cell is finished or has failed; return the tally.

    A cell that raises an error has failed: the same options would fail again. A worker that is
    killed is noticed by the others (or by the next one that is started).

    Raises:
        Stop: this worker was told to stop; its cell is back in the queue.

    """
    while True:
        for key in queue.release_dead():
            say(f"{key}: its worker died, back in the queue")
        claim = queue.claim()
        if claim is None:
            tally = queue.tally()
            if not tally.open:
                return tally
            time.sleep(queue.beat)
            continue
        with queue.heartbeat(claim):
            try:
                record = _run_when_free(run, claim.cell, queue.beat)
                value = selection_value(record)
            except (Stop, KeyboardInterrupt):
                queue.give_back(claim)
                raise
            except Exception as error:
                queue.fail(claim, f"{type(error).__name__}: {error}")
                say(f"{_title(claim.cell)}: failed: {error}")
                continue
        found = validation(record)
        queue.finish(claim, value, run=record["name"], metric=record["metric"]["name"], found=found)
        say(f"{record['name']}: {found:.4f}; {queue.tally()}")


def _run_when_free(run: Run, cell: Cell, pause: float) -> dict[str, Any]:
    """Run a cell; wait while another process holds the lock of its record."""
    while True:
        try:
            return run(cell)
        except BusyError:
            time.sleep(pause)


def _title(cell: Cell) -> str:
    return " ".join(f"{name}={value}" for name, value in cell.items() if name != "runs")


def run_workers(
    storage: str | Path,
    workers: int,
    *,
    study: str = STUDY,
    devices: Sequence[str] = (),
    command: Sequence[str] | None = None,
) -> int:
    """Start ``workers`` processes on a storage and wait for them.

    Args:
        storage: as for :class:`Queue`.
        workers: how many.
        study: the queue's name in the storage.
        devices: worker k sees only CUDA device ``devices[k % len(devices)]``; empty: all see all.
        command: what a worker process runs; default ``longlens worker``.

    Returns:
        0 if every worker ended well, else the exit code of one that did not. A worker that is
        killed is not replaced: the others take over its cell.

    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    words = command or (
        sys.executable, "-m", "longlens.cli.main", "worker", str(storage), "--study", study
    )  # fmt: skip
    children = []
    for number in range(workers):
        environment = dict(os.environ)
        threads = max(1, (os.cpu_count() or 1) // workers)
        environment.setdefault("OMP_NUM_THREADS", str(threads))  # else each would take all cores
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        children.append(subprocess.Popen(list(words), env=environment))
    codes = []
    for child in children:
        while True:
            try:
                codes.append(child.wait())
                break
            except KeyboardInterrupt:  # the children got it too: they save their state and end
                continue
    return next((code for code in codes if code), 0)
