"""Time and peak memory of a function, on CPU and CUDA."""

from __future__ import annotations

import ctypes
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch

Work = Callable[[], object]


BUSY_MS = 10.0  # a CUDA measurement queues calls for about this long


def milliseconds(work: Work, device: torch.device, repeats: int = 1) -> float:
    """How long one call takes.

    On CUDA this is the mean of `repeats` calls queued back to back, as in training: the host's own
    time hides behind the device's unless it is the longer of the two.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / repeats


def side_by_side(works: dict[str, Work], device: torch.device, seconds: float) -> dict[str, float]:
    """Median milliseconds of each, measured in turns so that a slow moment of the machine hits all.

    One call of each warms up; then rounds follow until `seconds` have passed, at least three. What
    takes more than five times as long as the fastest is measured on its own at the end: it would
    leave too few rounds, and caches and memory in another state, for the others.
    """
    for work in works.values():
        work()
    once = {name: milliseconds(work, device) for name, work in works.items()}
    limit = 5 * min(once.values())
    close = {name: work for name, work in works.items() if once[name] <= limit}
    slow = {name: {name: work} for name, work in works.items() if once[name] > limit}
    medians: dict[str, float] = {}
    for group in (close, *slow.values()):
        medians |= _medians(group, device, seconds)
    return {name: medians[name] for name in works}


def _medians(works: dict[str, Work], device: torch.device, seconds: float) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    once = min(milliseconds(work, device) for work in works.values())
    repeats = max(1, min(20, int(BUSY_MS / once))) if device.type == "cuda" else 1
    start = time.perf_counter()
    rounds = 0
    while rounds < 3 or (time.perf_counter() - start < seconds and rounds < 200):
        for name, work in works.items():
            times[name].append(milliseconds(work, device, repeats))
        rounds += 1
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def captured(work: Work, device: torch.device) -> Work:
    """The same work as a replayed CUDA graph, in which the host's time plays no part."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


@functools.cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that a large copy reads and writes on the device."""
    source = torch.empty(2**28 if device.type == "cuda" else 2**25, device=device)
    target = torch.empty_like(source)
    times = [milliseconds(lambda: target.copy_(source), device, 3) for _ in range(5)]
    return 2e3 * source.numel() * source.element_size() / sorted(times)[2]


def peak_mebibytes(work: Work, device: torch.device) -> float:
    """Memory that one call adds at its peak; NaN where the system cannot tell."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not (status.exists() and reset.exists()):
        return float("nan")
    try:
        ctypes.CDLL(None).malloc_trim(0)  # give freed memory back, or it would hide new use
        reset.write_text("5")  # the kernel forgets the old peak
    except (AttributeError, OSError):
        return float("nan")

    def field(name: str) -> int:
        return int(status.read_text().split(f"{name}:")[1].split()[0])

    before = field("VmRSS")
    work()
    return (field("VmHWM") - before) / 2**10
