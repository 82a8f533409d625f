"""Multi-dimensional damped exponential moving average (MEGA, arXiv 2209.10655, Eq. 1 to 4).

For every channel, N averages h of the same input are kept and read out together:

    h_t = α ⊙ β · x_t + (1 - α ⊙ δ) ⊙ h_{t-1}          y_t = η · h_t

Shapes: B batch, L sequence length, D channels, N averages per channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from longlens.ops.numerics import full_precision, no_autocast
from longlens.ops.ssm import FINE

if TYPE_CHECKING:
    from torch import Tensor


def ema_kernel(alpha: Tensor, delta: Tensor, beta: Tensor, eta: Tensor, length: int) -> Tensor:
    """The averages as one convolution kernel, K_t = Σ_n η_n α_n β_n (1 - α_n δ_n)^t.

    The powers are split as (1-αδ)^(64i+j), so only 64 + L/64 are kept of each.

    Args:
        alpha: (D, N) in (0, 1).
        delta: (D, N) in (0, 1).
        beta: (D, N).
        eta: (D, N).
        length: number of taps.

    Returns:
        (D, length).

    >>> half = torch.full((1, 1), 0.5)
    >>> ema_kernel(half, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), 3)
    tensor([[0.5000, 0.2500, 0.1250]])
    """
    with no_autocast(alpha):
        alpha, delta, beta, eta = (full_precision(p) for p in (alpha, delta, beta, eta))
        log_ratio = torch.log1p(-alpha * delta)
        coarse = torch.arange(0, length, FINE, device=alpha.device)
        fine = torch.arange(FINE, device=alpha.device)
        left = (eta * alpha * beta)[:, None] * torch.exp(log_ratio[:, None] * coarse[:, None])
        right = torch.exp(log_ratio[:, :, None] * fine)
        return torch.bmm(left, right).reshape(alpha.shape[0], -1)[:, :length]


def ema_step(
    x: Tensor, h: Tensor, alpha: Tensor, delta: Tensor, beta: Tensor, eta: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the recurrence: x (B, D), h (B, D, N) -> y (B, D), h (B, D, N).

    >>> half, one = torch.full((1, 1), 0.5), torch.ones(1, 1)
    >>> y, h = ema_step(torch.ones(1, 1), torch.zeros(1, 1, 1), half, one, one, one)
    >>> y
    tensor([[0.5000]])
    """
    h = alpha * beta * x[..., None] + (1 - alpha * delta) * h
    return (eta * h).sum(-1), h


def ema_reference(x: Tensor, alpha: Tensor, delta: Tensor, beta: Tensor, eta: Tensor) -> Tensor:
    """The recurrence over a whole (B, L, D) sequence: the specification.

    >>> half, one = torch.full((1, 1), 0.5), torch.ones(1, 1)
    >>> ema_reference(torch.ones(1, 2, 1), half, one, one, one).flatten()
    tensor([0.5000, 0.7500])
    """
    h = x.new_zeros(x.shape[0], *alpha.shape)
    outputs = []
    for t in range(x.shape[1]):
        y, h = ema_step(x[:, t], h, alpha, delta, beta, eta)
        outputs.append(y)
    return torch.stack(outputs, dim=1)
