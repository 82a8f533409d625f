"""Workers as jobs of a SLURM cluster, through submitit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longlens.experiments.queue import STUDY


def submit_workers(
    storage: str | Path,
    workers: int,
    *,
    study: str = STUDY,
    folder: str | Path = "slurm",
    cluster: str | None = None,
    partition: str | None = None,
    hours: float = 24.0,
    gpus: int = 1,
    cpus: int = 8,
    command: Sequence[str] | None = None,
) -> list[Any]:
    """Submit ``workers`` jobs that each run ``longlens worker`` on ``storage``; return them.

    When a job reaches its time limit SLURM sends SIGTERM: the run writes a checkpoint, its cell
    goes back to the queue, and another worker goes on with it.

    Args:
        storage: as for :class:`~longlens.experiments.queue.Queue`; all nodes must reach it.
        workers: how many jobs.
        study: the queue's name in the storage.
        folder: for the jobs' logs; all nodes must reach it.
        cluster: None: SLURM; "local": processes on this machine (to try it out).
        partition: SLURM's; None: its default.
        hours: time limit of a job.
        gpus: of each worker.
        cpus: of each worker.
        command: what a job runs; default ``longlens worker``.

    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise ValueError(
            "launching on SLURM needs submitit: pip install 'longlens[slurm]'"
        ) from None
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    try:
        executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster or "slurm")
    except RuntimeError as error:  # no SLURM here
        raise ValueError(f"workers cannot be submitted from this machine: {error}") from None
    executor.update_parameters(
        name="longlens", timeout_min=int(60 * hours), gpus_per_node=gpus, cpus_per_task=cpus
    )
    if partition is not None:
        executor.update_parameters(slurm_partition=partition)
    words = command or (
        sys.executable, "-m", "longlens.cli.main", "worker", str(storage), "--study", study
    )  # fmt: skip
    job = submitit.helpers.CommandFunction(list(words))
    return [executor.submit(job) for _ in range(workers)]
