"""`longlens bench step`: training steps of declared runs, and what the device does in them."""

from __future__ import annotations

import gc
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from longlens import tasks
from longlens.cli.bench_rows import Row, Rows
from longlens.cli.run import read_changes
from longlens.experiments.catalog import find
from longlens.experiments.standins import prepare_stand_in, quick_data
from longlens.runs.build import make_model
from longlens.runs.cell import Cell
from longlens.runs.jobs import make_job
from longlens.runs.measure import flops_per_token, peak_flops
from longlens.runs.results import Place
from longlens.runs.run import find_device
from longlens.training.distributed import Ranks
from longlens.training.engine import Engine
from longlens.training.memory import forget_peak_memory, peak_memory_mib
from longlens.training.options import TrainOptions
from longlens.training.process import forget_programs, set_process
from longlens.training.provenance import provenance

PASSES = 5  # over the batches, timed one by one
UNTOLD = ("runs", "name", "root", "seed")  # options that say nothing of what is timed
WARM_UP = 5  # passes before: programs are compiled and captured

# Kinds of kernels by their names; the first that fits. Names of compiled kernels list all that was
# fused into them, so pointwise ones (triton_poi) come first, whatever operators stand beside.
KINDS = {
    "pointwise": r"^triton_poi|elementwise_kernel",
    "matrix": r"gemm|nvjet|cutlass|splitK|gemv|cublas|triton_tem|triton_mm|addmm",
    "norm": r"(layer|batch|rms|group)_norm|^(join_)?moments|scaled_sums|^join_sums",
    "attention": r"sdpa|flash|fmha|attention|dot_do_o|convert_dq|prologue"
    r"|^(forward|query|key|delta)_kernel|^(fold|merge|unfold)_both",
    "optimizer": r"multi_tensor_apply",
    "copies": r"^Mem(cpy|set)|copy_kernel",
}


def step(
    experiment: str = "table2",
    only: str = "LaS Image ListOps",
    changes: Sequence[str] = (),
    batches: int = 24,
    quick: bool = False,
    output: Path | None = None,
) -> int:
    """Time training steps of an experiment's runs: tokens a second, share of the peak, kernels.

    Steps alone: no evaluation, no checkpoints. Data must have been prepared.

    Args:
        experiment: a name of `longlens run`.
        only: rows and columns, as in "'LaS+ in minutes' Image" (`longlens run --only`).
        changes: of `longlens train`'s options, as in expansion=2.
        batches: different batches of a pass.
        quick: tiny models on stand-in data, to see that it works.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    if batches < 1:
        raise ValueError(f"batches must be 1 or more, got {batches}")
    with tempfile.TemporaryDirectory() as folder:
        declared = find(experiment)
        options = read_changes(changes)
        cells = declared.cells(shlex.split(only), changes=options, quick=quick, runs=folder)
        rows = Rows(find_device(TrainOptions(**cells[0]).device), output)
        for cell in cells:
            if quick:
                prepare_stand_in(cell["task"], quick_data(folder), **cell["task_options"])
            rows.add([measure(cell, declared.place(cell["name"]), batches)])
            gc.collect()  # the last model, before the next one's memory is measured
            forget_programs()
    return 0


def measure(cell: Cell, place: Place, batches: int) -> Row:
    """One run's row of the table."""
    options = TrainOptions(**{**cell, "progress": False})
    device = find_device(options.device)
    set_process(options, device)
    ranks = Ranks(device)
    task = tasks.load(options.task, options.root, **options.task_options)
    forget_peak_memory(device)
    start = time.perf_counter()
    model = make_model(options, task.spec, "supervised", device)
    job = make_job(options, task, model, ranks)
    engine = Engine(job, options, ranks)
    engine.optimizer.set_factor(1.0)
    rng = torch.Generator(device).manual_seed(0)
    examples = list(islice(job.train.epoch(0), batches))

    def one_pass() -> float:
        began = time.perf_counter()
        for batch in examples:
            engine.update(job.prepare(batch, rng, training=True))
        _wait(device)
        return time.perf_counter() - began

    engine.update(job.prepare(examples[0], rng, training=True))
    _wait(device)
    first = time.perf_counter() - start
    for _ in range(WARM_UP):
        one_pass()
    seconds = median(one_pass() for _ in range(PASSES))
    memory = peak_memory_mib(device)
    padded = sum(batch.padded_tokens for batch in examples)
    peak = peak_flops(provenance(device)["hardware"], engine.low_precision)
    arithmetic = flops_per_token(model, job) * padded / seconds
    by_kind = _kernels(one_pass, len(examples)) if device.type == "cuda" else {}
    return {
        "shape": f"{place['row']}, {place['column']}",
        "dtype": "bfloat16" if engine.low_precision else "float32",
        "step_ms": 1e3 * seconds / len(examples),
        "padded_tokens_per_s": padded / seconds,
        "tokens_per_s": sum(batch.tokens for batch in examples) / seconds,
        "share_of_peak": arithmetic / peak if peak else float("nan"),
        "first_step_s": first,
        "peak_mib": memory,
        **{f"{kind}_ms": by_kind.get(kind, float("nan")) for kind in (*KINDS, "other")},
        "options": " ".join(f"{k}={v}" for k, v in cell.items() if k not in UNTOLD),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _kernels(one_pass: Callable[[], float], steps: int) -> dict[str, float]:
    """Milliseconds of a step that the device spends in each kind of kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        one_pass()
    times = dict.fromkeys((*KINDS, "other"), 0.0)
    for event in profiled.key_averages():
        times[kind_of(event.key)] += event.self_device_time_total / 1e3 / steps
    return times


def kind_of(kernel: str) -> str:
    """The kind of work that a kernel of this name does.

    >>> kind_of("nvjet_sm90_tst_128x160_64x5_2x1_v_bz_NNT")
    'matrix'
    >>> kind_of("triton_poi_fused__to_copy_gelu_view_9"), kind_of("triton_red_fused__to_copy_sum_5")
    ('pointwise', 'other')
    """
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel)), "other")
