"""Numbers that say what a kernel looks like: how it decays, how smooth it is, how far it reaches.

All of them are free of the kernel's scale. A *kernel* is a weight for every distance 0, 1, 2, …,
signed or not; its *mass* at a distance is the absolute value there, over the sum of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longlens.lens.theorem import check_kernel
from longlens.runs.record import rounded

FLOOR = 1e-6  # what lies this far below the largest weight is no part of a decay or a picture


@dataclass(frozen=True)
class Measures:
    """What is measured on one kernel."""

    decay_rate: float | None
    """a of the exponential exp(-a·distance) fitted to the envelope; None: fewer than two points."""
    fit: float | None
    """R² of that fit, in logarithms: near 1 the decay is exponential."""
    half_distance: int
    """The nearest distance within which half of the mass lies."""
    reach_90: int
    """The same for 90 % of the mass."""
    total_variation: float
    """Σ|k[d+1] - k[d]| over max|k|: 1 for a monotone fall to 0, 2 more for every full swing."""
    spectral_centroid: float
    """Mean frequency in cycles a position, by power: 0 for a constant, 0.25 for white noise."""
    entropy: float
    """Of the mass, in nats; its exponential counts the positions that matter."""
    mass_beyond: dict[str, float]
    """Share of the mass at distances larger than the key."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded to six significant digits."""
        plain: dict[str, Any] = rounded(vars(self))
        return plain


def thresholds(length: int) -> list[int]:
    """The distances of ``mass_beyond``: 16, 64, 256, … below ``length`` (1 and 4 where short).

    >>> thresholds(1024), thresholds(16)
    ([16, 64, 256], [1, 4])
    """
    distances = [4**i for i in range(2, 12) if 4**i < length]
    return distances or [d for d in (1, 4) if d < length]


def decay_fit(kernel: Tensor) -> tuple[float, float] | tuple[None, None]:
    """Rate and R² of an exponential fitted to a kernel (K,) by least squares in logarithms.

    Fitted is the envelope, the largest absolute value from each distance on, as far as it is above
    1e-6 of its start: an oscillating kernel decays as its swings do.

    >>> rate, fit = decay_fit(torch.exp(-0.05 * torch.arange(100.0)))
    >>> round(rate, 4), round(fit, 4)
    (0.05, 1.0)
    """
    envelope = kernel.double().abs().flip(0).cummax(0).values.flip(0)
    inside = envelope > FLOOR * envelope[0]
    y = torch.log(envelope[inside])
    if len(y) < 2:
        return None, None
    x = torch.arange(len(y), dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    slope = float((x * y).sum() / (x * x).sum())
    total = float((y * y).sum())
    rest = float(((y - slope * x) ** 2).sum())
    return max(0.0, -slope), 1.0 if total == 0 else 1 - rest / total


def measure(kernel: Tensor) -> Measures:
    """Measure one kernel (K,), tap 0 at distance 0.

    Raises:
        ValueError: for a kernel that is not one row of finite taps, or all zeros.

    >>> flat = measure(torch.ones(64))
    >>> flat.decay_rate, flat.half_distance, flat.total_variation, flat.mass_beyond
    (0.0, 31, 0.0, {'16': 0.734375})
    """
    check_kernel(kernel, dimensions=(1,))
    kernel = kernel.detach().cpu().double()
    size = kernel.abs()
    if float(size.max()) == 0:
        raise ValueError(f"kernel must not be zero everywhere, got {len(kernel)} zeros")
    mass = size / size.sum()
    within = mass.cumsum(0)
    rate, fit = decay_fit(kernel)
    power = torch.fft.rfft(kernel).abs() ** 2
    frequency = torch.arange(len(power), dtype=torch.float64) / len(kernel)
    return Measures(
        decay_rate=rate,
        fit=fit,
        half_distance=_reach(within, 0.5),
        reach_90=_reach(within, 0.9),
        total_variation=float(kernel.diff().abs().sum() / size.max()),
        spectral_centroid=float((frequency * power).sum() / power.sum()),
        entropy=float(torch.special.entr(mass).sum()),
        mass_beyond={str(d): max(0.0, float(mass[d + 1 :].sum())) for d in thresholds(len(kernel))},
    )


def _reach(within: Tensor, share: float) -> int:
    """The first distance at which the cumulated mass is ``share``, rounding left aside."""
    return int((within < share - 1e-12).sum())


def thin(profile: Tensor, points: int = 64) -> list[list[float]]:
    """A profile (K,) as at most ``points`` pairs [distance, weight], denser near 0.

    Weights below 1e-6 of the largest become 0: on a logarithmic axis they would hide all others.

    >>> thin(torch.tensor([0.5, 0.25, 0.25]))
    [[0, 0.5], [1, 0.25], [2, 0.25]]
    """
    profile = profile * (profile.abs() >= FLOOR * profile.abs().max())
    last = len(profile) - 1
    if last < points:
        chosen = list(range(last + 1))
    else:  # the first quarter one by one, the rest in equal ratios
        start = points // 4
        steps = points - start - 1
        ratio = math.log(last / start) / steps
        far = (round(start * math.exp(ratio * i)) for i in range(steps + 1))
        chosen = sorted({*range(start), *far})
    return [[d, float(f"{float(profile[d]):.4g}")] for d in chosen]
