"""Helper process: two ranks on CPU (gloo) train several runs, one after another.

Usage: two_ranks.py FOLDER. Both ranks are forks of this process, so that torch is imported once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from longlens.runs import train_run
from longlens.training import loop
from longlens.training.faults import Stopped
from tests.training.runs import tiny

# dropout draws differ between numbers of ranks; all else is the same
SAME = {"dropout": 0.0, "ema": 0.9, "steps": 12, "evaluate_every": 6}
STREAM = SAME | {"task": "stream", "task_options": {}, "length": 20, "mixer": "lru",
                 "mixer_options": {}, "batch_size": 4}  # fmt: skip
MUON = SAME | {"optimizer": "muon", "expansion": 1.125}  # 9 rows, of which two ranks have 5 and 4
LEARNED = {"num_heads": 2, "learned_alpha": True, "bound": 0.01}
SCRATCHPAD = SAME | {"protocol": "scratchpad", "length": None, "bidirectional": False}
RUNS = {
    "ddp": SAME,
    "ddp-learned": SAME | {"warmup": 0, "mixer_options": LEARNED},
    "ddp-muon": MUON,
    "fsdp": SAME | {"parallel": "fsdp"},
    "fsdp-muon": MUON | {"parallel": "fsdp"},
    "ddp-micro": SAME | {"micro_batch": 2},
    "fsdp-micro": SAME | {"micro_batch": 2, "parallel": "fsdp"},
    "ddp-stream": STREAM,
    "fsdp-stream": STREAM | {"parallel": "fsdp"},
    "fsdp-scratchpad": SCRATCHPAD | {"parallel": "fsdp"},
}
STOPPED = {
    "ddp-stopped": SAME,
    "fsdp-stopped": SAME | {"parallel": "fsdp"},
    "fsdp-muon-stopped": MUON | {"parallel": "fsdp"},
}


def train_all(folder: Path, rank: int) -> None:
    """Train every run on this rank; the last ones are stopped by a signal to rank 1 alone."""
    dist.init_process_group("gloo")
    for name, changes in RUNS.items():
        train_run(tiny(folder, **changes, name=name))
    original = loop.Trainer.step

    def step(trainer: loop.Trainer) -> None:
        original(trainer)
        if rank == 1 and trainer.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    loop.Trainer.step = step  # type: ignore[method-assign]
    for name, changes in STOPPED.items():
        try:
            train_run(tiny(folder, **changes, name=name))
            raise AssertionError("the run was not stopped")
        except Stopped as stop:
            assert "step 6" in str(stop), stop  # the next line of the curve
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Fork two ranks and wait for them."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in (0, 1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                train_all(folder, rank)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0], codes


if __name__ == "__main__":
    main()
