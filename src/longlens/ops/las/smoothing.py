"""Smoothing as an average over the values: AP(A)·V = A·pool(V)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.transforms import exporting

SMOOTHINGS = ("causal", "centered", "masked")
EDGES = ("zero", "renormalize")


def reach(window: int, smoothing: str) -> tuple[int, int]:
    """Values before and after key k in its window: pool(v)_k averages k-before … k+after.

    For ``masked`` this is the complete window; keys near the query see less of it.
    """
    return (window - 1, 0) if smoothing == "causal" else (window // 2, window // 2)


def _sum_forward(x: Tensor, before: int, after: int) -> Tensor:
    """By doubling: log2(before + after + 1) additions.

    Doubling sums in pairs, so the rounding error does not grow along the sequence as it would with
    differences of a running sum.
    """
    n = x.shape[-2]
    if not exporting():  # where n may be any number
        before, after = min(before, n - 1), min(after, n - 1)
    length = before + after + 1
    power, size = F.pad(x, (0, 0, before, after)), 1  # sums of `size` rows from each row on
    total: Tensor | None = None
    covered = 0  # rows that `total` sums
    while True:
        if length & size:
            covered += size
            rows = n + length - covered
            if total is None:
                total = power
            else:
                total = total[..., :rows, :] + power[..., covered - size :, :]
        if covered == length:
            assert total is not None
            return total
        power, size = power[..., :-size, :] + power[..., size:, :], 2 * size


class _WindowSum(torch.autograd.Function):
    """Its adjoint is the same sum with the two sides exchanged, so it differentiates for ever."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, before: int, after: int) -> Tensor:
        return _sum_forward(x, before, after)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.sides = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        before, after = ctx.sides
        return window_sum(grads[0], after, before), None, None


def window_sum(x: Tensor, before: int, after: int) -> Tensor:
    """y_k = Σ x_j over j = k-before … k+after inside the sequence; x and y are (..., n, D)."""
    if x.shape[-2] == 0 or (before == 0 and after == 0):
        return x
    result: Tensor = _WindowSum.apply(x, before, after)  # type: ignore[no-untyped-call]
    return result


def pool_values(
    value: Tensor, window: int, smoothing: str, edge: str, key_mask: Tensor | None
) -> Tensor:
    """Average each value with its neighbours: (B, H, S, Dv) -> (B, H, S, Dv).

    Values at masked keys count as zero. With ``edge="zero"`` the divisor is `window` everywhere,
    with ``"renormalize"`` the number of real keys inside the window.
    """
    if key_mask is not None:
        value = value.masked_fill(~key_mask[:, None, :, None], 0)
    if window == 1:
        return value
    before, after = reach(window, smoothing)
    wide = value if value.dtype in (torch.float32, torch.float64) else value.float()
    total = window_sum(wide, before, after)
    if edge == "zero":
        return (total * (1.0 / window)).to(value.dtype)
    return (total / window_count(wide, before, after, key_mask)).to(value.dtype)


def window_count(value: Tensor, before: int, after: int, key_mask: Tensor | None) -> Tensor:
    """The number of real keys in each window, at least 1: (B or 1, 1, S, 1)."""
    if key_mask is None:
        real = value.new_ones(1, 1, value.shape[2], 1)
    else:
        real = key_mask[:, None, :, None].to(value.dtype)
    return window_sum(real, before, after).clamp(min=1)
