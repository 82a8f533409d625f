"""A task of longlens under Lightning: pip install 'longlens[lab]' pytorch-lightning, then

    python examples/lightning_loop.py

The task: which of two marks comes first, some way apart (`far-order`). Two layers of LaS attention
learn it.
"""

from __future__ import annotations

import argparse
import tempfile

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from longlens import LaSAttention
from longlens.tasks import Batch, TaskDataset, load


class Classifier(lightning.LightningModule):
    """Tokens and their places, layers of LaS attention, a mean over real positions."""

    def __init__(self, vocab_size: int, num_classes: int, dim: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(256, dim)
        self.layers = nn.ModuleList(LaSAttention(dim, num_heads=4, causal=False) for _ in range(2))
        self.outputs = nn.Linear(dim, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L) to (B, num_classes)."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = x + layer(nn.functional.layer_norm(x, x.shape[-1:]), mask)
        return self.outputs(x.relu().mean(1))

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """One batch's loss; Lightning has moved it to the device."""
        return nn.functional.cross_entropy(self(batch.inputs, batch.mask), batch.targets)

    def validation_step(self, batch: Batch, _: int) -> None:
        """Count what is right, example by example."""
        right = self(batch.inputs, batch.mask).argmax(-1) == batch.targets
        self.log("accuracy", right.float().mean(), batch_size=len(right))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, as ever."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(argv: list[str] | None = None) -> float:
    """Train, print and return the accuracy on the validation split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args(argv)
    lightning.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as root:
        task = load("far-order", root, distance=16, train=4000, validation=500, test=500)
        data = {name: TaskDataset(task[name]) for name in ("train", "validation")}
        train, validation = (
            DataLoader(split, batch_size=50, shuffle=name == "train", collate_fn=split.collate)
            for name, split in data.items()
        )
        assert task.spec.vocab_size is not None and task.spec.num_classes is not None
        model = Classifier(task.spec.vocab_size, task.spec.num_classes)
        trainer = lightning.Trainer(
            max_epochs=given.epochs, accelerator="auto", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, train)
        accuracy = trainer.validate(model, validation, verbose=False)[0]["accuracy"]
    print(f"accuracy {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
