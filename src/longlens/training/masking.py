"""Hiding tokens for denoising and masked pre-training."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_tokens(
    inputs: Tensor, mask: Tensor | None, generator: torch.Generator, rate: float, mask_id: int
) -> tuple[Tensor, Tensor]:
    """Replace a random share of the real tokens by ``mask_id``.

    Args:
        inputs: tokens, (B, L) or (B, 2, L) for pairs.
        mask: same shape, True on real tokens; None: all are real.
        generator: all randomness; lives on the inputs' device.
        rate: each real token is hidden with this probability, independently.
        mask_id: the token that stands for a hidden one (commonly ``vocab_size``: one past the
            task's own ids).

    Returns:
        The corrupted tokens, and where they were hidden (bool, same shape): the loss is taken
        there, against ``inputs``.

    >>> tokens = torch.tensor([[5, 6, 7, 0]])
    >>> real = torch.tensor([[True, True, True, False]])
    >>> corrupted, where = mask_tokens(tokens, real, torch.Generator().manual_seed(0), 0.5, 99)
    >>> bool(where[0, 3]), bool((corrupted[where] == 99).all())
    (False, True)

    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    if inputs.is_floating_point():
        raise ValueError(f"inputs must be integer tokens, got {inputs.dtype}")
    where = torch.rand(inputs.shape, generator=generator, device=inputs.device) < rate
    if mask is not None:
        where &= mask
    return inputs.masked_fill(where, mask_id), where
