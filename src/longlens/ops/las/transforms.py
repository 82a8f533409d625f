"""What differentiates or maps a call from outside: `torch.func`, and forward-mode derivatives.

Fused kernels have a gradient and nothing else: no forward-mode derivative, no second one. Where one
of these is asked for, the plain formula serves instead, on blocks of rows; `torch.func.vmap` and
`torch.func.grad` keep the fused kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


def functional() -> bool:
    """Whether a transform of `torch.func` is running."""
    return torch._C._are_functorch_transforms_active()


def needs_formula(*tensors: Tensor | None) -> bool:
    """Whether a derivative is asked for that no fused kernel has: forward-mode or a second one.

    Compiled code cannot tell the transforms of `torch.func` apart, so any of them counts there.
    """
    if any(t is not None and unpack_dual(t).tangent is not None for t in tensors):
        return True
    if not functional():
        return False
    if torch.compiler.is_compiling():
        return True
    from torch._C._functorch import TransformType, get_interpreter_stack

    kinds = [level.key() for level in get_interpreter_stack() or []]
    return TransformType.Jvp in kinds or kinds.count(TransformType.Grad) > 1
