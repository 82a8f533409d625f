"""Where the cells of a sweep run: this process, others on this machine, Ray, SLURM."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from longlens.runs.record import Record
from longlens.runs.sweeps import Engine, failed_record, run_cell
from longlens.training.faults import Stopped
from longlens.training.options import TrainOptions

ATTEMPTS = 3  # a cell whose process died this often has failed
POLL = 2.0  # seconds between two looks at jobs of a cluster


def find_engine(on: str, workers: int = 1, devices: Sequence[str] = ()) -> Engine:
    """The engine of that name.

    Raises:
        ValueError: there is none, workers is below 1, or devices are not for this machine.
    """
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, got {workers}")
    if devices and on != "here":
        raise ValueError(f"devices are for runs on this machine, and these are for {on}")
    if on == "here":
        return Here() if workers == 1 and not devices else Processes(workers, tuple(devices))
    if on == "ray" or on.startswith("ray://"):
        return Ray(None if on == "ray" else on)
    if on == "slurm":
        return Slurm(at_once=workers)
    raise ValueError(f"on must be here, ray, ray://HOST:PORT or slurm, got {on!r}")


class Here:
    """One cell after another, in this process."""

    def run(self, cells: Sequence[TrainOptions]) -> Iterator[tuple[int, Record]]:
        """See :class:`Engine`."""
        for place, cell in enumerate(cells):
            yield place, run_cell(cell)


@dataclass(frozen=True)
class Processes:
    """Processes on this machine; one that dies is replaced, and its cell goes on elsewhere.

    Args:
        workers: how many.
        devices: worker k sees only CUDA device ``devices[k % len(devices)]``; empty: all see all.
    """

    workers: int
    devices: tuple[str, ...] = ()

    def run(self, cells: Sequence[TrainOptions]) -> Iterator[tuple[int, Record]]:
        """See :class:`Engine`."""
        waiting: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Record] | BaseException] = queue.SimpleQueue()
        for place in range(len(cells)):
            waiting.put((place, 1))
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(number, cells, waiting, done, stop))
            for number in range(min(self.workers, len(cells)))
        ]
        with _raising_on_sigterm():
            try:
                for thread in threads:
                    thread.start()
                for _ in cells:
                    outcome = done.get()
                    if isinstance(outcome, BaseException):
                        raise outcome
                    yield outcome
            finally:  # also where the sweep is cut off: children save their state and end
                stop.set()
                for thread in threads:
                    if thread.ident is not None:  # it was started
                        thread.join()

    def _serve(
        self,
        number: int,
        cells: Sequence[TrainOptions],
        waiting: queue.SimpleQueue[tuple[int, int]],
        done: queue.SimpleQueue[tuple[int, Record] | BaseException],
        stop: threading.Event,
    ) -> None:
        """Feed one worker process after another until nothing waits."""
        child = None
        try:
            while not stop.is_set():
                try:
                    place, attempt = waiting.get_nowait()
                except queue.Empty:
                    return
                child = child or _Child(self._environment(number))
                record = child.call(cells[place], stop)
                if record is None:  # it died: the lock is free, the checkpoint is there
                    child = None
                    if stop.is_set():
                        return
                    if attempt < ATTEMPTS:
                        waiting.put((place, attempt + 1))
                        continue
                    record = _lost(cells[place], f"its process died, {attempt} times")
                done.put((place, record))
        except BaseException as error:
            done.put(error)
        finally:
            if child is not None:
                child.end()

    def _environment(self, number: int) -> dict[str, str]:
        environment = dict(os.environ)
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        environment.setdefault("OMP_NUM_THREADS", str(threads))  # else each would take all cores
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[number % len(self.devices)]
        return environment


def _lost(cell: TrainOptions, why: object) -> Record:
    """The record of a cell whose process or node died too often to say so itself."""
    last = str(why).strip().splitlines()[-1:]
    return failed_record(cell, "".join(last))


@contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block by an exception, so that workers are told, too."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, "stopped by a signal; what was begun is saved")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Child:
    """A process that gets cells as lines of JSON, and answers each with a line."""

    def __init__(self, environment: dict[str, str]) -> None:
        words = [sys.executable, "-m", "longlens.runs.worker"]
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, cell: TrainOptions, stop: threading.Event) -> Record | None:
        """The record of a cell; None if the process ended before it had one."""
        assert self.process.stdin is not None and self.process.stdout is not None
        ended = threading.Event()

        def watch() -> None:  # the sweep is cut off: ask the process to save and end
            while not ended.wait(0.2):
                if stop.is_set():
                    self.process.terminate()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            self.process.stdin.write(json.dumps(cell.to_json()) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            ended.set()
            watcher.join()
        if line.endswith("\n"):
            return Record.from_json(json.loads(line))
        self.end()
        return None

    def end(self) -> None:
        """Let the process end by itself, since there is nothing more to read, and forget it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):  # it may be gone
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster, whose nodes share the folders of runs and data.

    Args:
        address: of the cluster, as ``ray://HOST:10001``; None: $RAY_ADDRESS, a cluster that runs
            on this machine, or a new one.
        gpus: of each run; None: 1 where the cluster has GPUs.
        cpus: of each run.
    """

    address: str | None = None
    gpus: float | None = None
    cpus: float = 1

    def run(self, cells: Sequence[TrainOptions]) -> Iterator[tuple[int, Record]]:
        """See :class:`Engine`."""
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError("--on ray needs Ray: pip install 'longlens[ray]'") from None
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=True, logging_level="warning")
        gpus = self.gpus
        if gpus is None:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
        # a task whose node dies is retried on another one, and goes on from the run's checkpoint
        task = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_retries=ATTEMPTS)(run_cell)
        places = {task.remote(cell): place for place, cell in enumerate(cells)}
        try:
            while places:
                (first, *_), _ = ray.wait(list(places), num_returns=1)
                place = places.pop(first)
                try:
                    record = ray.get(first)
                except ray.exceptions.RayError as error:
                    record = _lost(cells[place], error)
                yield place, record
        finally:
            for task_left in places:
                ray.cancel(task_left)


@dataclass(frozen=True)
class Slurm:
    """Jobs of a SLURM array, through submitit; the nodes share the folders of runs and data.

    Jobs go on when the sweep itself ends. One that reached its time limit counts as failed; the
    same command goes on from its last checkpoint.

    Args:
        at_once: jobs that run at the same time, at most.
        cluster: "slurm", or "local": processes on this machine, to try it out.
        folder: of the jobs' logs.
        hours: a job's time limit.
        gpus: of each job.
        cpus: of each job.
        partition: of each job; None: the cluster's default.
    """

    at_once: int = 16
    cluster: str = "slurm"
    folder: str = "slurm"
    hours: float = 24.0
    gpus: int = 1
    cpus: int = 8
    partition: str | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, cells: Sequence[TrainOptions]) -> Iterator[tuple[int, Record]]:
        """See :class:`Engine`."""
        try:
            import submitit
        except ModuleNotFoundError:
            raise ValueError("--on slurm needs submitit: pip install 'longlens[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        except RuntimeError as error:  # no SLURM here
            raise ValueError(f"jobs cannot be submitted from this machine: {error}") from None
        executor.update_parameters(
            name="longlens", timeout_min=int(60 * self.hours), gpus_per_node=self.gpus,
            cpus_per_task=self.cpus, slurm_array_parallelism=self.at_once, **self.more,
        )  # fmt: skip
        if self.partition is not None:
            executor.update_parameters(slurm_partition=self.partition)
        jobs = dict(enumerate(executor.map_array(run_cell, list(cells))))
        while jobs:
            for place, job in list(jobs.items()):
                if not job.done():
                    continue
                del jobs[place]
                raised = job.exception()
                yield place, job.result() if raised is None else _lost(cells[place], raised)
            if jobs:
                time.sleep(POLL)
