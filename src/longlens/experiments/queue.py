"""A queue of cells that workers on one machine or many share; a worker that dies loses nothing.

It is an Optuna study: a cell is a trial, and a worker takes a waiting one by setting it to running,
which succeeds for one worker only. While it works, a thread counts up the trial's heartbeat.
Whoever sees a heartbeat stand still for longer than the lease, by its own clock, declares that
worker dead and puts the cell back; no two machines' clocks are compared. What has been computed is
in the run's checkpoint, so the next worker goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longlens.experiments.cells import Cell, cell_key
from longlens.experiments.search import Search, choose
from longlens.experiments.storage import claiming, need_optuna, open_storage

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STUDY = "longlens"
ATTEMPTS = 3  # a cell whose worker died this often has failed
BEAT = 10.0  # seconds between heartbeats
LEASE = 60.0  # a heartbeat that stands still for so long belongs to a dead worker


@dataclass(frozen=True)
class Claim:
    """A cell that this worker has taken."""

    trial: int
    cell: Cell
    attempt: int


@dataclass(frozen=True)
class Tally:
    """How many cells of a queue are in which state."""

    waiting: int
    running: int
    finished: int
    failed: int

    @property
    def open(self) -> int:
        """Cells that somebody still has to finish."""
        return self.waiting + self.running

    def __str__(self) -> str:
        total = self.open + self.finished + self.failed
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.finished} of {total} finished{failed}, {self.running} running"


class Queue:
    """Cells in a storage.

    Args:
        storage: a path (a journal file is made there), or a database's URL.
        study: several queues can share a storage under different names.
        lease: seconds without a heartbeat after which a worker counts as dead.
        beat: seconds between heartbeats.

    """

    def __init__(
        self,
        storage: str | Path,
        study: str = STUDY,
        *,
        lease: float = LEASE,
        beat: float = BEAT,
    ) -> None:
        if lease < 3 * beat:
            raise ValueError(f"lease must be at least three beats of {beat} s, got {lease}")
        self.lease, self.beat = lease, beat
        optuna = need_optuna()
        self.states = optuna.trial.TrialState
        self.finished_error = optuna.exceptions.UpdateFinishedTrialError
        self.where, self.storage = storage, open_storage(storage)
        self.study = optuna.create_study(
            study_name=study, storage=self.storage, load_if_exists=True, direction="maximize"
        )
        self._id = self.storage.get_study_id_from_name(study)
        self._seen: dict[int, tuple[int, float]] = {}  # trial: its heartbeat, since when

    # ------------------------------------------------------------------ filling

    def add(self, cells: Iterable[Cell]) -> int:
        """Put in the cells that are not in the queue yet; return how many those were."""
        known = {trial.user_attrs.get("key") for trial in self._trials()}
        new = {key: cell for cell in cells if (key := cell_key(cell)) not in known}
        for key, cell in new.items():
            self._enqueue({"cell": cell, "key": key, "attempt": 1})
        return len(new)

    def add_search(self, search: Search, trials: int) -> int:
        """Put in trials whose options ``search`` chooses, up to ``trials`` in all; return how many.

        Raises:
            ValueError: the queue holds something else.

        """
        before = self.study.user_attrs.get("search")
        if before not in (None, search.to_json()) or (before is None and self._trials()):
            raise ValueError(
                "the storage holds another search or table; give another --storage or --study"
            )
        self.study.set_user_attr("search", search.to_json())
        there = sum("follows" not in trial.user_attrs for trial in self._trials())
        for number in range(there, trials):
            self._enqueue({"key": f"trial {number}", "attempt": 1})
        return max(0, trials - there)

    def _enqueue(self, attributes: Mapping[str, Any], params: Mapping[str, Any] = {}) -> None:
        self.study.enqueue_trial(dict(params), user_attrs=dict(attributes))

    def retry_failed(self) -> int:
        """Put the cells that have failed back in; return how many those were."""
        failed = self._failed()
        for trial in failed:
            self._again(trial, attempt=1)
        return len(failed)

    # ------------------------------------------------------------------ working

    def claim(self) -> Claim | None:
        """Take a waiting cell; None if there is none at the moment."""
        states = self.states
        for trial in self._trials(states.WAITING):
            number = self._trial_id(trial.number)
            if not self._take(number):
                continue
            key = trial.user_attrs["key"]
            if any(
                other.user_attrs["key"] == key and other.number != trial.number
                for other in self._trials(states.RUNNING, states.COMPLETE)
            ):  # two processes put the same cell in at once
                self._set(number, "duplicate", True)
                self._end(number, states.FAIL)
                continue
            return Claim(number, self._cell(number, trial), trial.user_attrs["attempt"])
        return None

    def _take(self, trial: int) -> bool:
        """Set a waiting trial to running; False if somebody else was faster."""
        with claiming(self.where):
            if self.storage.get_trial(trial).state != self.states.WAITING:
                return False
            try:
                return self.storage.set_trial_state_values(trial, self.states.RUNNING)
            except self.finished_error:
                return False

    def _cell(self, number: int, trial: FrozenTrial) -> Cell:
        """Return the options of a claimed trial; in a search this is where they are chosen."""
        search = self.study.user_attrs.get("search")
        if search is None:
            given: Cell = trial.user_attrs["cell"]
            return given
        cell = choose(Search.from_json(search), self.study, number, trial.number)
        self._set(number, "cell", cell)
        return cell

    @contextmanager
    def heartbeat(self, claim: Claim) -> Iterator[None]:
        """Show, while the block runs, that the worker of ``claim`` is alive."""
        done = threading.Event()

        def beat() -> None:
            count = 0
            while not done.wait(self.beat):
                count += 1
                try:
                    self.storage.set_trial_user_attr(claim.trial, "heartbeat", count)
                except self.finished_error:  # given up by others; the run's own lock decides
                    return
                except Exception:  # a storage that is away for a moment: the next beat tries again
                    continue

        thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def finish(self, claim: Claim, value: float, **facts: Any) -> None:
        """The cell is done; ``value`` is its validation metric, the higher the better."""
        for key, fact in facts.items():
            self._set(claim.trial, key, fact)
        self._end(claim.trial, self.states.COMPLETE, [value])

    def fail(self, claim: Claim, reason: str) -> None:
        """The cell cannot be done."""
        self._set(claim.trial, "failed", reason)
        self._end(claim.trial, self.states.FAIL)

    def give_back(self, claim: Claim) -> None:
        """The worker was told to stop: somebody else shall go on with the cell."""
        trial = self.storage.get_trial(claim.trial)
        if self._end(claim.trial, self.states.FAIL):
            self._again(trial, claim.attempt)

    # ------------------------------------------------------------------ the dead

    def release_dead(self) -> list[str]:
        """Put back the cells of workers whose heartbeat stands still; return their keys."""
        now = time.monotonic()
        released = []
        for trial in self._trials(self.states.RUNNING):
            count = trial.user_attrs.get("heartbeat", 0)
            if self._seen.get(trial.number, (-1, 0.0))[0] != count:
                self._seen[trial.number] = (count, now)
            elif now - self._seen[trial.number][1] > self.lease:
                attempt = trial.user_attrs["attempt"]
                number = self._trial_id(trial.number)
                if attempt >= ATTEMPTS:
                    self._set(number, "failed", f"its worker died, {attempt} times")
                if self._end(number, self.states.FAIL) and attempt < ATTEMPTS:
                    self._again(trial, attempt + 1)
                    released.append(trial.user_attrs["key"])
        self._repair()
        return released

    def _repair(self) -> None:
        """Put back cells that were lost because who gave them back died while doing it."""
        followed = self._followed()
        for trial in self._trials(self.states.FAIL):
            ended = {"failed", "duplicate"} & set(trial.user_attrs) or trial.number in followed
            since = self._seen.setdefault(-1 - trial.number, (0, time.monotonic()))[1]
            if not ended and time.monotonic() - since > self.lease:
                self._again(trial, trial.user_attrs["attempt"])

    def _again(self, trial: FrozenTrial, attempt: int) -> None:
        """Put a copy of an ended trial into the queue."""
        kept = {key: trial.user_attrs[key] for key in ("cell", "key") if key in trial.user_attrs}
        self._enqueue(kept | {"attempt": attempt, "follows": trial.number}, trial.params)

    # ------------------------------------------------------------------ reading

    def tally(self) -> Tally:
        """Count the cells by state."""
        states = [trial.state for trial in self._trials()]
        waiting, running, finished = (
            states.count(state)
            for state in (self.states.WAITING, self.states.RUNNING, self.states.COMPLETE)
        )
        return Tally(waiting, running, finished, len(self._failed()))

    def failures(self) -> dict[str, str]:
        """Why cells have failed, by their keys."""
        return {trial.user_attrs["key"]: trial.user_attrs["failed"] for trial in self._failed()}

    def finished(self) -> list[tuple[float, dict[str, Any]]]:
        """Value and facts (the cell among them) of the finished cells, the best first."""
        done = self._trials(self.states.COMPLETE)
        return sorted(
            ((float(trial.values[0]), dict(trial.user_attrs)) for trial in done),
            key=lambda pair: -pair[0],
        )

    def _failed(self) -> list[FrozenTrial]:
        followed = self._followed()
        return [
            trial
            for trial in self._trials(self.states.FAIL)
            if "failed" in trial.user_attrs and trial.number not in followed
        ]

    def _followed(self) -> set[int | None]:
        return {trial.user_attrs.get("follows") for trial in self._trials()}

    # ------------------------------------------------------------------ Optuna

    def _trials(self, *states: Any) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self._id, deepcopy=False, states=states or None)

    def _trial_id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _set(self, trial: int, key: str, value: Any) -> None:
        try:
            self.storage.set_trial_user_attr(trial, key, value)
        except self.finished_error:
            return  # somebody else has ended it

    def _end(self, trial: int, state: Any, values: list[float] | None = None) -> bool:
        """End a trial; False if somebody else has ended it already."""
        try:
            return self.storage.set_trial_state_values(trial, state, values)
        except self.finished_error:
            return False
