"""A sweep: cells to records.

A run's folder is the only truth. It is done if its record says so (of the same options and data),
somebody works on it if its lock is taken, and otherwise it can be begun, or gone on with from its
last checkpoint. So a sweep may be cut off at any moment and started again, also twice at once, and
an engine needs to know nothing but how to call :func:`run_cell` somewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from longlens.files import BusyError, make_folder
from longlens.runs import train_run
from longlens.runs.run import run_folder
from longlens.training.faults import Stopped
from longlens.training.options import TrainOptions
from longlens.training.records import Record, now, read_record

if TYPE_CHECKING:
    from longlens.runs.cell import Cell

Values = dict[str, Any]
BUSY = "busy"  # the status of a cell that another process works on
PAUSE = 5.0  # seconds between two looks at cells that others work on


class Engine(Protocol):
    """Where cells run."""

    def run(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Values]]:
        """Call :func:`run_cell` for each cell; yield its place and its record as they come."""
        ...


def run_cell(cell: Mapping[str, Any]) -> Values:
    """Train as a cell says, or go on with what was begun; return the record.

    A run that fails does not raise: its record has the status "failed" and the error. One that
    another process works on has the status "busy", and no record.

    Raises:
        Stopped: a signal came; the state is saved.
    """
    options = TrainOptions.from_values({"progress": False, **cell})
    try:
        return train_run(options)
    except BusyError:
        return {"name": run_folder(options).name, "status": BUSY}
    except Stopped:
        raise
    except Exception as error:
        return _failed(options, error)
    finally:
        _forget_programs()


def _failed(options: TrainOptions, error: Exception) -> Values:
    """The record of a run that failed; what has no record yet gets one."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    folder = run_folder(options)
    values = {
        "name": folder.name, "status": "failed", "error": f"{kind}{error}", "ended": now(),
        "task": options.task, "mixer": options.mixer, "seed": options.seed,
        "options": options.to_json(),
    }  # fmt: skip
    try:
        if read_record(folder).get("status") is not None:  # its own, or one of other options
            return values
    except ValueError:
        pass
    try:
        record = Record(folder)
        record.update(**values)
        record.close()
    except (OSError, ValueError):  # a full disk, or a damaged record, which stays for people to see
        pass
    return values


def _forget_programs() -> None:
    """The next cell is another model: it needs the memory and its own compiled programs."""
    import torch

    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def sweep(
    cells: Iterable[Cell | TrainOptions],
    on: str | Engine = "here",
    *,
    workers: int = 1,
    devices: Sequence[str] = (),
    each: Callable[[int, Values], None] | None = None,
    pause: float = PAUSE,
) -> list[Values]:
    """Run what is not done yet, and return a record for every cell, in their order.

    The same call again goes on where this one was cut off. A cell that fails does not keep the
    others from running: its record says what happened, and the next sweep tries it again.

    Args:
        cells: options of ``longlens train``, as a mapping or as ``TrainOptions``.
        on: "here", "ray", "ray://HOST:PORT", "slurm", or an :class:`Engine`.
        workers: processes on this machine (for "slurm" and "ray": runs at a time).
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
    >>> [(record["mixer"], record["status"]) for record in records]
    [('las', 'finished'), ('softmax', 'finished')]
    """
    from longlens.runs.engines import find_engine

    engine = find_engine(on, workers, devices) if isinstance(on, str) else on
    checked = [as_cell(cell) for cell in cells]
    make_folders(checked)
    records: dict[int, Values] = {}
    left = list(range(len(checked)))
    while left:
        for place, record in engine.run([checked[index] for index in left]):
            if record["status"] != BUSY:
                records[left[place]] = record
                if each is not None:
                    each(left[place], record)
        left = [index for index in left if index not in records]
        if left:
            time.sleep(pause)
    return [records[index] for index in range(len(checked))]


def as_cell(cell: Cell | TrainOptions) -> Cell:
    """Check a cell; return its options as plain JSON values, ready to be sent anywhere."""
    if isinstance(cell, TrainOptions):
        return cell.to_json()
    options = TrainOptions.from_values(cell).to_json()
    plain: Cell = json.loads(json.dumps({name: options[name] for name in cell}))
    return plain


def make_folders(cells: Sequence[Cell]) -> None:
    """Make the folders that hold the cells' own; raise where two cells would share one."""
    seen: dict[Path, int] = {}
    for number, cell in enumerate(cells):
        folder = run_folder(TrainOptions.from_values(cell))
        if (other := seen.setdefault(folder, number)) != number:
            raise ValueError(f"cells {other} and {number} would both be {folder}")
    for parent in {folder.parent for folder in seen}:
        make_folder(parent)
