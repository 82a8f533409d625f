"""Helper process: kill runs at random moments and start them again until they end.

Usage: kills.py FOLDER KILLS SEED. Prints how many kills there were; fails where a result differs
from that of the run that was left alone. Children are forks, so that none of them imports torch.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from longlens.runs import train_run
from longlens.training.options import TrainOptions
from tests.training.runs import outcome, tiny

VARIANTS = (
    {},
    {"mixer": "s4d", "mixer_options": {}, "norm": "batch", "ema": 0.0, "protocol": "denoise"},
    {"micro_batch": 2, "schedule": "plateau", "patience": 2, "checkpoint_seconds": 0.2,
     "optimizer": "muon"},
    {"protocol": "pretrain", "pretrain_steps": 6, "steps": 12},
    {"task": "cumsum", "task_options": {"length": 32, "train": 60, "validation": 12, "test": 12},
     "length": None, "mixer": "lru", "mixer_options": {}, "log_every": 5},
)  # fmt: skip


def start(options: TrainOptions) -> int:
    """Train in a child process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        train_run(options)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Kill until there were enough kills."""
    torch.set_num_threads(1)
    folder, wanted, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    kills = run = 0
    took: list[float] = []
    while kills < wanted:
        changes = VARIANTS[run % len(VARIANTS)]
        alone = tiny(folder, **changes, name=f"alone-{run % len(VARIANTS)}")
        began = time.perf_counter()
        assert os.waitstatus_to_exitcode(os.waitpid(start(alone), 0)[1]) == 0
        took.append(time.perf_counter() - began)
        killed = tiny(folder, **changes, name=f"killed-{run}")
        while True:
            child = start(killed)
            if kills < wanted:
                time.sleep(chance.uniform(0.0, 0.8 * took[run % len(VARIANTS)]))
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == 0:
                break
            assert code == -signal.SIGKILL, code
            kills += 1
        runs = Path(killed.runs)
        assert outcome(runs / f"killed-{run}") == outcome(runs / f"alone-{run % len(VARIANTS)}"), (
            changes,
            run,
        )
        run += 1
    print(kills)


if __name__ == "__main__":
    main()
