"""A convolution inside a layer, its response to an impulse, and the check that it is one.

:func:`check` compares what the layer computes on random input with the sum over the kernel's taps,
so what is not linear and time-invariant cannot pass for it.

Shapes: B batch, L length, D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Run = Callable[[Tensor], Tensor]
LINEAR = 1e-9  # the largest relative error of a convolution in float64, with room


@dataclass(frozen=True)
class Convolution:
    """A linear, time-invariant part of a layer, in float64."""

    part: str
    """What it is in the layer: "kernel", "average", "filter 1" …"""
    width: int
    """D, its channels."""
    run: Run
    """(B, L, D) -> (B, L, D) as the layer computes it, without what follows; skip included."""
    causal: bool
    skip: Tensor
    """What is added to the tap of the present, (D,)."""
    taps: Callable[[int], Tensor] | None = None
    """The layer's own formula for past and present: length -> (D, length)."""
    ahead: Callable[[int], Tensor] | None = None
    """The same for the future, nearest first: length -> (D, length)."""
    mixes: bool = False
    """Every output channel sees every input channel: kernels are (D, D, length), out first."""
    to_itself: Callable[[int], Tensor] | None = None
    """Where channels mix, the formula from each channel to itself: length -> (D, length)."""

    @torch.no_grad()
    def kernel(self, length: int) -> Tensor:
        """Taps of the present and the past, without the skip: (D, length) or (D, D, length)."""
        if self.taps is not None:
            return self.taps(length)
        kernel = impulse_response(self, length)
        channel = torch.arange(self.width)
        if self.mixes:
            kernel[channel, channel, 0] -= self.skip
        else:
            kernel[:, 0] -= self.skip
        return kernel

    def with_skip(self, length: int) -> Tensor:
        """As :meth:`kernel`, with the skip in the first tap."""
        kernel = self.kernel(length).clone()
        if self.mixes:
            kernel.diagonal(dim1=0, dim2=1)[0] += self.skip
        else:
            kernel[:, 0] += self.skip
        return kernel

    def channels(self, length: int) -> Tensor:
        """One kernel a channel, (D, length): where channels mix, from each to itself."""
        if self.to_itself is not None:
            return self.to_itself(length)
        kernel = self.kernel(length)
        return kernel.diagonal(dim1=0, dim2=1).T if self.mixes else kernel


@torch.no_grad()
def impulse_response(part: Convolution, length: int) -> Tensor:
    """What a 1 at the first position becomes, skip included: (D, length) or (D, D, length).

    >>> from longlens.layers import build
    >>> from longlens.lens.kernels import convolutions
    >>> (part,) = convolutions(build("s4d", 4, state=4))
    >>> torch.allclose(impulse_response(part, 8), part.with_skip(8), atol=1e-12)
    True
    """
    batch = part.width if part.mixes else 1
    x = torch.zeros(batch, length, part.width, dtype=torch.float64)
    if part.mixes:  # one input channel at a time
        x[:, 0] = torch.eye(part.width, dtype=torch.float64)
        return part.run(x).permute(2, 0, 1).contiguous()
    x[:, 0] = 1
    return part.run(x)[0].T.contiguous()


@torch.no_grad()
def check(part: Convolution, length: int = 48, seed: int = 0) -> float:
    """How far the part is from the convolution with its kernel, relative to its output.

    Random input goes through the layer's own computation and through an explicit sum over taps.
    Agreement means that it is linear and time-invariant and that the kernel is right.

    >>> from longlens.layers import build
    >>> from longlens.lens.kernels import convolutions
    >>> check(convolutions(build("mega", 4))[0]) < 1e-12
    True
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, length, part.width, dtype=torch.float64, generator=generator)
    form = "oe,bje->bjo" if part.mixes else "d,bjd->bjd"
    past, expected = part.with_skip(length), torch.zeros_like(x)
    for t in range(length):
        expected[:, t:] += torch.einsum(form, past[..., t], x[:, : length - t])
    if part.ahead is not None:
        future = part.ahead(length)
        for t in range(1, length):
            expected[:, : length - t] += torch.einsum(form, future[..., t - 1], x[:, t:])
    output = part.run(x)
    return float((output - expected).abs().max() / expected.abs().max().clamp_min(1e-300))
