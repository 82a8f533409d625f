"""LaS attention under Hugging Face Accelerate: pip install 'longlens[finetune]', then

    python examples/accelerate_loop.py
    accelerate launch examples/accelerate_loop.py             # as your configuration says

The task: which of two halves of a noisy sequence holds the larger mean.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from longlens import LaSAttention


class Classifier(nn.Module):
    """One layer of LaS attention that sees both directions, then a mean and a linear map."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(2, dim), nn.Linear(dim, 2)
        self.attention = LaSAttention(dim, num_heads=4, causal=False, learned_alpha=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L) to (B, 2)."""
        place = torch.linspace(-1, 1, x.shape[1], device=x.device).expand_as(x)
        h = self.inputs(torch.stack([x, place], -1))
        return self.outputs((h + self.attention(h)).relu().mean(1))


def main(argv: list[str] | None = None) -> float:
    """Train, print and return the accuracy on sequences of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args(argv)
    torch.manual_seed(0)
    x = torch.randn(1024, 64)
    y = (x[:, 32:].mean(1) > x[:, :32].mean(1)).long()
    accelerator = Accelerator()
    model = Classifier()
    model, optimizer, train = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0),
        DataLoader(TensorDataset(x[:768], y[:768]), batch_size=64, shuffle=True),
    )
    for _ in range(given.epochs):
        for inputs, labels in train:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    with torch.no_grad():
        found = model(x[768:].to(accelerator.device)).argmax(-1).cpu()
    accuracy = (found == y[768:]).float().mean().item()
    accelerator.print(f"accuracy {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
