"""The convolutions inside every layer of the zoo: where they are, and their kernels, exactly.

A layer's convolution is found by its kind; its kernel is the layer's own formula, a layer of an
unknown kind is tried by its response to an impulse (see ``longlens.lens.convolution``).

Shapes: B batch, L length, D channels, K taps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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
from longlens.lens.convolution import LINEAR, Convolution, check
from longlens.ops.conv import fft_conv
from longlens.ops.ema import ema_reference


def convolutions(layer: nn.Module, width: int | None = None) -> list[Convolution]:
    """The convolutions inside a layer, the longest first; an empty list where there is none.

    Args:
        layer: any mixer; it is copied, not changed.
        width: the layer's D. With it, a causal layer of an unknown kind (your own) is tried as a
            whole: where it turns out linear and time-invariant, its impulse response is its kernel.

    >>> from longlens.layers import build
    >>> [part.part for part in convolutions(build("h3", 4))], convolutions(build("las", 8))
    (['kernel', 'shift'], [])
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

    def terms(form: str, direction: int, exponent: Tensor) -> Tensor:
        ratio, b, c = layer.discrete()
        powers = ratio[:, None] ** exponent
        return torch.einsum(form, c[direction], powers, b).real.detach()

    def taps(length: int, form: str = "on,nl,ne->oel") -> Tensor:
        kernel = terms(form, 0, torch.arange(length))
        if not layer.causal:  # both scans see the present
            kernel[..., :1] += terms(form, 1, torch.zeros(1))
        return kernel

    def ahead(length: int) -> Tensor:
        return terms("on,nl,ne->oel", 1, torch.arange(1, length + 1))

    return [
        Convolution(
            "kernel",
            len(layer.skip),
            layer,
            layer.causal,
            layer.skip.detach(),
            taps,
            None if layer.causal else ahead,
            mixes=True,
            own=lambda length: taps(length, "dn,nl,nd->dl"),
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
    return [_stepped(layer.kernel, layer.skip.detach(), True), shift]


def _hyena(layer: Hyena) -> list[Convolution]:
    filters = layer.filter(layer.filter.max_length).detach()
    return [
        _plain(f"filter {n + 1}", filters[n], layer.skip[n].detach()) for n in range(len(filters))
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
