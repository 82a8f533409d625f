"""A time series: predict the next value from the past ones, with any mixer of the zoo.

    python examples/time_series.py
    python examples/time_series.py --mixer s4d

The series is two waves of periods that do not fit each other, and noise. The model sees 128 values
and predicts the next one at every position. Its error is put beside a guess that needs no model,
the value before. Noise alone leaves an error of 0.04.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

from longlens.layers import MIXERS, build, options_of
from longlens.models.backbone import sees_ahead

LENGTH, PERIODS, NOISE = 128, (24.0, 37.0), 0.2


def series(count: int, generator: torch.Generator) -> Tensor:
    """``count`` pieces of L + 1 values, (B, L + 1, 1), at random phases."""
    time = torch.arange(LENGTH + 1)
    value = NOISE * torch.randn(count, LENGTH + 1, generator=generator)
    for period in PERIODS:
        phase = 2 * math.pi * torch.rand(count, 1, generator=generator)
        value = value + torch.sin(2 * math.pi * time / period + phase)
    return value[..., None]


class Forecaster(nn.Module):
    """Two residual mixers between two linear maps; causal, so each position predicts the next."""

    def __init__(self, mixer: str, dim: int = 32) -> None:
        super().__init__()
        self.read = nn.Linear(1, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        causal = {"bidirectional": False} if "bidirectional" in options_of(mixer) else {}
        self.mixers = nn.ModuleList([build(mixer, dim, **causal) for _ in range(2)])
        if any(map(sees_ahead, self.mixers)):
            raise ValueError(f"{mixer} sees the values that it is to predict; take a causal mixer")
        self.write = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, 1) to (B, L, 1)."""
        x = self.read(x)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.write(x)


def error(predicted: Tensor, true: Tensor) -> float:
    """The mean squared error over the second half, where much of the past is known."""
    half = LENGTH // 2
    return float((predicted[:, half:] - true[:, half:]).square().mean())


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Train, print, and return the errors by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixer", default="las", choices=sorted(MIXERS), metavar="KEY")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args(argv)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Forecaster(given.mixer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(given.steps):
        values = series(32, generator)
        loss = (model(values[:, :-1]) - values[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    values = series(256, generator)
    past, future = values[:, :-1], values[:, 1:]
    with torch.no_grad():
        errors = {
            given.mixer: error(model(past), future),
            "the value before": error(past, future),
        }
    for name, value in errors.items():
        print(f"{name:18} mean squared error {value:.3f}")
    return errors


if __name__ == "__main__":
    main()
