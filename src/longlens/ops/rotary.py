"""Rotary positions (Su et al., 2021): a query-key product that depends on their distance alone."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(
    positions: Tensor, head_dim: int, base: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions (L,) or (B, L): each (L, D/2) or (B, 1, L, D/2), float32.

    >>> cos, sin = rotary_angles(torch.arange(3), head_dim=8)
    >>> cos.shape
    torch.Size([3, 4])
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even for rotary positions, got {head_dim}")
    share = torch.linspace(0, 1, head_dim // 2 + 1, dtype=torch.float32, device=positions.device)
    rates = base ** -share[:-1]
    angles = positions[..., None].float() * rates
    if positions.ndim == 2:
        angles = angles[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_d, x_{d+D/2}) of x (B, H, L, D), in float32, rounding once."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
