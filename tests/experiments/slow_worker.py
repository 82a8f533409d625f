"""A worker process whose cells take a while: ``python slow_worker.py STORAGE RUNS BEAT SECONDS``.

A cell appends its steps to RUNS/NAME/steps, one at a time, and goes on where an earlier worker
stopped, like a training run with its checkpoints. Two workers on one cell would be noticed.
"""

import json
import sys
import time
from pathlib import Path

from longlens.experiments.queue import Queue
from longlens.experiments.worker import work

STEPS = 10


def run(cell, runs, seconds):
    folder = runs / f"cell-{cell['seed']}"
    folder.mkdir(parents=True, exist_ok=True)
    steps = folder / "steps"
    done = len(steps.read_text().split()) if steps.exists() else 0
    for step in range(done, STEPS):
        time.sleep(seconds / STEPS)
        with steps.open("a") as file:
            file.write(f"{step}\n")
    record = {
        "schema": 1,
        "name": folder.name,
        "status": "finished",
        "options": cell,
        "metric": {"name": "accuracy", "higher_is_better": True},
        "metrics": {"validation": {"accuracy": cell["seed"] / 10}},
    }
    (folder / "record.json").write_text(json.dumps(record))
    return record


def main(storage, runs, beat, seconds):
    queue = Queue(storage, beat=float(beat), lease=4 * float(beat))
    work(queue, lambda cell: run(cell, Path(runs), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
