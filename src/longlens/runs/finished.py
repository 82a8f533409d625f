"""Whether a run is finished: its record says so, of the same options and the same data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longlens.tasks import Task
from longlens.tasks.expected import expected_version
from longlens.tasks.identity import current_identity
from longlens.tasks.mix import MixedTask
from longlens.training.faults import TrainingError
from longlens.training.options import TrainOptions, difference, recorded_identity
from longlens.training.records import read_record


def finished_record(
    folder: Path, options: TrainOptions, task: Task | None = None
) -> dict[str, Any] | None:
    """The record of a run that is finished; None if it is not.

    Args:
        folder: of the run.
        options: that it should have.
        task: the data, if they are loaded already.

    Raises:
        TrainingError: it was finished with other options or on other data.
    """
    try:
        values = read_record(folder)
    except ValueError:
        return None
    if values.get("status") != "finished":
        return None
    then = recorded_identity(values["options"])
    found = difference(options.identity(), then) or other_data(values, options, task)
    if found:
        raise TrainingError(
            f"{folder} holds a finished run with other options or data: {found}; give another "
            "--name or --runs, or --resume restart"
        )
    return values


def other_data(
    record: Mapping[str, Any], options: TrainOptions, task: Task | None = None
) -> str | None:
    """Say how the data of a record differ from those that ``options`` mean now; None if not.

    Data that are not there any more cannot be compared: then their version is, and a record of an
    imported task is believed.
    """
    made = record["data"].get("version")  # records of earlier versions of longlens do not say
    current = expected_version(options.task, **options.task_options)
    if None not in (made, current) and made != current:
        return f"version {made} of {options.task}, which has version {current} now"
    if task is not None and (isinstance(task, MixedTask) or not options.mix_easier):
        identity: str | None = task.identity
    else:
        identity = current_identity(
            options.task, options.root, mix_easier=options.mix_easier, **options.task_options
        )
    was = str(record["data"].get("identity"))
    if identity in (None, was):
        return None
    return f"the data of {options.task} have identity {identity[:16]}…, had {was[:16]}…"
