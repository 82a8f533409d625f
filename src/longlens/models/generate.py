"""Generation with causal language models, by recurrence or cache where the mixers have one."""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.models.backbone import sees_ahead
from longlens.models.build import Model


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token per row: logits (B, V) -> (B,).

    Args:
        logits: (B, V).
        temperature: 0 takes the most likely token.
        top_k: draw among the k most likely tokens only.
        generator: source of randomness.

    >>> sample(torch.tensor([[0.0, 5.0]]), temperature=0)
    tensor([1])
    """
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        lowest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0]


@torch.no_grad()
def generate(
    model: Model,
    prompt: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop_token: int | None = None,
    use_cache: bool | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue prompts of one common length.

    Args:
        model: a model with ``head="language"``.
        prompt: (B, L) tokens, L at least 1.
        max_new_tokens: how many tokens to add at most.
        temperature: 0 always takes the most likely token.
        top_k: draw among the k most likely tokens only.
        stop_token: a row that produced it is filled up with it; all rows done ends generation.
        use_cache: continue from states (needs ``step`` in every mixer) or run the whole sequence
            anew for every token; None: from states where every mixer has them.
        generator: source of randomness.

    Returns:
        (B, L + new) tokens, the prompt included.

    >>> from longlens.config import ModelConfig
    >>> model = Model(ModelConfig(mixer="lru", dim=8, depth=1, vocab_size=5, head="language"))
    >>> generate(model, torch.tensor([[1, 2]]), 3).shape
    torch.Size([1, 5])
    """
    if prompt.ndim != 2 or prompt.shape[1] < 1:
        raise ValueError(f"prompt must be (B, L) with L at least 1, got {tuple(prompt.shape)}")
    mixers = model.backbone.mixers()
    if any(map(sees_ahead, mixers)):
        raise ValueError("generation needs mixers that never see ahead; build a causal model")
    if model.config.head not in ("language", "denoising"):
        raise ValueError(f"generation needs head='language', got head={model.config.head!r}")
    if use_cache is None:
        use_cache = all(hasattr(mixer, "step") for mixer in mixers)
    was_training = model.training
    model.eval()
    try:
        tokens, state, fresh = prompt, None, prompt
        done = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
        for _ in range(max_new_tokens):
            if use_cache:
                logits, state = model.advance(fresh, state)
            else:
                logits = model(tokens)
            new = sample(logits[:, -1], temperature=temperature, top_k=top_k, generator=generator)
            if stop_token is not None:
                new = torch.where(done, stop_token, new)
                done = done | (new == stop_token)
            fresh = new[:, None]
            tokens = torch.cat([tokens, fresh], dim=1)
            if stop_token is not None and bool(done.all()):
                break
        return tokens
    finally:
        model.train(was_training)
