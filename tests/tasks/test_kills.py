"""Killed at any point and started again: the same bytes, always."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longlens.tasks import load, prepare
from tests.tasks import layouts

HELPER = Path(__file__).with_name("kill_points.py")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")


def points(root, name, step, options, *source):
    """Die at every ``step``-th file operation; return how many there were, about."""
    arguments = [str(root), name, str(step), json.dumps(options), *map(str, source)]
    command = [sys.executable, str(HELPER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


EVERY = pytest.param(1, marks=pytest.mark.faults)


@pytest.mark.parametrize("step", [7, EVERY])
def test_death_at_the_file_operations_of_a_generator(tmp_path, step):
    options = {"train": 30, "validation": 5, "test": 5, "min_length": 5, "max_length": 40}
    assert points(tmp_path, "listops", step, options) > 60


@pytest.mark.parametrize("step", [7, EVERY])
def test_death_at_the_file_operations_of_a_source(tmp_path, step):
    folder = layouts.write_folder(tmp_path / "f", layouts.aan_files(4))
    assert points(tmp_path, "retrieval", step, {"subset": True}, folder) > 60


@pytest.mark.faults
@pytest.mark.parametrize("name", ["listops", "pathfinder"])
def test_sigkill_at_random_moments_with_two_workers(tmp_path, name):
    options = {"train": 9000, "validation": 100, "test": 100}
    if name == "pathfinder":
        options = {"images": 5000}
    clean = load(name, tmp_path / "clean", workers=2, **options)
    given = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [
        sys.executable,
        "-m",
        "longlens.cli.main",
        "data",
        "prepare",
        name,
        *given,
        "--workers",
        "2",
    ]
    luck = random.Random(0)
    for _ in range(12):
        run = subprocess.Popen(
            [*command, "--root", str(tmp_path / "hit")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(luck.uniform(0.2, 4.0))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    manifest = prepare(name, tmp_path / "hit", workers=2, quiet=True, **options)
    assert manifest.identity == clean.identity
    for path in clean.folder.iterdir():
        assert (
            tmp_path / "hit" / name / clean.folder.name / path.name
        ).read_bytes() == path.read_bytes()
