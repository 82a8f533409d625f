"""Fine-tune a Hugging Face model after its attention was switched to LaS.

    pip install 'longlens[hf]'
    python examples/finetune_huggingface.py
    python examples/finetune_huggingface.py --model gpt2      # any causal model of the Hub

Without ``--model`` a tiny Llama is first trained with plain attention, so that the example needs
no download. Switching makes it worse at once, since it has learned to attend without decay and
smoothing; a few steps of fine-tuning bring it back.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import longlens.hf

LENGTH = 48


def text(size: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Sequences that count upwards from anywhere, with a token of noise in every eight."""
    start = torch.randint(1, vocabulary, (size, 1), generator=generator)
    tokens = (start + torch.arange(LENGTH)) % (vocabulary - 1) + 1
    noise = torch.randint(1, vocabulary, tokens.shape, generator=generator)
    return torch.where(torch.rand(tokens.shape, generator=generator) < 1 / 8, noise, tokens)


def train(model: PreTrainedModel, steps: int, lr: float, generator: torch.Generator) -> None:
    """Plain next-token training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        tokens = text(16, model.config.vocab_size, generator)
        loss = model(tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


@torch.no_grad()
def loss_of(model: PreTrainedModel) -> float:
    """The loss on sequences of their own."""
    tokens = text(64, model.config.vocab_size, torch.Generator().manual_seed(99))
    return float(model(tokens, labels=tokens).loss)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Switch, fine-tune, print, and return the losses by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model of the Hub, or a folder")
    parser.add_argument("--steps", type=int, default=60, help="of fine-tuning")
    given = parser.parse_args(argv)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if given.model:
        model = AutoModelForCausalLM.from_pretrained(given.model)
    else:
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_attention_heads=4, **sizes))
        train(model, 150, 3e-3, generator)
    losses = {"plain attention": loss_of(model)}

    model.set_attn_implementation("las")
    longlens.hf.configure(model, bound=1e-2, window=3)
    losses["switched to LaS"] = loss_of(model)
    train(model, given.steps, 1e-3, generator)
    losses["after fine-tuning"] = loss_of(model)
    for name, value in losses.items():
        print(f"{name:18} loss {value:.3f}")
    return losses


if __name__ == "__main__":
    main()
