"""LaS attention in a model and a training loop of your own: no part of longlens but the layer.

    python examples/training_loop.py
    python examples/training_loop.py --window 1 --bound 0     # plain attention, for comparison

The task: tokens of ten kinds, and the label is the token that came right after the only 0. The
model has no positions other than what a causal mask gives it, so it has to find out what "right
after" means. Smoothing helps: a key's averaged value holds its neighbours' too.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longlens import LaSAttention

KINDS, LENGTH = 10, 64


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens (B, L), with one 0 each, and the token behind it (B,)."""
    tokens = torch.randint(1, KINDS, (size, LENGTH), generator=generator)
    place = torch.randint(LENGTH - 1, (size, 1), generator=generator)
    return tokens.scatter(1, place, 0), tokens.gather(1, place + 1)[:, 0]


class Block(nn.Module):
    """Attention and a small network, each with a norm before it."""

    def __init__(self, dim: int, window: int, bound: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.attention = LaSAttention(dim, num_heads=4, window=window, bound=bound)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) to (B, L, D)."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Classifier(nn.Module):
    """Two blocks; the last position is read."""

    def __init__(self, window: int, bound: float, dim: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(KINDS, dim)
        self.blocks = nn.Sequential(*(Block(dim, window, bound) for _ in range(2)))
        self.head = nn.Linear(dim, KINDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) to (B, classes)."""
        return self.head(self.blocks(self.embed(tokens))[:, -1])


def main(argv: list[str] | None = None) -> float:
    """Train, print, and return the last accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--bound", type=float, default=1e-2)
    given = parser.parse_args(argv)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Classifier(given.window, given.bound)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    accuracy = 0.0
    for step in range(1, given.steps + 1):
        tokens, labels = batch(64, generator)
        logits = model(tokens)
        loss = cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == given.steps:
            with torch.no_grad():
                tokens, labels = batch(512, generator)  # never seen before
                accuracy = float((model(tokens).argmax(-1) == labels).float().mean())
            print(f"step {step}  loss {float(loss.detach()):.3f}  accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
