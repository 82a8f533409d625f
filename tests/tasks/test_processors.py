"""Generated data have the same bits on every processor: NumPy's fast code must not show."""

import os
import subprocess
import sys

import numpy as np
import pytest

from longlens.tasks.pathfinder.direction import direction

PATHFINDER = "f02f4b55c02c26d2"  # what these options gave, anywhere
MAKE = """
import sys, tempfile
from longlens import tasks
small = dict(train=60, validation=4, test=4)
pictures = ("pathfinder", dict(images=200)), ("pathfinder", dict(images=100, difficulty="easy"))
made = [*pictures, ("pathx", dict(images=20, size=64)), ("listops", small)]
for name in ("cumsum", "cummax", "reverse", "select", "shift", "sort"):
    made.append((name, small))
for name in ("order", "match", "xor", "pointer", "listops", "injection"):
    made.append((f"far-{name}", dict(small, distance=32)))
root = tempfile.mkdtemp()
for name, options in made:
    print(name, tasks.load(name, root, **options).identity)
"""


def extensions():
    """What this processor has beyond the oldest that NumPy supports, and NumPy makes use of."""
    from numpy._core import _multiarray_umath as core

    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]


@pytest.mark.skipif(not extensions(), reason="NumPy has one code for this processor")
def test_data_do_not_depend_on_the_processor():
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE],
            env={**os.environ, "NPY_DISABLE_CPU_FEATURES": features},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for features in ("", " ".join(extensions()))
    ]  # fmt: skip
    outputs = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    here, elsewhere = ([line.split() for line in text.splitlines()] for text, _ in outputs)
    assert len(here) == 16 and here == elsewhere
    assert here[0][1][:16] == PATHFINDER


def test_directions_are_cosine_and_sine():
    angle = np.random.default_rng(0).uniform(-20, 20, 10_000)
    expected = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    np.testing.assert_allclose(direction(angle), expected, rtol=0, atol=4e-15)
    assert direction(angle.astype(np.float32)).dtype == np.float32
