"""Whether a checkpoint belongs to a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longlens.training.checkpoint import Checkpoint, layout_difference
from longlens.training.faults import TrainingError
from longlens.training.job import Job
from longlens.training.options import TrainOptions, difference, recorded_identity


def check_same_run(
    saved: Checkpoint,
    folder: Path,
    job: Job,
    options: TrainOptions,
    provenance: Mapping[str, Any],
) -> str:
    """Refuse a checkpoint of other options, data or state layout, naming the difference.

    Returns:
        what else differs (commit, versions, hardware), which is allowed but noted.

    Raises:
        TrainingError: it is not this run's.
    """
    facts = saved.facts
    then = {
        name.removeprefix("model/"): tensor
        for name, tensor in saved.tensors.items()
        if name.startswith("model/")
    }
    found = [difference(options.identity(), recorded_identity(facts["identity"]))]
    if facts["data"] != job.data:
        found.append(f"the data are {job.data}, were {facts['data']}")
    found.append(layout_difference(job.model.state_dict(), then))
    if any(found):
        raise TrainingError(
            f"{folder} holds a checkpoint of another run: {'; '.join(filter(None, found))}; "
            "give the old options, another --name, or --resume restart"
        )
    return difference(provenance, facts["provenance"])
