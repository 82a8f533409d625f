"""Whole training steps as CUDA graphs: one launch a step instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from longlens.training.examples import Examples

WARM_UP = 3  # eager steps of a shape before it is captured: kernels get compiled and tuned


def programs_compiled() -> int:
    """How many programs torch.compile has made so far."""
    return int(counters["stats"]["unique_graphs"])


class CapturedStep:
    """Runs ``step`` eagerly for the first few times that a shape occurs, then replays its graph.

    The eager calls are real steps, on the tensors and the stream on which the graph is captured
    later, so nothing is computed for nothing. Nothing may be compiled during a capture: it waits
    until ``WARM_UP`` steps of the shape in a row went without. Graphs of all shapes share one pool
    of memory.

    Args:
        step: works on the device alone; the same addresses every time, except for its argument.
    """

    def __init__(self, step: Callable[[Examples], None]) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.static: dict[object, Examples] = {}
        self.calm: dict[object, int] = {}  # eager steps since the last compilation, by shape
        self.graphs: dict[object, torch.cuda.CUDAGraph] = {}

    def __call__(self, examples: Examples) -> None:
        """Run one step."""
        key = tuple(
            None if tensor is None else (tensor.shape, tensor.dtype)
            for tensor in examples.tensors().values()
        )
        if key not in self.static:
            tensors = {n: None if t is None else t.clone() for n, t in examples.tensors().items()}
            self.static[key] = Examples(**tensors)  # type: ignore[arg-type]
            self.calm[key] = 0
        else:
            targets, sources = self.static[key].tensors().values(), examples.tensors().values()
            for target, source in zip(targets, sources, strict=True):
                if isinstance(target, Tensor) and isinstance(source, Tensor):
                    target.copy_(source, non_blocking=True)
        if key not in self.graphs:
            if self.calm[key] < WARM_UP:
                self._run_eagerly(key)
                return
            self.graphs[key] = self._capture(self.static[key])
        self.graphs[key].replay()

    def _run_eagerly(self, key: object) -> None:
        before = programs_compiled()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(self.static[key])
        torch.cuda.current_stream().wait_stream(self.stream)
        self.calm[key] = self.calm[key] + 1 if programs_compiled() == before else 0

    def _capture(self, static: Examples) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(static)
        return graph
