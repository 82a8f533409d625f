"""The decay rates α of the heads, and the factors that fold a decay into queries and keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.transforms import exporting

SPACINGS = ("uniform", "literal", "geometric")

# The largest α·n for which exp(±α·n/2) times ordinary activations stays a normal number in the
# tensors that hold it. docs/reliability.md says how large queries and keys may be. The scores above
# the diagonal may overflow: kernels compute and discard them. float16 has numbers down to 6e-8, and
# the fold makes them smaller by up to exp(α·n).
FOLD_RANGE = {
    torch.float64: 600.0,
    torch.float32: 72.0,
    torch.bfloat16: 72.0,
    torch.float16: 2.0,
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
    factor = _exact_factor(alpha, distance)
    return factor if dtype == torch.float64 else factor.float()


def _exact_factor(alpha: Tensor, distance: Tensor) -> Tensor:
    """In float64: in float32 rounding α·distance = 36 alone would cost five bits."""
    return torch.exp(-alpha.double()[:, None, None] * distance.double()[:, None])


class _Scaled(torch.autograd.Function):
    """x times a float64 factor (H, n, 1), whose gradient is summed in float64.

    The gradient of α is a difference of sums that are weighted by positions, so it keeps no more
    digits than these have.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: Tensor) -> Tensor:
        out = x * _per_row(factor, x)
        # torch 2.11 compiles an out.to(x.dtype) that changes nothing to zero gradients
        return out if out.dtype == x.dtype else out.to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, factor = ctx.saved_tensors
        row = _per_row(factor, x)
        d_factor = None
        if ctx.needs_input_grad[1]:
            products = grads[0].to(row.dtype) * x
            d_factor = products.sum((0, -1), keepdim=True, dtype=torch.float64)[0]
            if x.ndim == 5:
                d_factor = d_factor.sum(1)
        return (grads[0] * row).to(x.dtype), d_factor


def _per_row(factor: Tensor, x: Tensor) -> Tensor:
    factor = factor if x.dtype == torch.float64 else factor.float()
    return factor[:, None] if x.ndim == 5 else factor


def fold(x: Tensor, alpha: Tensor, distance: Tensor, exponent: int = 0) -> Tensor:
    """Scale row i by exp(-α·distance_i)·2^exponent: (B, H, n, D) or in groups (B, H, G, n, D).

    The factor is float32 (float64 for float64) and the product cast last, so that a low precision
    x is rounded a single time. A power of two keeps float16 away from overflow.
    """
    factor = _exact_factor(alpha, distance) * 2.0**exponent
    if not alpha.requires_grad:
        return (x * _per_row(factor, x)).to(x.dtype)
    scaled: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]
    return scaled


def fold_square(
    q: Tensor, k: Tensor, alpha: Tensor, alpha_max: float, scale: float, lag: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Fold exp(-α(i + lag - j)) into the rows of q and k about their middle; returns the new scale.

    Both have n rows, with α·n in range. `alpha` has one rate per head of q; k may have fewer heads
    if α is constant inside each group.
    """
    n = q.shape[-2]
    i = torch.arange(1 - n, n, 2, dtype=torch.float64, device=q.device) * 0.5
    exponent = 0
    if q.dtype == torch.float16:  # no factor above 1: no finite input can overflow
        reach = FOLD_RANGE[q.dtype] if exporting() else alpha_max * n  # where n may be any number
        exponent = -math.ceil(0.5 * reach / math.log(2))
    q_folded = fold(q, alpha, i + lag, exponent)
    k_folded = fold(k, alpha[:: q.shape[1] // k.shape[1]], -i, exponent)
    return q_folded, k_folded, scale * 4.0**-exponent
