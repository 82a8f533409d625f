"""The effective receptive field: how much an output depends on each input, by gradients.

Works for any mixer or stack of them: no kernel and no attention matrix needed (Luo et al. 2016,
arXiv 1701.04128).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def influence(
    run: Callable[[Tensor], Tensor], x: Tensor, *, causal: bool, projections: int = 4, seed: int = 0
) -> Tensor:
    """Mean |∂ output / ∂ input| by distance.

    Args:
        run: (B, L, D) -> (B, L, D), differentiable.
        x: (B, L, D), where the gradients are taken.
        causal: look at the last output and back from it; else at the middle one and both sides.
        projections: random directions of the output; more is less noisy.
        seed: of the directions.

    Returns:
        (distances,): |gradients| averaged over batch and channels, for distances 0, 1, 2, …

    >>> influence(lambda x: x + 0.5 * x.roll(1, 1), torch.zeros(1, 8, 4), causal=True)[:3] > 0
    tensor([ True,  True, False])
    """
    length = x.shape[1]
    at = length - 1 if causal else length // 2
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = run(x)[:, at]
        generator = torch.Generator().manual_seed(seed)
        total = torch.zeros(length, dtype=torch.float64)
        for i in range(projections):
            direction = torch.randn(y.shape, generator=generator).to(y)
            (gradient,) = torch.autograd.grad(
                (y * direction).sum(), x, retain_graph=i + 1 < projections
            )
            total += gradient.abs().double().mean((0, 2)).cpu()
    total /= projections
    behind = total[: at + 1].flip(0)
    if causal:
        return behind
    ahead = total[at:]
    size = min(len(behind), len(ahead))
    return torch.cat([behind[:1], (behind[1:size] + ahead[1:size]) / 2])
