"""Diagonal linear recurrence with constant coefficients, in parallel; the loop beside it.

    h_t = a · h_{t-1} + b_t

Shapes: B batch, L sequence length, N state. The parallel form does linear work in O(log L) depth:
chunks of 32 steps are scanned by doubling, the chunk ends by the same function one level up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.ops.numerics import full_precision, no_autocast

_CHUNK = 32


def _doubling(a: Tensor, b: Tensor) -> Tensor:
    """Scan dimension -2 by doubling: after step k each entry sums its last 2^k inputs."""
    shift = 1
    while shift < b.shape[-2]:
        b = torch.cat([b[..., :shift, :], b[..., shift:, :] + a * b[..., :-shift, :]], dim=-2)
        a = a * a
        shift *= 2
    return b


def _scan(a: Tensor, b: Tensor) -> Tensor:
    batch, length, width = b.shape
    if length <= _CHUNK:
        return _doubling(a, b)
    chunks = -(-length // _CHUNK)
    padding = b.new_zeros(batch, chunks * _CHUNK - length, width)
    local = _doubling(a, torch.cat([b, padding], dim=1).view(batch, chunks, _CHUNK, width))
    # Powers by repeated products, not a ** t: exact for a = 0 and cheap for complex numbers.
    powers = _doubling(a, torch.cat([a[None], a.new_zeros(_CHUNK - 1, width)], dim=0))
    carry = _scan(powers[-1], local[:, :-1, -1])
    carry = torch.cat([b.new_zeros(batch, 1, width), carry], dim=1)
    out = local + powers * carry[:, :, None]
    return out.reshape(batch, chunks * _CHUNK, width)[:, :length]


class _DiagonalScan(torch.autograd.Function):
    """Keeps only h for the backward pass, which is the same scan run from the other end."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return _scan(a, b.view_as(b))  # of one step b itself comes out, which autograd refuses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        grad_b = _scan(a.conj(), grads[0].flip(1)).flip(1)
        grad_a = (h[:, :-1].conj() * grad_b[:, 1:]).sum(dim=(0, 1))
        return grad_a, grad_b


def diagonal_scan(a: Tensor, b: Tensor) -> Tensor:
    """All states of h_t = a · h_{t-1} + b_t from h_{-1} = 0.

    Args:
        a: (N,) real or complex.
        b: (B, L, N) of the same kind.

    Returns:
        (B, L, N).

    >>> diagonal_scan(torch.tensor([0.5]), torch.ones(1, 4, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    if a.ndim != 1 or b.ndim != 3 or b.shape[-1] != a.shape[0]:
        raise ValueError(
            f"a must be (N,) and b (B, L, N), got a {tuple(a.shape)} and b {tuple(b.shape)}"
        )
    with no_autocast(b):
        a, b = full_precision(a), full_precision(b)
        kind = torch.promote_types(a.dtype, b.dtype)
        out: Tensor = _DiagonalScan.apply(a.to(kind), b.to(kind))  # type: ignore[no-untyped-call]
    return out


def scan_reference(a: Tensor, b: Tensor) -> Tensor:
    """The recurrence step by step: the specification of :func:`diagonal_scan`.

    >>> scan_reference(torch.tensor([0.5]), torch.ones(1, 3, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    h = torch.zeros_like(b[:, 0])
    states = []
    for t in range(b.shape[1]):
        h = a * h + b[:, t]
        states.append(h)
    return torch.stack(states, dim=1)
