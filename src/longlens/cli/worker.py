"""``longlens worker STORAGE``: work on a queue of runs until it is empty."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from longlens.experiments.queue import BEAT, LEASE, STUDY, Queue
from longlens.experiments.submit import submit_workers
from longlens.experiments.worker import Stop, work

EPILOG = """Start as many as you like, on any machines that reach the storage; each takes one run at
a time. STORAGE is a file (a journal, also on a shared file system) or a database such as
postgresql://user:password@host/name. A worker that dies loses nothing: its run goes back to the
queue and the next worker goes on from its last checkpoint.

  longlens worker runs/table.journal
  longlens worker postgresql://me@db/runs --slurm 8 --partition gpu --hours 24"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``longlens worker``."""
    p = argparse.ArgumentParser(
        prog="longlens worker",
        description="Work on a queue of runs (made by `longlens run` or `longlens tune`).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("storage", help="the queue: a file, or a database's URL")
    p.add_argument("--study", default=STUDY, help="name of the queue in the storage")
    p.add_argument("--beat", type=float, default=BEAT, help="seconds between signs of life")
    p.add_argument("--lease", type=float, default=LEASE, help="silence after which one is dead")
    slurm = p.add_argument_group("submit workers to SLURM instead of working here")
    slurm.add_argument("--slurm", type=int, default=0, metavar="N", help="how many")
    slurm.add_argument("--partition", default=None)
    slurm.add_argument("--hours", type=float, default=24.0, help="time limit of a worker")
    slurm.add_argument("--gpus", type=int, default=1, help="of each worker")
    slurm.add_argument("--cpus", type=int, default=8, help="of each worker")
    slurm.add_argument("--logs", default="slurm", metavar="FOLDER", help="for the workers' output")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``longlens worker``; returns the exit code: 1 where a cell has failed."""
    args = parser().parse_args(argv)
    if args.slurm:
        jobs = submit_workers(
            args.storage, args.slurm, study=args.study, folder=args.logs, hours=args.hours,
            partition=args.partition, gpus=args.gpus, cpus=args.cpus,
        )  # fmt: skip
        print("submitted: " + " ".join(str(job.job_id) for job in jobs))
        return 0
    if "://" not in args.storage and not Path(args.storage).exists():
        raise ValueError(f"there is no queue {args.storage}; `longlens run` and `tune` make one")
    queue = Queue(args.storage, args.study, beat=args.beat, lease=args.lease)
    if not sum(vars(queue.tally()).values()):
        raise ValueError(f"{args.storage} has no queue {args.study!r} with runs in it")
    try:
        tally = work(queue, say=lambda text: print(text, flush=True))
    except Stop as stop:
        print(f"longlens worker: {stop}; the run is back in the queue", file=sys.stderr)
        return 130
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
