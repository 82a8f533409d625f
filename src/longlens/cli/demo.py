"""`longlens demo`: softmax and LaS attention on a small generated task, on a CPU, with a table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longlens.cli.measure import peak_mebibytes
from longlens.layers.attention import LaSAttention, SoftmaxAttention

PERIODS = (6.0, 8.0, 11.0, 15.0)
NOISE = 0.7


def waves(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy sines of random phase, (count, length, 1), and which of four periods each has.

    Every period gives the same set of values, so the class lies in their order alone: in how
    neighbours go together, which is what a local and smooth bias looks at.

        x    0.1  0.9  0.4 -0.6 -1.2  0.3 …      y  0 (period 6)
    """
    y = torch.randint(len(PERIODS), (count,), generator=generator)
    phase = torch.rand(count, 1, generator=generator)
    angle = torch.arange(length) / torch.tensor(PERIODS)[y, None] + phase
    noise = NOISE * torch.randn(count, length, generator=generator)
    return (torch.sin(2 * torch.pi * angle) + noise)[..., None], y


class Classifier(nn.Module):
    """A pre-norm Transformer without positional encoding, mean pooling, one logit a class."""

    def __init__(self, mixers: Sequence[nn.Module], dim: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(1, dim)
        self.mixers = nn.ModuleList(mixers)
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
            )
            for _ in mixers
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in mixers)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, 1) -> (B, classes)."""
        x = self.embed(x)
        for norm, mixer, mlp in zip(self.norms, self.mixers, self.mlps, strict=True):
            x = x + mixer(norm(x))
            x = x + mlp(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    name: str
    accuracy: float
    seconds: float
    peak_mib: float
    parameters: int


def train(name: str, *, steps: int, length: int, dim: int, batch: int, seed: int) -> Result:
    """Train one model, printing its progress, and test it on fresh sequences."""
    torch.manual_seed(seed)
    kind = {"softmax": SoftmaxAttention, "LaS": LaSAttention}[name]
    model = Classifier([kind(dim, 4) for _ in range(2)], dim, len(PERIODS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    every = max(1, steps // 5)

    def step() -> float:
        x, y = waves(batch, length, generator)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return float(loss.detach())

    start = time.perf_counter()
    for i in range(1, steps):
        loss = step()
        if i % every == 0:
            rate = i * batch * length / (time.perf_counter() - start)
            print(
                f"  {name:<8} step {i:>4}/{steps}  loss {loss:.3f}  {rate:,.0f} tokens/s",
                flush=True,
            )
    peak = peak_mebibytes(step, torch.device("cpu"))
    seconds = time.perf_counter() - start
    x, y = waves(1000, length, torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        right = (model(x).argmax(-1) == y).float().mean()
    return Result(
        name, 100 * float(right), seconds, peak, sum(p.numel() for p in model.parameters())
    )


def table(results: Sequence[Result]) -> str:
    """The results as aligned text."""
    lines = [f"{'attention':<11}{'accuracy':>10}{'time':>9}{'peak memory':>14}{'parameters':>13}"]
    lines += [
        f"{r.name:<11}{r.accuracy:>8.1f} %{r.seconds:>7.1f} s{r.peak_mib:>10.0f} MiB"
        f"{r.parameters:>13,}"
        for r in results
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Entry of `longlens demo`."""
    parser = argparse.ArgumentParser(
        prog="longlens demo",
        description="Train softmax and LaS attention to tell the periods of noisy waves.",
    )
    parser.add_argument("--steps", type=int, default=200, help="training steps (default 200)")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence (default 256)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    options = parser.parse_args(list(argv))
    for name in ("steps", "length"):
        if getattr(options, name) < 2:
            raise ValueError(f"{name} must be at least 2, got {getattr(options, name)}")
    print(f"Noisy waves of {options.length} samples, four periods; chance is 25 %.")
    results = [
        train(name, steps=options.steps, length=options.length, dim=64, batch=32, seed=options.seed)
        for name in ("softmax", "LaS")
    ]
    print("\n" + table(results))
    print(
        "\nNeither has a positional encoding, and both have the same parameters: LaS adds a decay"
    )
    print("of the scores and an average over five positions, nothing that is learned.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
