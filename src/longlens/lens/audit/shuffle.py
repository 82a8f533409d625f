"""Destroying order: within windows (what is near is mixed) or between them (only near is kept)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from longlens.tasks.arrays import Ints

KINDS = ("within", "between")


def shuffled(tokens: Ints, window: int, kind: str, rng: np.random.Generator) -> Ints:
    """One sequence (L,) with the order within, or of, its windows destroyed.

    >>> shuffled(np.arange(6), 3, "between", np.random.default_rng(0)).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    block = np.arange(len(tokens)) // window
    if kind == "within":
        order = np.argsort(block + rng.random(len(tokens)))
    else:
        order = np.argsort(rng.random(int(block[-1]) + 1)[block], kind="stable")
    return np.asarray(tokens[order])


def shuffled_batch(
    inputs: Tensor, mask: Tensor | None, window: int, kind: str, generator: torch.Generator
) -> Tensor:
    """The same for a batch (B, L) or (B, L, C); padding, which is at the end, stays there."""
    rows, length = inputs.shape[:2]
    device = generator.device
    block = torch.arange(length, device=device) // window
    if kind == "within":
        keys = block + torch.rand(rows, length, generator=generator, device=device)
    else:
        keys = torch.rand(rows, int(block[-1]) + 1, generator=generator, device=device)[:, block]
    if mask is not None:
        keys = keys.masked_fill(~mask.to(device), float("inf"))
    order = keys.argsort(dim=1, stable=True).to(inputs.device)
    if inputs.dim() == 3:
        order = order[..., None].expand_as(inputs)
    return inputs.gather(1, order)
