"""Whole training steps as CUDA graphs: one launch a step instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longlens.training.examples import Examples

WARM_UP = 3  # eager steps of a shape before it is captured: kernels get compiled and tuned


class CapturedStep:
    """Runs ``step`` eagerly for the first few times that a shape occurs, then replays its graph.

    The eager calls are real steps, on the stream on which the graph is captured later, so nothing
    is computed for nothing. Graphs of all shapes share one pool of memory.

    Args:
        step: works on the device alone; the same addresses every time, except for its argument.
    """

    def __init__(self, step: Callable[[Examples], None]) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()
        self.pool: Any = torch.cuda.graph_pool_handle()
        self.seen: dict[object, int] = {}
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, Examples]] = {}

    def __call__(self, examples: Examples) -> None:
        """Run one step."""
        key = tuple(
            None if tensor is None else (tensor.shape, tensor.dtype)
            for tensor in examples.tensors().values()
        )
        if key not in self.graphs:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= WARM_UP:
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    self.step(examples)
                torch.cuda.current_stream().wait_stream(self.stream)
                for tensor in examples.tensors().values():
                    if tensor is not None:
                        tensor.record_stream(self.stream)
                return
            self.graphs[key] = self._capture(examples)
        graph, static = self.graphs[key]
        for target, source in zip(
            static.tensors().values(), examples.tensors().values(), strict=True
        ):
            if isinstance(target, Tensor) and isinstance(source, Tensor):
                target.copy_(source, non_blocking=True)
        graph.replay()

    def _capture(self, examples: Examples) -> tuple[torch.cuda.CUDAGraph, Examples]:
        static = Examples(
            **{
                name: None if tensor is None else tensor.clone()
                for name, tensor in examples.tensors().items()
            }  # type: ignore[arg-type]
        )
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(static)
        return graph, static
