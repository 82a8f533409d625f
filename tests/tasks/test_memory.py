"""Preparing ``retrieval`` reads a stream: memory does not grow with the file."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from longlens.tasks.retrieval import BYTES_IN_BLOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SCRIPT = """
import sys
from longlens.tasks import prepare, retrieval
retrieval.BYTES_IN_BLOCK = int(sys.argv[3])
manifest = prepare("retrieval", sys.argv[1], source=sys.argv[2], quiet=True, subset=True)
status = open("/proc/self/status").read()  # getrusage would count what the parent had before exec
print(manifest.examples["train"], status.split("VmHWM:")[1].split()[0])
"""


def write_pairs(folder, size):
    """Write LRA's three files with ``size`` bytes of different texts; return how many pairs."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8)
    written = {}
    for split, share in (("train", 0.9), ("eval", 0.05), ("test", 0.05)):
        pairs = max(2, int(share * size / 8000))
        with (folder / f"new_aan_pairs.{split}.tsv").open("wb") as file:
            for number in range(pairs):
                text = letters[rng.integers(0, 32, 7960, dtype=np.uint8)].tobytes()
                row = (b"%.1f" % (number % 2), b"A%d" % number, b"B%d" % number)
                file.write(b"\t".join([*row, text[:3980], text[3980:]]) + b"\n")
        written[split] = pairs
    return written


def peak(tmp_path, size, block):
    """Peak memory in MiB of a process that prepares ``size`` bytes in blocks of ``block``."""
    pairs = write_pairs(tmp_path / "tsv", size)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(tmp_path / "tsv")]
    command.append(str(block))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count == pairs["train"]
    return kilobytes / 1024


def test_memory_stays_far_below_the_file(tmp_path):
    assert peak(tmp_path, 60_000_000, block=2_000_000) < 90  # Python and numpy are half of it


@pytest.mark.slow
def test_two_gigabytes_in_less_than_two(tmp_path):
    used = peak(tmp_path, 2_000_000_000, BYTES_IN_BLOCK)
    print(f"peak {used:.0f} MiB")
    assert used < 2048
