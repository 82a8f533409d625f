"""Smoothing by any filter along the keys after the softmax: a filter of the values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.smoothing import reach

SHAPES = ("box", "triangular", "gaussian")


def smoothing_taps(
    num_heads: int, window: int, shape: str = "box", one_sided: bool = True
) -> Tensor:
    """Filters that sum to 1, one per head: (num_heads, window), float32.

    ``box`` is LaS's average. One-sided, as causal smoothing wants them, ``triangular`` and
    ``gaussian`` are largest at the key itself, the first tap, and fall to its past; two-sided they
    are largest in the middle. The Gaussian's last tap lies two standard deviations away.

    >>> smoothing_taps(1, 3, "triangular")
    tensor([[0.5000, 0.3333, 0.1667]])
    >>> smoothing_taps(1, 3, "triangular", one_sided=False)
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    if shape not in SHAPES:
        raise ValueError(f"shape must be one of {SHAPES}, got {shape!r}")
    if num_heads < 1 or window < 1:
        raise ValueError(f"num_heads and window must be at least 1, got {num_heads} and {window}")
    middle = 0.0 if one_sided else (window - 1) / 2
    distances = [abs(place - middle) for place in range(window)]
    farthest = max(1.0, *distances) if window > 1 else 1.0
    if shape == "box":
        taps = [1.0] * window
    elif shape == "triangular":
        taps = [1 - d / (math.floor(farthest) + 1) for d in distances]
    else:
        taps = [math.exp(-0.5 * (2 * d / farthest) ** 2) for d in distances]
    return torch.tensor([[tap / sum(taps) for tap in taps]] * num_heads, dtype=torch.float32)


class _Filter(torch.autograd.Function):
    """y_k = Σ_n taps[n] x_{k+after-n}; its adjoint is the filter that runs the other way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, taps: Tensor, before: int, after: int) -> Tensor:
        return _filtered(x, taps, before, after)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, taps, *ctx.sides = inputs
        ctx.save_for_backward(x, taps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (x, taps), (before, after), grad = ctx.saved_tensors, ctx.sides, grads[0]
        d_x = d_taps = None
        if ctx.needs_input_grad[0]:
            d_x = _Filter.apply(grad, taps.flip(-1), after, before)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            n = x.shape[2]
            wide = F.pad(x, (0, 0, before, after))
            shares = [
                (wide[:, :, before + after - t : before + after - t + n] * grad).sum((0, 2, 3))
                for t in range(taps.shape[1])
            ]
            d_taps = torch.stack(shares, dim=-1)
        return d_x, d_taps, None, None


def _filtered(x: Tensor, taps: Tensor, before: int, after: int) -> Tensor:
    """Tap n of (H, P) reads `after - n` positions ahead of k, so the last `before` behind it."""
    n, last = x.shape[2], before + after
    wide = F.pad(x, (0, 0, before, after))
    total = wide[:, :, last : last + n] * taps[:, 0, None, None]
    for t in range(1, taps.shape[1]):
        # torch 2.11 compiles a result that was changed in place to zero gradients
        add = total.addcmul_ if t < last else total.addcmul
        total = add(wide[:, :, last - t : last - t + n], taps[:, t, None, None])
    return total


def filter_values(
    value: Tensor, taps: Tensor, smoothing: str, edge: str = "zero", key_mask: Tensor | None = None
) -> Tensor:
    """Filter each value with its neighbours: (B, H, S, Dv) and (H, P) -> (B, H, S, Dv).

    ``causal`` taps weigh the value itself first, then those before it; ``centered`` ones run from
    P//2 ahead to P//2 behind. Values at masked keys and beyond the ends count as zero; with
    ``edge="renormalize"`` the taps that found a value are scaled to the sum of all taps.

    >>> v = torch.tensor([1.0, 2.0, 4.0]).view(1, 1, 3, 1)
    >>> filter_values(v, torch.tensor([[0.5, 0.5]]), "causal").flatten()
    tensor([0.5000, 1.5000, 3.0000])
    """
    before, after = reach(taps.shape[1], smoothing)
    wide = torch.promote_types(value.dtype, torch.float32)
    taps = taps.to(wide)
    if key_mask is not None:
        value = value.masked_fill(~key_mask[:, None, :, None], 0)
    out: Tensor = _Filter.apply(value.to(wide), taps, before, after)  # type: ignore[no-untyped-call]
    if edge == "renormalize":
        real = taps.new_ones(1, value.shape[2]) if key_mask is None else key_mask.to(wide)
        real = real[:, None, :, None].expand(-1, taps.shape[0], -1, -1)
        found: Tensor = _Filter.apply(real, taps, before, after)  # type: ignore[no-untyped-call]
        whole = taps.sum(1)[:, None, None]
        out = out * (whole / torch.where(found == 0, whole, found))
    return out.to(value.dtype)
