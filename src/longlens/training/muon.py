"""Muon (Jordan et al. 2024): momentum whose every singular value is made 1, for weight matrices.

Updates have the size of AdamW's (Liu et al. 2025, arXiv 2502.16982, §2.2), so that one learning
rate serves both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longlens.training.distributed import part_of_stack, whole_stack

MOMENTUM = 0.95
SIZE = 0.2  # root mean square of an update, in learning rates: about that of AdamW
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x³, x⁵: five rounds bring (0.01, 1) to about 1
ROUNDS = 5


def orthogonalized(matrices: Tensor) -> Tensor:
    """UVᵀ of each matrix UΣVᵀ of (N, m, n), roughly: singular values between 0.7 and 1.2.

    >>> bound = torch.linalg.svdvals(orthogonalized(torch.randn(1, 8, 4))).sub(1).abs().max()
    >>> bool(bound < 0.4)
    True
    """
    a, b, c = COEFFICIENTS
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = (matrices.mT if tall else matrices).to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        even = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, even, x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon:
    """Muon on groups of matrices, those of one shape at once, with no host synchronisation.

    Where weights lie in shards, so does their momentum; before it is orthogonalised the matrices
    are gathered, and every rank computes all of them.

    Args:
        groups: with ``names``, ``params``, ``weight_decay`` and ``lr``, which may change and may
            lie on the device; where ``params`` are the local shards, with ``sharded``: the
            tensors of which they are parts.

    >>> w = torch.zeros(2, 2)
    >>> muon = Muon([dict(names=["w"], params=[w], weight_decay=0.0, lr=0.1)])
    >>> w.grad = torch.eye(2)
    >>> muon.step(scale=torch.tensor(1.0), skip=torch.tensor(0.0))
    >>> bool(w[0, 0] < 0) and abs(float(w[0, 1])) < 1e-6
    True
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.groups = groups
        self.momentum: dict[str, Tensor] = {}
        # of each shape: their group, the parts that lie here, their momenta, and one as sharded
        self.stacks: list[tuple[dict[str, Any], list[Tensor], Tensor, Tensor]] = []
        for group in groups:
            sharded = group.get("sharded", group["params"])
            shapes: dict[torch.Size, list[tuple[str, Tensor, Tensor]]] = {}
            for member in zip(group["names"], group["params"], sharded, strict=True):
                shapes.setdefault(member[2].shape, []).append(member)
            for members in shapes.values():
                names, parts, wholes = zip(*members, strict=True)
                momenta = torch.zeros(len(parts), *parts[0].shape, device=parts[0].device)
                self.stacks.append((group, list(parts), momenta, wholes[0]))
                self.momentum |= dict(zip(names, momenta.unbind(), strict=True))

    @torch.no_grad()
    def step(self, scale: Tensor, skip: Tensor) -> None:
        """Update from gradients divided by ``scale``, unless ``skip`` is 1; both are ()."""
        left_out = skip > 0
        for group, matrices, momenta, whole in self.stacks:
            rate, decay = group["lr"], group["weight_decay"]
            present = [torch.zeros_like(m) if m.grad is None else m.grad for m in matrices]
            gradients = torch.stack(present).float() / scale
            moved = torch.lerp(gradients, momenta, MOMENTUM)
            momenta.copy_(torch.where(left_out, momenta, moved))
            ahead = torch.lerp(gradients, moved, MOMENTUM)  # Nesterov's
            size = SIZE * math.sqrt(max(whole.shape))
            direction = part_of_stack(whole, orthogonalized(whole_stack(whole, ahead)))
            update = torch.where(left_out, 0.0, rate * size * direction)
            if decay:
                torch._foreach_mul_(matrices, 1.0 - rate * decay * ~left_out)
            torch._foreach_sub_(matrices, list(update.unbind()))
