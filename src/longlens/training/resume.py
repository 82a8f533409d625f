"""The checkpoints of one run: writing them, and going on from one that belongs to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from longlens.training import checkpoint
from longlens.training.checkpoint import Checkpoint, layout_difference
from longlens.training.distributed import Ranks
from longlens.training.faults import TrainingError
from longlens.training.job import Job, State
from longlens.training.log import CHECKPOINTS, CURVES, Log
from longlens.training.options import TrainOptions, difference, recorded_identity
from longlens.training.provenance import is_clean


@dataclass
class RunCheckpoints:
    """Reads the checkpoints of a run on every rank and writes them on the main one."""

    job: Job
    options: TrainOptions
    ranks: Ranks
    folder: Path
    log: Log | None
    """Of curves and events, on the main rank; None on the others."""
    provenance: Mapping[str, Any]
    """Code, versions and hardware, kept in checkpoints."""
    step: int = -1
    """Step of the last checkpoint; -1: there is none yet."""
    written: float = field(default_factory=time.perf_counter)
    """``time.perf_counter()`` then."""

    def resume(self) -> Checkpoint | None:
        """The checkpoint to go on from, with the curves cut to it; None: there is none.

        Raises:
            TrainingError: it is of another run, or ``resume`` requires one that is not there.
        """
        curves = self.folder / CURVES
        saved = checkpoint.load(
            self.folder / CHECKPOINTS, curves.stat().st_size if curves.exists() else 0
        )
        commit = self.provenance.get("commit")
        if saved is None:
            if self.options.resume == "require":
                raise TrainingError(f"resume is require, but {self.folder} has no checkpoint")
            if self.log is not None and self.log.curve_bytes():
                self.log.cut_curves(0)  # cut off before its first checkpoint
                self.log.event("begin again", commit=commit)
            return None
        changed = check_same_run(saved, self.folder, self.job, self.options, self.provenance)
        if self.log is not None:
            if changed:
                print(f"note: going on although {changed}", file=sys.stderr)
            for problem in saved.damaged:
                print(f"note: going on from an older checkpoint: {problem}", file=sys.stderr)
            self.log.cut_curves(saved.facts["curve_bytes"])
            notes = {"changed": changed, "damaged": list(saved.damaged)}
            noted = {name: note for name, note in notes.items() if note}
            self.log.event("resume", step=saved.facts["step"], commit=commit, **noted)
        self.step = saved.facts["step"]
        return saved

    def go_back(self) -> Checkpoint | None:
        """The last checkpoint, with the curves cut to it; None: there is none."""
        saved = checkpoint.load(self.folder / CHECKPOINTS)
        if saved is not None and self.log is not None:
            self.log.cut_curves(saved.facts["curve_bytes"])
        return saved

    def state_of(self, saved: Checkpoint) -> State:
        """The counters of a checkpoint, as this process goes on with them."""
        facts, state = saved.facts, State(**saved.facts["state"])
        # a checkpoint of before ``clean`` was kept tells it by its commit alone
        state.clean = state.clean and is_clean(facts["provenance"]) and is_clean(self.provenance)
        now = (self.provenance.get("hardware"), self.ranks.world_size)
        if (facts["provenance"].get("hardware"), facts["world_size"]) != now:
            state.forget_speed()
        return state

    def write(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, on the main rank."""
        if self.log is not None:
            facts = {
                "state": asdict(state),
                "identity": self.options.identity(),
                "data": self.job.data,
                "provenance": dict(self.provenance),
                "world_size": self.ranks.world_size,
                "curve_bytes": self.log.curve_bytes(),
            }
            checkpoint.save(
                self.folder / CHECKPOINTS, state.step, tensors, facts,
                keep=self.options.keep_checkpoints, small=self.options.small_checkpoints,
            )  # fmt: skip
        self.step = state.step
        self.written = time.perf_counter()


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
    differences = [
        difference(options.identity(), recorded_identity(facts["identity"])),
        "" if facts["data"] == job.data else f"the data are {job.data}, were {facts['data']}",
        layout_difference(job.model.state_dict(), saved.under("model/")),
    ]
    if any(differences):
        raise TrainingError(
            f"{folder} holds a checkpoint of another run: {'; '.join(filter(None, differences))}; "
            "give the old options, another --name, or --resume restart"
        )
    return difference(provenance, facts["provenance"])
