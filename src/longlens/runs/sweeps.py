"""A sweep: cells to records.

A run's folder is the only truth. It is done if its record says so (of the same options and data),
somebody works on it if its lock is taken, and otherwise it can be begun, or gone on with from its
last checkpoint. So a sweep may be cut off at any moment and started again, also twice at once, and
an engine needs to know nothing but how to call :func:`run_cell` somewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from longlens.files import BusyError, locked, make_folder
from longlens.runs.finished import finished_record
from longlens.runs.record import BUSY, LOCK, Record, RecordWriter
from longlens.runs.run import check_model, run_folder, train_run
from longlens.tasks.own import bring_ucr
from longlens.training.faults import Stopped
from longlens.training.log import CHECKPOINTS
from longlens.training.options import TrainOptions, difference, recorded_identity
from longlens.training.process import forget_programs

if TYPE_CHECKING:
    from longlens.runs.cell import Cell

PAUSE = 5.0  # seconds between two looks at cells that others work on


class Engine(Protocol):
    """Where cells run."""

    def run(self, cells: Sequence[TrainOptions]) -> Iterator[tuple[int, Record]]:
        """Call :func:`run_cell` for each cell; yield its place and its record as they come."""
        ...


def run_cell(options: TrainOptions) -> Record:
    """Train as a cell says, or go on with what was begun; return the record.

    A run that fails does not raise: its record has the status "failed" and the error. One that
    another process works on has the status "busy", and no record.

    Raises:
        Stopped: a signal came; the state is saved.
    """
    try:
        return train_run(options)
    except BusyError:
        return Record(name=run_folder(options).name, status=BUSY)
    except Stopped:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return failed_record(options, f"{kind}{error}")
    finally:
        forget_programs()


def failed_record(options: TrainOptions, error: str) -> Record:
    """The record of a run that failed, also in its folder unless that belongs to another run."""
    folder = run_folder(options)
    failed = Record(
        name=folder.name, status="failed", error=error, task=options.task, mixer=options.mixer,
        seed=options.seed, options=options.to_json(),
    )  # fmt: skip
    try:
        with locked(folder / LOCK, str(folder)):
            writer = RecordWriter(folder)
            try:
                if _may_fail(writer.record, options):
                    writer.end(**failed.to_json())
                    return writer.record
            finally:
                writer.close()
    except (OSError, ValueError):  # a full disk; a damaged record, which stays for people to see;
        pass  # or somebody else works on it by now
    return failed


def _may_fail(there: Record, options: TrainOptions) -> bool:
    """Whether what a folder holds is nothing yet, or an unfinished run of the same options."""
    if there.is_finished:
        return False
    then = there.options
    return not then or not difference(options.identity(), recorded_identity(then))


def sweep(
    cells: Iterable[Cell | TrainOptions],
    on: str | Engine = "here",
    *,
    workers: int = 1,
    devices: Sequence[str] = (),
    each: Callable[[int, Record], None] | None = None,
    pause: float = PAUSE,
) -> list[Record]:
    """Run what is not done yet, and return a record for every cell, in their order.

    The same call again goes on where this one was cut off. A cell that fails does not keep the
    others from running: its record says what happened, and the next sweep tries it again.

    Args:
        cells: options of ``longlens train``, as a mapping or as ``TrainOptions``.
        on: "here", "ray", "ray://HOST:PORT", "slurm", or an :class:`Engine`.
        workers: processes on this machine (for "slurm": jobs at a time; Ray takes as many runs as
            its cluster has room for).
        devices: CUDA devices that workers on this machine take in turn.
        each: called with place and record of every cell when it is done.
        pause: seconds before looking again at cells that other processes work on.

    Raises:
        ValueError: a cell is wrong (before anything runs), or two have the same folder.
        Stopped: a signal came; what was begun is saved.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = dict(length=16, train=8, validation=4, test=4)
    >>> records = sweep(
    ...     dict(task="cumsum", task_options=data, mixer=mixer, dim=8, depth=1, steps=1,
    ...          batch_size=4, device="cpu", runs=folder, root=folder)
    ...     for mixer in ("las", "softmax"))
    >>> [(record.mixer, record.status) for record in records]
    [('las', 'finished'), ('softmax', 'finished')]
    """
    from longlens.runs.engines import find_engine

    engine = find_engine(on, workers, devices) if isinstance(on, str) else on
    checked = [as_options(cell) for cell in cells]
    _make_folders(checked)
    records: dict[int, Record] = {}

    def keep(place: int, record: Record) -> None:
        records[place] = record
        if each is not None:
            each(place, record)

    for place, options in enumerate(checked):  # these need no process, and no job of a cluster
        if (done := _done(options)) is not None:
            keep(place, done)
    waited = False
    while left := [place for place in range(len(checked)) if place not in records]:
        free = [place for place in left if not _is_busy(checked[place])]
        for number, record in engine.run([checked[place] for place in free]) if free else ():
            if record.status != BUSY:
                keep(free[number], record)
        if len(records) < len(checked):
            if not (free or waited):
                print(f"waiting for {len(left)} runs of other processes", file=sys.stderr)
                waited = True
            time.sleep(pause)
    return [records[place] for place in range(len(checked))]


def _done(options: TrainOptions) -> Record | None:
    """The record of a cell that is finished and needs nothing more."""
    folder = run_folder(options)
    if options.resume == "restart" or (folder / CHECKPOINTS).exists():  # a kill left these
        return None
    try:
        return finished_record(folder, options)
    except (OSError, ValueError):  # of other options or data: who runs it says so
        return None


def _is_busy(options: TrainOptions) -> bool:
    """Whether another process works on a cell."""
    folder = run_folder(options)
    if not (folder / LOCK).exists():
        return False
    try:
        with locked(folder / LOCK, str(folder)):
            return False
    except BusyError:
        return True
    except (OSError, ValueError):  # who runs it says so
        return False


def as_options(cell: Cell | TrainOptions) -> TrainOptions:
    """A cell's options, checked; those of a mapping show no progress unless it says so.

    A set of the UCR archive, ``ucr:NAME``, is imported and becomes the task of its name.

    Raises:
        ValueError: an option is wrong, or the model cannot be built.
    """
    if not isinstance(cell, TrainOptions):
        cell = TrainOptions.from_values({"progress": False, **cell})
    if cell.task.startswith("ucr:"):
        cell = replace(cell, task=bring_ucr(cell.task, cell.root))
    check_model(cell)  # or it would fail after the cells before it have run
    return cell


def _make_folders(cells: Sequence[TrainOptions]) -> None:
    """Make the folders that hold the cells' own; raise where two cells would share one."""
    seen: dict[Path, int] = {}
    for number, folder in enumerate(map(run_folder, cells)):
        if (other := seen.setdefault(folder, number)) != number:
            raise ValueError(f"cells {other} and {number} would both be {folder}")
    for parent in {folder.parent for folder in seen}:
        make_folder(parent)
