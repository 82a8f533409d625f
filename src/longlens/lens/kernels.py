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
from longlens.lens.convolution import LINEAR, Convolution, Run, check
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
    return [_two_sided("kernel", layer, layer.causal, layer.skip.detach(), layer.kernel)]


def _two_sided(
    part: str, run: Run, causal: bool, skip: Tensor, kernel: Callable[[int], Any]
) -> Convolution:
    """A convolution by a function of the length that gives taps of the past and of the future."""
    ahead = None if causal else lambda length: kernel(length)[1].detach()
    return Convolution(
        part, len(skip), run, causal, skip, lambda length: kernel(length)[0].detach(), ahead
    )


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
            to_itself=lambda length: taps(length, "dn,nl,nd->dl"),
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

    return _two_sided("kernel", by_steps if causal else by_transform, causal, skip, kernel)


def _plain(part: str, taps: Tensor, skip: Tensor | None = None) -> Convolution:
    """A convolution with explicit taps (D, K), causal."""
    width, size = taps.shape
    skip = torch.zeros(width, dtype=taps.dtype) if skip is None else skip

    def run(x: Tensor) -> Tensor:
        return fft_conv(x, taps) + skip * x

    def padded(length: int) -> Tensor:
        return F.pad(taps, (0, max(0, length - size)))[:, :length]

    return Convolution(part, width, run, True, skip, padded)


def _h3(layer: H3) -> list[Convolution]:
    shift = _plain("shift", layer.shift_taps.detach())
    return [_stepped(layer.kernel, layer.skip.detach(), True), shift]


def _hyena(layer: Hyena) -> list[Convolution]:
    filters = layer.filter(layer.filter.max_length).detach()
    return [
        _plain(f"filter {n + 1}", filters[n], layer.skip[n].detach()) for n in range(len(filters))
    ]


def _tnn(layer: TNN) -> list[Convolution]:
    def taps(length: int) -> tuple[Tensor, Tensor]:
        order = torch.arange(length + 1, dtype=torch.float64)
        return layer.kernel(order[:-1]), layer.kernel(-order[1:])

    return [_by_taps("kernel", layer.causal, layer.coefficients.out_features, taps)]


def _by_taps(part: str, causal: bool, width: int, taps: Callable[[int], Any]) -> Convolution:
    """A convolution without a skip, of taps that the layer holds or computes."""

    def run(x: Tensor) -> Tensor:
        sides = taps(x.shape[1])
        return fft_conv(x, sides[0], None if causal else sides[1])

    return _two_sided(part, run, causal, torch.zeros(width, dtype=torch.float64), taps)


def _short(layer: ShortConv) -> list[Convolution]:
    weight = layer.depthwise.weight.detach()[:, 0].flip(-1)  # nearest the present first
    width, size = weight.shape
    ahead = 0 if layer.causal else (size - 1) // 2

    def run(x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (size - 1 - ahead, ahead))
        y: Tensor = F.conv1d(padded, layer.depthwise.weight, groups=width)
        return y.transpose(1, 2)

    def taps(length: int) -> tuple[Tensor, Tensor]:
        sides = weight[:, ahead:], weight[:, :ahead].flip(-1)
        past, future = (F.pad(side, (0, length))[:, :length] for side in sides)
        return past, future

    none = torch.zeros(width, dtype=torch.float64)
    return [_two_sided("kernel", run, layer.causal, none, taps)]


def _toeplitz(layer: GMLP) -> list[Convolution]:
    if not layer.toeplitz:
        return []
    taps = layer.spatial.detach()
    return [_by_taps("matrix", layer.causal, taps.shape[1], lambda length: taps[..., :length])]


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
