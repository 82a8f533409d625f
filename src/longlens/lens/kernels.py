"""The convolutions inside a layer: their kernels, exactly, and proof that they are convolutions.

A layer's convolution is found by its kind; its kernel is the layer's own where it has a formula
for one, else the response to an impulse. :func:`check` compares what the layer computes on random
input with the sum over the kernel's taps, so a layer that is not linear and time-invariant cannot
pass for one.

Shapes: B batch, L length, D channels, K taps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.conv import ShortConv
from longlens.layers.convolution import DiagonalKernel, LongConvolution
from longlens.layers.diagonal import DiagonalRecurrence
from longlens.layers.gmlp import GMLP
from longlens.layers.gss import GSS
from longlens.layers.h3 import H3
from longlens.layers.hyena import Hyena
from longlens.layers.mega import DampedEMA, Mega
from longlens.layers.tnn import TNN
from longlens.ops.conv import fft_conv
from longlens.ops.ema import ema_reference

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
        kernel = self.kernel(length)
        return kernel.diagonal(dim1=0, dim2=1).T if self.mixes else kernel


@torch.no_grad()
def impulse_response(part: Convolution, length: int) -> Tensor:
    """What a 1 at the first position becomes, skip included: (D, length) or (D, D, length).

    >>> from longlens.layers import build
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
    >>> check(convolutions(build("mega", 4))[0]) < 1e-12
    True
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, length, part.width, dtype=torch.float64, generator=generator)
    order = torch.arange(length)
    distance = order[:, None] - order
    past = part.with_skip(length)[..., distance.clamp_min(0)] * (distance >= 0)
    if part.ahead is not None:
        future = part.ahead(length)[..., (-distance - 1).clamp_min(0)]
        past = past + future * (distance < 0)
    form = "oeij,bje->bio" if part.mixes else "dij,bjd->bid"
    expected, found = torch.einsum(form, past, x), part.run(x)
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-300))


def convolutions(layer: nn.Module, width: int | None = None) -> list[Convolution]:
    """The convolutions inside a layer, in order; an empty list where there is none.

    Args:
        layer: any mixer; it is copied, not changed.
        width: the layer's D. With it, a causal layer of an unknown kind (your own) is tried as a
            whole: where it turns out linear and time-invariant, its impulse response is its kernel.

    >>> from longlens.layers import build
    >>> [part.part for part in convolutions(build("h3", 4))], convolutions(build("las", 8))
    (['shift', 'kernel'], [])
    """
    layer = copy.deepcopy(layer).cpu().double().eval()
    for kind, find in _FINDERS.items():
        if isinstance(layer, kind):
            return find(layer)
    if width is None or not getattr(layer, "causal", False):
        return []
    none = torch.zeros(width, dtype=torch.float64)
    whole = Convolution("whole layer", width, layer, True, none, mixes=True)
    return [whole] if check(whole) < LINEAR else []


def _long(layer: Any) -> list[Convolution]:
    layer.mix = nn.Identity()  # the activation and projection that follow
    both = not layer.causal
    return [
        Convolution(
            "kernel",
            len(layer.skip),
            layer,
            layer.causal,
            layer.skip.detach(),
            lambda length: layer.kernel(length)[0].detach(),
            (lambda length: layer.kernel(length)[1].detach()) if both else None,
        )
    ]


def _recurrence(layer: Any) -> list[Convolution]:
    layer.activate = lambda y: y

    def ahead(length: int) -> Tensor:
        ratio, b, c = layer.discrete()
        powers = ratio[:, None] ** torch.arange(1, length + 1)
        return torch.einsum("on,nl,ne->oel", c[1], powers, b).real.detach()

    def taps(length: int) -> Tensor:
        ratio, b, c = layer.discrete()
        powers = ratio[:, None] ** torch.arange(length)
        kernel = torch.einsum("on,nl,ne->oel", c[0], powers, b).real
        if not layer.causal:  # both scans see the present
            kernel[..., 0] += (c[1] @ b).real
        return kernel.detach()

    both = not layer.causal
    skip = layer.skip.detach()
    return [
        Convolution(
            "kernel", len(skip), layer, layer.causal, skip, taps, ahead if both else None, True
        )
    ]


def _average(ema: DampedEMA) -> list[Convolution]:
    both = ema.alpha.shape[0] == 2
    skip = ema.skip.detach()

    def run(x: Tensor) -> Tensor:  # the recurrence that defines the average, step by step
        y = ema_reference(x, *ema.rates()) + skip * x
        return y + ema_reference(x.flip(1), *ema.rates(1)).flip(1) if both else y

    def powers(direction: int, exponent: Tensor) -> Tensor:
        alpha, delta, beta, eta = ema.rates(direction)
        power = (1 - alpha * delta)[..., None] ** exponent
        return ((eta * alpha * beta)[..., None] * power).sum(1).detach()

    def taps(length: int) -> Tensor:
        kernel = powers(0, torch.arange(length))
        if both:
            kernel[:, 0] += powers(1, torch.zeros(1))[:, 0]
        return kernel

    def ahead(length: int) -> Tensor:
        return powers(1, torch.arange(1, length + 1))

    return [Convolution("average", len(skip), run, not both, skip, taps, ahead if both else None)]


def _stepped(kernel: DiagonalKernel, skip: Tensor, causal: bool) -> Convolution:
    """The state space of a gated layer, by its recurrence where it has one direction."""

    def by_steps(x: Tensor) -> Tensor:
        state, outputs = kernel.initial_state(len(x)), []
        for u in x.unbind(1):
            y, state = kernel.step(u, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1) + skip * x

    def by_transform(x: Tensor) -> Tensor:
        past, future = kernel(x.shape[1])
        return fft_conv(x, past, future) + skip * x

    return Convolution(
        "kernel",
        len(skip),
        by_steps if causal else by_transform,
        causal,
        skip,
        lambda length: kernel(length)[0].detach(),
        None if causal else (lambda length: kernel(length)[1].detach()),
    )


def _plain(part: str, taps: Tensor, skip: Tensor | None = None) -> Convolution:
    """A convolution with explicit taps (D, K), causal."""
    width, size = taps.shape
    skip = torch.zeros(width, dtype=taps.dtype) if skip is None else skip

    def run(x: Tensor) -> Tensor:
        return fft_conv(x, taps) + skip * x

    def own(length: int) -> Tensor:
        return F.pad(taps, (0, max(0, length - size)))[:, :length]

    return Convolution(part, width, run, True, skip, own)


def _h3(layer: H3) -> list[Convolution]:
    shift = _plain("shift", layer.shift_taps.detach())
    return [shift, _stepped(layer.kernel, layer.skip.detach(), True)]


def _hyena(layer: Hyena) -> list[Convolution]:
    filters = layer.filter(layer.filter.max_length).detach()
    return [
        _plain(f"filter {n + 1}", filters[n], layer.skip[n].detach()) for n in range(layer.order)
    ]


def _tnn(layer: TNN) -> list[Convolution]:
    width = layer.coefficients.out_features

    def taps(length: int) -> Tensor:
        return layer.kernel(torch.arange(length, dtype=torch.float64)).detach()

    def ahead(length: int) -> Tensor:
        return layer.kernel(-torch.arange(1, length + 1, dtype=torch.float64)).detach()

    def run(x: Tensor) -> Tensor:
        length = x.shape[1]
        return fft_conv(x, taps(length), None if layer.causal else ahead(length))

    none = torch.zeros(width, dtype=torch.float64)
    return [
        Convolution("kernel", width, run, layer.causal, none, taps, None if layer.causal else ahead)
    ]


def _short(layer: ShortConv) -> list[Convolution]:
    weight = layer.depthwise.weight.detach()[:, 0].flip(-1)  # nearest the present first
    width, size = weight.shape
    ahead = 0 if layer.causal else (size - 1) // 2

    def run(x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (size - 1 - ahead, ahead))
        y: Tensor = F.conv1d(padded, layer.depthwise.weight, groups=width)
        return y.transpose(1, 2)

    def reach(taps: Tensor, length: int) -> Tensor:
        return F.pad(taps, (0, max(0, length - taps.shape[1])))[:, :length]

    return [
        Convolution(
            "kernel",
            width,
            run,
            layer.causal,
            torch.zeros(width, dtype=torch.float64),
            lambda length: reach(weight[:, ahead:], length),
            (lambda length: reach(weight[:, :ahead].flip(-1), length)) if ahead else None,
        )
    ]


def _toeplitz(layer: GMLP) -> list[Convolution]:
    if not layer.toeplitz:
        return []
    taps = layer.spatial.detach()
    groups = taps.shape[1]

    def run(x: Tensor) -> Tensor:
        return fft_conv(x, taps[0], None if layer.causal else taps[1])

    return [
        Convolution(
            "matrix",
            groups,
            run,
            layer.causal,
            torch.zeros(groups, dtype=torch.float64),
            lambda length: taps[0, :, :length],
            None if layer.causal else (lambda length: taps[1, :, :length]),
        )
    ]


_FINDERS: dict[type[nn.Module], Callable[[Any], list[Convolution]]] = {
    LongConvolution: _long,
    DiagonalRecurrence: _recurrence,
    Mega: lambda layer: _average(layer.ema),
    DampedEMA: _average,
    GSS: lambda layer: [_stepped(layer.kernel, layer.skip.detach(), layer.causal)],
    H3: _h3,
    Hyena: _hyena,
    TNN: _tnn,
    ShortConv: _short,
    GMLP: _toeplitz,
}
