"""``longlens run``, ``worker`` and ``tune`` with real training of tiny models."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from longlens.cli.main import main
from longlens.report.read import find_runs

SIZES = {"length": 16, "train": 32, "validation": 8, "test": 8}
TINY = dict(task="cumsum", task_options=SIZES, dim=8, depth=1, batch_size=8, steps=2, device="cpu")


def write_table(tmp_path, grid, **base):
    path = tmp_path / "table.json"
    base = {**TINY, "root": str(tmp_path / "data"), **base}
    path.write_text(json.dumps({"base": base, "grid": grid}))
    return str(path)


def test_a_table_without_a_queue(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # not needed here
    table = write_table(tmp_path, {"seed": [0, 1]})
    runs = str(tmp_path / "runs")
    assert main(["run", table, "--runs", runs]) == 0
    first = {run.name: run.values for run in find_runs(runs)}
    assert sorted(values["seed"] for values in first.values()) == [0, 1]
    assert all(values["status"] == "finished" for values in first.values())
    assert main(["run", table, "--runs", runs]) == 0  # nothing is trained twice
    assert {run.name: run.values for run in find_runs(runs)} == first
    assert "2/2 cumsum-las-1" in capsys.readouterr().out


def test_wrong_cells_are_found_before_anything_runs(tmp_path, capsys):
    table = write_table(tmp_path, {"seed": [0], "lr": [0.1, -1]})
    assert main(["run", table, "--runs", str(tmp_path / "runs")]) == 1
    assert "cell 1: lr must be 0 or more" in capsys.readouterr().err
    table = write_table(tmp_path, {"widht": [8], "seed": [0]})
    assert main(["run", table, "--runs", str(tmp_path / "runs")]) == 1
    assert "'widht' is no option of longlens train" in capsys.readouterr().err
    assert main(["run", table, "--workers", "-1"]) == 1
    assert not (tmp_path / "runs").exists()


def test_a_queue_is_filled_worked_on_and_listed(tmp_path, capsys):
    pytest.importorskip("optuna")
    table = write_table(tmp_path, {"lr": [0.001, 0.01]})
    runs, storage = str(tmp_path / "runs"), str(tmp_path / "queue.journal")
    words = ["run", table, "--runs", runs, "--storage", storage, "--workers", "0"]
    assert main(words) == 0
    assert "2 runs put into" in capsys.readouterr().out
    assert main(["worker", storage]) == 0
    assert "2 of 2 finished" in capsys.readouterr().out
    assert len(find_runs(runs)) == 2
    assert main(words) == 0 and "0 runs put into" in capsys.readouterr().out
    assert main(["worker", str(tmp_path / "nothing")]) == 1
    assert "there is no queue" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_tune_fills_a_search(tmp_path, capsys):
    pytest.importorskip("optuna")
    base = [f"--{name}={json.dumps(v) if isinstance(v, dict) else v}" for name, v in TINY.items()]
    base += [f"--root={tmp_path / 'data'}", f"--runs={tmp_path / 'runs'}"]
    storage = str(tmp_path / "q")
    words = ["tune", "--search", "lr=1e-4:1e-2:log", "--trials", "2", "--storage", storage]
    assert main([*words, "--workers", "0", *base]) == 0
    assert main(["worker", storage]) == 0
    learned = {run.get("lr") for run in find_runs(tmp_path / "runs")}
    assert len(learned) == 2 and all(1e-4 <= lr <= 1e-2 for lr in learned)
    capsys.readouterr()
    assert main([*words, "--workers", "0", *base]) == 0  # what is there is shown, best first
    assert "2 of 2 finished" in (out := capsys.readouterr().out) and "r2" in out
    assert main(["tune", "--search", "lr=x", *base]) == 1  # before any trial
    assert "lr" in capsys.readouterr().err
    assert main(["tune", "--search", "lrr=1:2", *base]) == 1
    assert "did you mean 'lr'" in capsys.readouterr().err


def test_without_the_extra_the_error_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    table = write_table(tmp_path, {"seed": [0]})
    assert main(["run", table, "--storage", str(tmp_path / "q")]) == 1
    assert "pip install 'longlens[search]'" in capsys.readouterr().err
    (tmp_path / "q").touch()
    assert main(["worker", str(tmp_path / "q"), "--slurm", "2"]) == 1
    assert "pip install 'longlens[slurm]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # submitit leaves files for the collector to close
def test_submitted_workers_do_the_work(tmp_path):
    """On submitit's local executor, which takes the same way as SLURM up to the submission."""
    pytest.importorskip("submitit")
    from longlens.experiments.queue import Queue
    from longlens.experiments.submit import submit_workers

    worker = __file__.replace("test_run_commands.py", "slow_worker.py")
    queue = Queue(tmp_path / "q", beat=0.3, lease=1.2)
    queue.add([{"seed": seed} for seed in range(4)])
    words = [sys.executable, worker, str(tmp_path / "q"), str(tmp_path / "runs"), "0.3", "0.5"]
    jobs = submit_workers(
        tmp_path / "q", 2, cluster="local", folder=tmp_path / "logs", gpus=0, command=words
    )
    for job in jobs:
        job.result()
    assert queue.tally().finished == 4


def start_worker(storage):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    words = [sys.executable, "-m", "longlens.cli.main", "worker", storage]
    return subprocess.Popen([*words, "--beat", "0.5", "--lease", "3"], env=environment)


def wait_until(condition):
    until = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.faults
def test_a_worker_that_is_told_to_stop_gives_its_run_back(tmp_path):
    pytest.importorskip("optuna")
    from longlens.experiments.queue import Queue

    table = write_table(tmp_path, {"seed": [0]}, steps=100_000, log_every=5)
    runs, storage = str(tmp_path / "runs"), str(tmp_path / "queue.journal")
    assert main(["run", table, "--runs", runs, "--storage", storage, "--workers", "0"]) == 0
    worker = start_worker(storage)
    wait_until(lambda: any(p.stat().st_size for p in tmp_path.glob("runs/*/curves.jsonl")))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=120) == 130
    (run,) = find_runs(runs)
    assert run.get("status") == "stopped" and list(run.folder.glob("checkpoints/*"))
    assert Queue(storage).tally().waiting == 1


@pytest.mark.faults
def test_eight_runs_three_workers_one_killed(tmp_path):
    pytest.importorskip("optuna")
    from longlens.experiments.queue import Queue

    table = write_table(
        tmp_path, {"seed": list(range(8))}, steps=150, log_every=5, checkpoint_seconds=0.3,
        evaluate_every=150,
    )  # fmt: skip
    runs, storage = str(tmp_path / "runs"), str(tmp_path / "queue.journal")
    assert main(["run", table, "--runs", runs, "--storage", storage, "--workers", "0"]) == 0
    workers = [start_worker(storage) for _ in range(3)]
    queue = Queue(storage)
    # all three are at work
    wait_until(lambda: len(list((tmp_path / "runs").glob("*/checkpoints"))) >= 3)
    workers[1].send_signal(signal.SIGKILL)
    assert [worker.wait(timeout=300) for worker in workers] == [0, -signal.SIGKILL, 0]
    tally = queue.tally()
    assert (tally.finished, tally.failed, tally.open) == (8, 0, 0)
    records = [run.values for run in find_runs(runs)]
    assert sorted(record["seed"] for record in records) == list(range(8))
    assert all(record["status"] == "finished" for record in records)
    events = [event["kind"] for record in records for event in record.get("events", [])]
    assert events.count("resume") == 1  # the next worker went on, it did not start over
