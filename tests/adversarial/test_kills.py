"""Five hundred SIGKILLs at random moments: nothing is lost, and every result is bit-identical."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adversarial.counts import record

ROOT = Path(__file__).parents[2]
SEED = 17
KILLS = {"train": 185, "prepare": 120, "import": 120, "runs": 60, "commands": 15}
pytestmark = [
    pytest.mark.adversarial,
    pytest.mark.skipif(os.name != "posix", reason="needs fork and signals"),
]


@pytest.mark.parametrize("kind", KILLS)
def test_kills(tmp_path, kind):
    words = [kind, str(tmp_path), str(KILLS[kind]), str(SEED)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.adversarial.kills", *words],
        cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["kills"] >= KILLS[kind]
    record(f"kills, {kind}", seed=SEED, **counts, lost_or_different=0)
