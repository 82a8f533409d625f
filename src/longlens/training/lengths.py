"""One compiled program for sequences of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longlens.training.examples import Examples


def of_any_length(program: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled ``program`` that is told before its first call that positions vary in number.

    Otherwise the compiler makes a program for the first length alone, and another for any length
    when it sees a second one: twice the time.

    Args:
        program: takes ``Examples``, and tensors with positions last, or of floats second.

    """

    def run(*inputs: Any) -> Any:
        for value in inputs:
            for tensor in value.tensors().values() if isinstance(value, Examples) else [value]:
                if isinstance(tensor, Tensor) and tensor.dim() > 1:
                    positions = 1 if tensor.is_floating_point() else tensor.dim() - 1
                    torch._dynamo.maybe_mark_dynamic(tensor, positions)
        return program(*inputs)

    return run
