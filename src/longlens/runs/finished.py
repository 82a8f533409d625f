"""Whether a run is finished: its record says so, of the same options and the same data."""

from __future__ import annotations

from pathlib import Path

from longlens.runs.record import Record, read_record
from longlens.tasks import Task
from longlens.tasks.identity import current_identity, expected_version
from longlens.tasks.mix import MixedTask
from longlens.training.faults import TrainingError
from longlens.training.options import TrainOptions, difference, recorded_identity


def finished_record(folder: Path, options: TrainOptions, task: Task | None = None) -> Record | None:
    """The record of a run that is finished; None if it is not.

    Args:
        folder: of the run.
        options: that it should have.
        task: the data, if they are loaded already.

    Raises:
        TrainingError: it was finished with other options or on other data.
    """
    try:
        record = read_record(folder)
    except ValueError:
        return None
    if not record.is_finished:
        return None
    then = recorded_identity(record.options)
    changed = difference(options.identity(), then) or other_data(record, options, task)
    if changed:
        raise TrainingError(
            f"{folder} holds a finished run with other options or data: {changed}; give another "
            "--name or --runs, or --resume restart"
        )
    return record


def other_data(record: Record, options: TrainOptions, task: Task | None = None) -> str | None:
    """Say how the data of a record differ from those that ``options`` mean now; None if not.

    Data that are not there any more cannot be compared: then their version is, and a record of an
    imported task is believed.
    """
    version = record.data.get("version")  # records of earlier versions of longlens do not say
    current = expected_version(options.task, **options.task_options)
    if None not in (version, current) and version != current:
        return f"version {version} of {options.task}, which has version {current} now"
    if task is not None and (isinstance(task, MixedTask) or not options.mix_easier):
        identity: str | None = task.identity
    else:
        identity = current_identity(
            options.task, options.root, mix_easier=options.mix_easier, **options.task_options
        )
    was = str(record.data.get("identity"))
    if identity in (None, was):
        return None
    return f"the data of {options.task} have identity {identity[:16]}…, had {was[:16]}…"
