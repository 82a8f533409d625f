"""A queue of cells: who takes what, what happens to the cells of the dead."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'longlens[search]'")

from longlens.experiments import queue as queues
from longlens.experiments.queue import Queue
from longlens.experiments.search import Search, parse
from longlens.experiments.storage import JournalLock, open_storage
from longlens.experiments.worker import Stop, run_workers, selection_value, work
from longlens.files import locked

WORKER = Path(__file__).with_name("slow_worker.py")
CELLS = [{"task": "stub", "seed": seed} for seed in range(8)]


def record(cell, value=0.5):
    return {
        "name": f"run-{cell['seed']}",
        "metric": {"name": "accuracy", "higher_is_better": True},
        "metrics": {"validation": {"accuracy": value}},
    }


@pytest.fixture(params=["journal", pytest.param("sqlite", marks=pytest.mark.slow)])
def storage(request, tmp_path):
    if request.param == "journal":
        return str(tmp_path / "queue.journal")
    return f"sqlite:///{tmp_path / 'queue.db'}"


def quick(storage, **options):
    return Queue(storage, **{"beat": 0.02, "lease": 0.1, **options})


def test_cells_are_done_once_each(storage):
    first, second = quick(storage), quick(storage)
    assert first.add(CELLS) == 8 and first.add(CELLS) == 0 and second.add(CELLS[:3]) == 0
    seen = []
    claim = first.claim()
    assert second.claim().cell != claim.cell
    first.give_back(claim)
    tally = work(second, lambda cell: seen.append(cell["seed"]) or record(cell), say=seen_nothing)
    # the second queue's own first claim was never given back nor finished: nobody shows its pulse
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (tally.finished, tally.open, tally.failed) == (8, 0, 0)


def seen_nothing(text):
    pass


def test_a_cell_that_raises_has_failed_and_can_be_tried_again(storage):
    queue = quick(storage)
    queue.add(CELLS[:2])

    def run(cell):
        if cell["seed"]:
            raise ValueError("lr must be 0 or more, got -1")
        return record(cell)

    said = []
    tally = work(queue, run, said.append)
    assert (tally.finished, tally.failed, tally.open) == (1, 1, 0)
    (reason,) = queue.failures().values()
    assert reason == "ValueError: lr must be 0 or more, got -1"
    assert any("lr must be" in line for line in said)
    assert queue.retry_failed() == 1 and queue.tally().waiting == 1
    assert work(queue, record, seen_nothing).finished == 2 and not queue.failures()


def test_a_worker_waits_for_a_run_that_another_process_works_on(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add(CELLS[:1])
    tries = []

    def run(cell):
        tries.append(cell)
        if len(tries) == 1:
            with locked(tmp_path / "run", "a"), locked(tmp_path / "run", "a"):
                pass  # the second one cannot have it
        return record(cell)

    assert work(queue, run, seen_nothing).finished == 1 and len(tries) == 2


def test_stopping_gives_the_cell_back(storage):
    queue = quick(storage)
    queue.add(CELLS[:1])

    def stop(cell):
        raise Stop("SIGTERM")

    for _ in range(5):  # stopping is no fault of the cell's: it may happen any number of times
        with pytest.raises(Stop):
            work(queue, stop, seen_nothing)
    assert queue.tally().waiting == 1
    assert work(queue, record, seen_nothing).finished == 1


def test_the_dead_are_noticed_and_the_living_are_not_disturbed(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add(CELLS[:2])
    alive, dead = queue.claim(), queue.claim()
    watcher = quick(tmp_path / "j")
    released = []
    with queue.heartbeat(alive):
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            released += watcher.release_dead()
            time.sleep(0.02)
        assert len(released) == 1
        again = watcher.claim()
        assert again.cell == dead.cell and again.attempt == 2
        assert watcher.claim() is None
    queue.finish(alive, 0.5)
    queue.finish(dead, 0.5)  # it was only slow; too late, and without harm
    watcher.finish(again, 0.5)
    assert watcher.tally().finished == 2 and watcher.tally().open == 0


def test_a_cell_that_kills_its_workers_fails_in_the_end(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add(CELLS[:1])
    for attempt in range(1, queues.ATTEMPTS + 1):
        assert queue.claim().attempt == attempt
        queue.release_dead()
        time.sleep(0.15)
        queue.release_dead()
    assert queue.claim() is None
    assert list(queue.failures().values()) == ["its worker died, 3 times"]


def test_a_cell_is_not_lost_with_who_gives_it_back(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add(CELLS[:1])
    claim = queue.claim()
    queue._end(claim.trial, queue.states.FAIL)  # … and killed before it was put back
    assert queue.claim() is None
    queue.release_dead()
    time.sleep(0.15)
    queue.release_dead()
    assert queue.claim().cell == CELLS[0]


def test_a_cell_that_was_put_in_twice_at_once_is_done_once(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add(CELLS[:1])
    queue._enqueue({"cell": CELLS[0], "key": queues.cell_key(CELLS[0]), "attempt": 1})
    done = []
    tally = work(queue, lambda cell: done.append(cell) or record(cell), seen_nothing)
    assert len(done) == 1 and tally.finished == 1 and tally.failed == 0
    queue.release_dead()
    time.sleep(0.15)
    queue.release_dead()
    assert queue.tally().open == 0


def test_a_torn_line_does_not_spoil_the_journal(tmp_path):
    path = tmp_path / "j"
    queue = quick(path)
    queue.add(CELLS[:2])
    with path.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')  # killed while writing
    queue.add(CELLS[2:3])
    assert quick(path).tally().waiting == 3
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_the_lock_goes_with_its_holder(tmp_path):
    path = tmp_path / "j"
    open_storage(path)
    code = (
        "import sys, time; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from longlens.experiments.storage import JournalLock\n"
        "JournalLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path), *sys.path], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    child.kill()
    child.wait()
    child.stdout.close()
    lock = JournalLock(path)
    start = time.monotonic()
    assert lock.acquire() and time.monotonic() - start < 5
    lock.release()


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_chooses_within_its_space(tmp_path, sampler):
    words = ["lr=1e-4:1e-2:log", "dim=64:256:64", "mixer=las,s4d", "mixer_options.window=3,5"]
    search = Search({"task": "listops"}, parse(words), sampler, seed=3)
    queue = quick(tmp_path / "j")
    assert queue.add_search(search, 12) == 12 and queue.add_search(search, 12) == 0
    assert queue.add_search(search, 14) == 2
    cells = []

    def run(cell):
        cells.append(cell)
        assert 1e-4 <= cell["lr"] <= 1e-2 and cell["dim"] in (64, 128, 192, 256)
        assert cell["mixer"] in ("las", "s4d") and cell["mixer_options"]["window"] in (3, 5)
        assert cell["task"] == "listops"
        return record({"seed": 0}, value=-abs(cell["lr"] - 1e-3))

    assert work(queue, run, seen_nothing).finished == 14
    assert len({cell["lr"] for cell in cells}) == 14
    best = queue.finished()[0]
    assert abs(best[1]["cell"]["lr"] - 1e-3) == min(abs(cell["lr"] - 1e-3) for cell in cells)
    with pytest.raises(ValueError, match="another search"):
        queue.add_search(Search({"task": "image"}, parse(words), sampler), 3)


def test_a_search_does_not_depend_on_who_takes_a_trial(tmp_path):
    search = Search({}, parse(["lr=1e-4:1e-2:log"]), "random", seed=1)
    chosen = []
    for name in "ab":
        queues_ = [quick(tmp_path / name) for _ in range(2 if name == "a" else 1)]
        queues_[0].add_search(search, 6)
        chosen.append([queues_[i % len(queues_)].claim().cell["lr"] for i in range(6)])
    assert chosen[0] == chosen[1]


def test_a_trial_of_a_dead_worker_keeps_its_options(tmp_path):
    queue = quick(tmp_path / "j")
    queue.add_search(Search({}, parse(["lr=1e-4:1e-2:log"]), "tpe"), 1)
    first = queue.claim()
    queue.release_dead()
    time.sleep(0.15)
    queue.release_dead()
    assert queue.claim().cell == first.cell


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="lease must be at least three beats"):
        Queue(tmp_path / "j", lease=1, beat=1)
    with pytest.raises(ValueError, match="workers must be 1 or more, got 0"):
        run_workers(tmp_path / "j", 0)
    with pytest.raises(ValueError, match="cannot be opened"):
        Queue("nosuchdatabase://x/y")
    with pytest.raises(ValueError, match="sampler must be one of random, tpe, got 'grid'"):
        Search({}, {}, "grid")
    with pytest.raises(ValueError, match="not a finite number"):
        selection_value(record({"seed": 0}, None))


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_eight_cells_three_workers_one_killed(tmp_path, kind):
    storage = str(tmp_path / "q") if kind == "journal" else f"sqlite:///{tmp_path / 'q'}"
    queue = Queue(storage, beat=0.3, lease=1.2)
    queue.add(CELLS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    words = [sys.executable, str(WORKER), storage, str(tmp_path / "runs"), "0.3", "1.0"]
    workers = [subprocess.Popen(words, env=environment) for _ in range(3)]
    while not list((tmp_path / "runs").glob("*/record.json")):  # all are at work by now
        time.sleep(0.05)
        assert any(worker.poll() is None for worker in workers)
    time.sleep(0.5)
    workers[0].send_signal(signal.SIGKILL)
    assert [worker.wait(timeout=120) for worker in workers] == [-signal.SIGKILL, 0, 0]
    tally = queue.tally()
    assert (tally.finished, tally.failed, tally.open) == (8, 0, 0)
    records = sorted((tmp_path / "runs").glob("*/record.json"))
    assert len({json.loads(path.read_text())["options"]["seed"] for path in records}) == 8
    for path in records:  # every step once, whoever did it
        assert path.with_name("steps").read_text().split() == [str(step) for step in range(10)]
