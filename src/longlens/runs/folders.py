"""The runs in a folder, and whether they are an experiment's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from longlens.files import is_locked
from longlens.runs.document import read_document
from longlens.runs.record import CUT_OFF, DAMAGED, LOCK, RECORD, Record, read_record
from longlens.training.log import read_curves

EXPERIMENT = "experiment.json"


def find_runs(root: str | Path, everything: bool = False) -> list[Record]:
    """Read all records under ``root``, ordered by name.

    A record that cannot be read is listed with the status ``damaged``, one that says running while
    nobody works on it as ``cut off``. Runs that were set aside (``NAME.old-1``) are left out unless
    ``everything``.

    Raises:
        ValueError: there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is no folder of runs")
    runs = []
    for folder in sorted(path.parent for path in root.rglob(RECORD)):
        if not everything and any(".old-" in part for part in folder.relative_to(root).parts):
            continue
        run = _run_of(folder)  # a stage belongs to the run above it
        name = run.name if run == folder else f"{run.name}/{folder.name}"
        try:
            record = find_run(folder)
        except ValueError as error:
            quick = _is_quick(run.parent)
            record = Record(status=DAMAGED, error=str(error), folder=folder, quick=quick)
        runs.append(replace(record, name=name))
    return runs


def find_run(folder: str | Path) -> Record:
    """Read the record of one run, or of its pretraining, with the status that it has now.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    record, run = read_record(folder), _run_of(Path(folder).resolve())
    if record.status == "running" and not is_locked(run / LOCK):
        record = replace(record, status=CUT_OFF)
    return replace(record, quick=_is_quick(run.parent))


def _run_of(folder: Path) -> Path:
    """The folder of the run that a record is of: the one above, where it is of pretraining."""
    return folder.parent if folder.name == "pretrain" else folder


def _is_quick(folder: Path) -> bool:
    try:
        return bool(read_document(folder / EXPERIMENT).get("quick"))
    except ValueError:  # there is none
        return False


def curve_lines(record: Record, problems: list[str]) -> list[dict[str, Any]]:
    """The lines of a run's curves; none, and a line in ``problems``, where something is damaged."""
    assert record.folder is not None
    if record.status == DAMAGED:
        problems.append(str(record.error))
        return []
    try:
        return list(read_curves(record.folder))
    except (ValueError, OSError) as error:
        problems.append(str(error))
        return []
