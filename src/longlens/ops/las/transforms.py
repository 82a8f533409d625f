"""What differentiates, maps or exports a call from outside.

Fused kernels have a gradient and nothing else: no forward-mode derivative, no second one. Where one
of these is asked for, the plain formula serves instead, on blocks of rows; `torch.func.vmap` and
`torch.func.grad` keep the fused kernels.

`torch.export` makes one program for all lengths, of PyTorch's own operators, so that it runs where
longlens is not installed: what SDPA cannot do in one call is the plain formula there, too. Only
`impl="triton"` exports kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import statically_known_true


def functional() -> bool:
    """Whether a transform of `torch.func` is running."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether forward-mode derivatives may be asked for."""
    return forward_ad._current_level >= 0


def needs_formula(*tensors: Tensor | None) -> bool:
    """Whether a derivative is asked for that no fused kernel has: forward-mode or a second one.

    Compiled code cannot tell the transforms of `torch.func` apart, so any of them counts there.
    """
    if torch.compiler.is_compiling():
        if forward_mode() and not functional():
            # Without fullgraph=True the call then runs uncompiled, and is right.
            raise NotImplementedError(
                "forward-mode derivatives do not go through torch.compile; call it uncompiled"
            )
        return functional()
    if not functional():
        return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    if forward_mode():
        return True
    from torch._C._functorch import TransformType, get_interpreter_stack

    kinds = [level.key() for level in get_interpreter_stack() or []]
    return kinds.count(TransformType.Grad) > 1


def exporting() -> bool:
    """Whether `torch.export` traces the call.

    The flag itself: inside `torch.compile` of torch 2.11 `torch.compiler.is_exporting()` is always
    true, and compiled models would get the plain formula instead of kernels.
    """
    return torch.compiler._is_exporting_flag


def known(condition: bool) -> bool:
    """A comparison of lengths, in an export whether it holds for all that may come."""
    return statically_known_true(condition) if exporting() else bool(condition)
