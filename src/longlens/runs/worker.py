"""A worker process of a sweep on this machine: cells come in as lines of JSON, records go out."""

from __future__ import annotations

import json
import os
import signal
import sys

from longlens.files import finite
from longlens.runs.sweeps import run_cell
from longlens.training.faults import Stopped
from longlens.training.options import TrainOptions


def main() -> int:
    """Run cells until there are no more, or until the process is asked to stop."""
    # Ctrl-C reaches all processes of a terminal; the sweep, which gets it too, tells the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Only records may go to the pipe: whatever prints, prints for people.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            record = run_cell(TrainOptions.from_values(json.loads(line)))
        except Stopped as stop:
            print(f"longlens: {stop}", file=sys.stderr)
            return 128 + stop.signum
        try:
            print(json.dumps(finite(record.to_json())), file=answers, flush=True)
        except BrokenPipeError:  # the sweep is gone; the record is in the run's folder
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
