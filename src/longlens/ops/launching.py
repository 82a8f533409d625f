"""What all launches of Triton kernels share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlens.ops.derivatives import first_only


def _installed() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:  # an import hook that keeps it away
        return False


INSTALLED = _installed()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton, too, reads it once
# The interpreter, which tests kernels on a CPU, has no bfloat16.
DTYPES = (torch.float32, torch.float16) + (() if INTERPRETED else (torch.bfloat16,))
MOST_KEPT = 4096  # launches and plans that are kept for calls of the same kind

Meta = tuple[torch.Size, tuple[int, ...], torch.dtype]


def meta(x: Tensor) -> Meta:
    """What decides how kernels run on a tensor, but for where it lies."""
    return x.shape, x.stride(), x.dtype


class Launch:
    """A kernel with its grid, numbers and constants, for tensors of given dtypes.

    Triton finds the compiled form of a kernel anew at each launch, from dtypes and alignment of
    tensors and from numbers, and takes longer for it than small kernels run. Kept by whoever has
    decided on one, a `Launch` looks at alignment alone. A kernel's constants follow its tensors
    and numbers.
    """

    __slots__ = ("constants", "found", "grid", "kernel", "numbers")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: Sequence[int | float], **constants: Any
    ) -> None:
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        # a product and a sum round once: the default up to Triton 3.9, which warns that it will go
        self.constants = {"enable_fp_fusion": True, **constants}
        # by device and alignment
        self.found: dict[Any, Callable[[int, Sequence[Any]], None]] = {}

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        """Start it, on the device of the first tensor."""
        if INTERPRETED:
            self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            return
        first = tensors[0]
        assert first is not None
        device = first.device.index
        if device != torch.cuda.current_device():  # entering a device costs as much as a launch
            with torch.cuda.device(device):
                self(tensors)
            return
        # Triton asks the driver about every tensor that it is handed, about addresses not.
        addresses = [None if t is None else t.data_ptr() for t in tensors]
        key = (device, *[at is None or at % 16 == 0 for at in addresses])
        found = self.found.get(key)
        if found is None:
            self.found[key] = self._first(tensors)
        else:
            found(torch._C._cuda_getCurrentRawStream(device), addresses)

    def _first(self, tensors: Sequence[Tensor | None]) -> Callable[[int, Sequence[Any]], None]:
        """Launch by way of Triton; returns what launches the compiled kernel from now on."""
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
        names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
        rest = (*self.numbers, *(self.constants[name] for name in names))
        x, y, z = (*self.grid, 1, 1)[:3]
        # as torch's own compiler launches: without metadata and hooks, which only Triton's
        # profiler asks for
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        return lambda stream, given: run(
            x, y, z, stream, function, packed, None, None, None, *given, *rest
        )


_launches: dict[Any, Launch] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[int | float],
    **constants: Any,
) -> None:
    """``kernel[grid](*tensors, *numbers, **constants)``, on the device of the first tensor."""
    dtypes = [None if t is None else t.dtype for t in tensors]
    key = (id(kernel), grid, *dtypes, *numbers, *constants.items())
    kept = _launches.get(key)
    if kept is None:
        if len(_launches) >= MOST_KEPT:
            _launches.clear()
        kept = _launches[key] = Launch(kernel, grid, numbers, **constants)
    kept(tensors)


def watched() -> bool:
    """Whether somebody counts operators: then kernels that count must run as such."""
    return torch._C._len_torch_dispatch_stack() > 0


def fused_operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    like: tuple[Callable[..., Any], Callable[..., Any]],
    setup: Callable[[Any, Any, Any], None],
    differentiate: Callable[[Any, Callable[..., Any], tuple[Any, ...]], tuple[Any, ...]],
    outputs: int,
) -> tuple[Any, Callable[..., Any]]:
    """Kernels with a gradient: as an operator, and as a function that eager code takes instead.

    Compilers, exports and counters of arithmetic see the operator ``longlens::name``. Eager code
    takes an autograd function around the same launches, since an operator's bookkeeping takes the
    host longer than these kernels take the device.

    Args:
        name: of the operator.
        forward: launches the kernels; all that it returns is kept for `setup`.
        backward: launches those of the gradients.
        like: functions that return what `forward` and `backward` do, without computing it.
        setup: (ctx, inputs, outputs) keeps what the backward pass needs.
        differentiate: (ctx, backward, grads) returns a gradient for each input.
        outputs: how many results of `forward`, the first ones, have a gradient.
    """
    operator = torch.library.custom_op(f"longlens::{name}", mutates_args=())(forward)
    operator.register_fake(like[0])
    reverse = torch.library.custom_op(f"longlens::{name}_backward", mutates_args=())(backward)
    reverse.register_fake(like[1])
    operator.register_autograd(
        lambda ctx, *grads: differentiate(ctx, reverse, grads[:outputs]), setup_context=setup
    )

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            found = forward(*inputs)
            ctx.set_materialize_grads(False)
            setup(ctx, inputs, found)
            return tuple(found[:outputs])

        @staticmethod
        @first_only
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            return differentiate(ctx, backward, grads)

    def apply(*inputs: Any) -> Any:
        if torch.compiler.is_compiling() or watched():
            return operator(*inputs)[:outputs]
        return Eager.apply(*inputs)  # type: ignore[no-untyped-call]

    return operator, apply


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> next_power_of_2(24)
    32
    """
    return 1 << (n - 1).bit_length()
