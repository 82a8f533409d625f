"""Sweeps whose workers, driver and nodes are killed: each cell once, as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from longlens.files import sha256_file
from longlens.models.pretrained import WEIGHTS
from longlens.runs import sweep
from longlens.runs.engines import Ray, Slurm
from tests.runs.test_sweep import cells_in

pytestmark = pytest.mark.faults


def digests(records, runs):
    """What must be the same of two sweeps: results and weights, run by run."""
    return {one.seed: (one.metrics, sha256_file(runs / one.name / WEIGHTS)) for one in records}


def descendants(pid):
    out = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in out.split()]


def test_two_hundred_cells_four_processes_and_kills(tmp_path):
    count, chance = 200, random.Random(0)
    cells = cells_in(tmp_path, count, steps=4, log_every=2, checkpoint_seconds=0.0)
    quiet = sweep([{**cell, "runs": str(tmp_path / "quiet")} for cell in cells])
    table = tmp_path / "table.json"
    table.write_text(json.dumps([{k: v for k, v in c.items() if k != "runs"} for c in cells]))
    words = [sys.executable, "-m", "longlens.cli.main", "run", str(table), "--workers", "4",
             "--runs", str(tmp_path / "runs")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    # by progress, not by the clock: a fast machine is hit as often as a slow one
    due = {"driver": [30, 80, 130, 170], "worker": sorted(chance.sample(range(5, 190), 25))}
    killed = {"driver": 0, "worker": 0}

    def finished():
        return len(list((tmp_path / "runs").glob("*/model.safetensors")))

    def is_due(what):
        return bool(due[what]) and finished() >= due[what][0]

    code = None
    while code != 0:
        driver = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        while (code := driver.poll()) is None and not is_due("driver"):
            time.sleep(0.05)
            if is_due("worker") and (children := descendants(driver.pid)):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(children), signal.SIGKILL)
                    due["worker"].pop(0)
                    killed["worker"] += 1
        if code is None:
            driver.kill()
            due["driver"].pop(0)
            killed["driver"] += 1
        driver.wait()
    records = sweep(cells)  # all are there: nothing is trained
    assert len(list((tmp_path / "runs").glob("*/record.json"))) == count
    assert digests(records, tmp_path / "runs") == digests(quiet, tmp_path / "quiet")
    print(f"{count} cells, {killed['worker']} workers and {killed['driver']} drivers killed")
    assert killed["driver"] == 4 and killed["worker"] >= 15


def test_a_driver_that_is_told_to_stop_tells_its_workers(tmp_path):
    cells = cells_in(tmp_path, 2, steps=100_000, log_every=5)
    table = tmp_path / "table.json"
    table.write_text(json.dumps([{k: v for k, v in c.items() if k != "runs"} for c in cells]))
    words = [sys.executable, "-m", "longlens.cli.main", "run", str(table), "--workers", "2",
             "--runs", str(tmp_path / "runs")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    driver = subprocess.Popen(words, env=environment)
    until = time.monotonic() + 180
    while len([p for p in tmp_path.glob("runs/*/curves.jsonl") if p.stat().st_size]) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    children = descendants(driver.pid)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=120) == 128 + signal.SIGTERM
    assert all(not Path(f"/proc/{child}").exists() for child in children)
    states = [json.loads(p.read_text())["status"] for p in tmp_path.glob("runs/*/record.json")]
    assert states == ["stopped", "stopped"]
    assert len(list(tmp_path.glob("runs/*/checkpoints/*"))) >= 2


@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_ray_cluster_that_loses_a_node(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    cells = cells_in(tmp_path, 24, steps=40, log_every=2, checkpoint_seconds=0.0)
    quiet = sweep([{**cell, "runs": str(tmp_path / "quiet")} for cell in cells])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    seen = []

    def each(place, record):
        seen.append(record.status)
        if len(seen) == 4:
            cluster.remove_node(other, allow_graceful=False)

    try:
        records = sweep(cells, Ray(cluster.address), each=each, pause=0.2)
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
    assert seen == ["finished"] * 24
    assert digests(records, tmp_path / "runs") == digests(quiet, tmp_path / "quiet")


@pytest.mark.filterwarnings("ignore")  # submitit leaves files for the collector to close
def test_jobs_of_submitit(tmp_path):
    """On submitit's local executor, which takes the same way as SLURM up to the submission."""
    pytest.importorskip("submitit")
    engine = Slurm(cluster="local", folder=str(tmp_path / "logs"), gpus=0, cpus=1, hours=1)
    cells = cells_in(tmp_path, 3)
    records = sweep(cells, engine)
    assert [record.status for record in records] == ["finished"] * 3
    assert records == sweep(cells)
