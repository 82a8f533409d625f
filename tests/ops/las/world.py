"""A few processes that hold one sequence together: started once, then given one job after another.

A job is a function that can be pickled, called as ``job(rank, group, **arguments)`` on every rank
of a team.
"""

import datetime
import multiprocessing
import os
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE = 300  # seconds; a job takes milliseconds, the first one waits for the imports
TEAMS = {2: [1, 2], 3: [0, 1, 2]}  # the pair's ranks are not those of the world


class JobError(Exception):
    """What a rank raised, as text."""


@dataclass
class Team:
    """Some of a world's processes, by which a test can run jobs."""

    size: int
    pipes: list

    def run(self, job, **arguments):
        """The job's result on every rank. Fails if any rank raised."""
        answers = self.attempt(job, **arguments)
        failures = [f"rank {r}: {a}" for r, a in enumerate(answers) if isinstance(a, JobError)]
        assert not failures, "\n".join(failures)
        return answers

    def attempt(self, job, **arguments):
        """The job's result, or the `JobError` in its place, on every rank."""
        for pipe in self.pipes:
            pipe.send((self.size, job, arguments))
        answers = []
        for pipe in self.pipes:
            assert pipe.poll(PATIENCE), "a rank does not answer"
            answers.append(pipe.recv())
        return answers


class World:
    """Three processes, until `close`."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        # glibc would keep freed blocks for later; peaks of memory must count live blocks alone.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        for rank in range(3):
            ours, theirs = spawn.Pipe()
            store = str(Path(self.folder.name) / "store")
            process = spawn.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        del os.environ["MALLOC_MMAP_THRESHOLD_"]

    def team(self, size):
        return Team(size, [self.pipes[rank] for rank in TEAMS[size]])

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


def _serve(rank, store, pipe):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=3,
        timeout=datetime.timedelta(seconds=PATIENCE / 3),
    )
    groups = {size: dist.new_group(ranks) for size, ranks in TEAMS.items()}
    while True:
        size, job, arguments = pipe.recv()
        try:
            pipe.send(job(TEAMS[size].index(rank), groups[size], **arguments))
        except Exception as error:
            pipe.send(JobError(f"{error}\n{traceback.format_exc()}"))
