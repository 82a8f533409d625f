"""The decay rates α of the heads, and the factors that fold a decay into queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SPACINGS = ("uniform", "literal", "geometric")

# The largest α·n for which exp(±α·n/2) times ordinary activations stays a normal number, both in
# the tensors that hold it and in the scores above the diagonal, which kernels compute and discard.
FOLD_RANGE = {
    torch.float64: 600.0,
    torch.float32: 72.0,
    torch.bfloat16: 72.0,
    torch.float16: 6.0,
}


def decay_rates(
    num_heads: int,
    bound: float = 1e-3,
    spacing: str = "uniform",
    *,
    min: float | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the decay rate α of each head, shape (num_heads,), float32.

    Head 0 has α = 0 (plain attention) in every spacing; a single head gets [0]. With H heads,
    c = 1 … H-1:

    - ``uniform``: exp(-α_c) evenly spaced between 1 and exp(-bound), so α runs from 0 to `bound`;
    - ``literal``: exp(-α_c) = bound·(H-c)/(H-1), the paper's sentence to the letter: every decaying
      head then forgets within a step or two when `bound` is small;
    - ``geometric``: α_c = bound·2^-(H-1-c), or log-spaced from `min` to `bound` where `min` is
      given: heads of many scales.

    >>> decay_rates(5, bound=0.004)
    tensor([0.0000, 0.0010, 0.0020, 0.0030, 0.0040])
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    if spacing not in SPACINGS:
        raise ValueError(f"spacing must be one of {SPACINGS}, got {spacing!r}")
    if not (math.isfinite(bound) and bound >= 0):
        raise ValueError(f"bound must be a finite number >= 0, got {bound}")
    if spacing == "literal" and not 0 < bound <= 1:
        raise ValueError(f"bound must be in (0, 1] with spacing='literal', got {bound}")
    if min is not None and (spacing != "geometric" or not 0 < min <= bound):
        raise ValueError(
            f"min must be in (0, bound] and goes with spacing='geometric', got min={min}, "
            f"bound={bound}, spacing={spacing!r}"
        )
    c = torch.arange(1, num_heads, dtype=torch.float64)
    last = num_heads - 1
    if spacing == "uniform":
        # -log((1 - x) + x·exp(-bound)) with x = c/last, safe for a bound of any size
        alpha = -torch.logaddexp(torch.log1p(-c / last), torch.log(c / last) - bound)
    elif spacing == "literal":
        alpha = -torch.log(bound * (num_heads - c) / last)
    elif min is None:
        alpha = bound * torch.exp2(c - last)
    else:
        alpha = torch.logspace(
            math.log10(min), math.log10(bound), last, dtype=torch.float64
        )  # a single decaying head gets `min`
    return torch.cat([alpha.new_zeros(1), alpha.abs()]).to(device=device, dtype=torch.float32)


def decay_factor(alpha: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(-α·distance) for each head: (H,) and (n,) -> (H, n, 1), in float32 or float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.exp(-alpha.to(wide)[:, None, None] * distance.to(wide)[:, None])


def fold(x: Tensor, alpha: Tensor, distance: Tensor, exponent: int = 0) -> Tensor:
    """Scale row i by exp(-α·distance_i)·2^exponent: (B, H, n, D) or in groups (B, H, G, n, D).

    The factor is made in float32 (float64 for float64) and the product cast last, so that a low
    precision x is rounded a single time. A power of two keeps float16 away from overflow.
    """
    factor = decay_factor(alpha, distance, x.dtype) * 2.0**exponent
    if x.ndim == 5:
        factor = factor[:, None]
    return (x * factor).to(x.dtype)
