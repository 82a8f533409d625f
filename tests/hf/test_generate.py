"""Caches and generation: whatever holds the keys, the tokens and logits are those without it."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.hf.test_exact import close
from tests.hf.tiny import inputs, make, pad

READINGS = [
    dict(bound=0.3, window=3),
    dict(bound=0.05, window=5, smoothing="masked", edge="renormalize"),
    dict(bound=0.3, window=4, edge="renormalize", chunk=6),
    dict(bound=0.0, window=1),
]


def cache_of(kind, model):
    if kind == "dynamic":
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=32)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_cache_changes_nothing(kind, name, reading, padded):
    model = make(name, **reading)
    ids = inputs(name, length=15)["input_ids"]
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0  # rows of different lengths, one of them padded on the left
    cache = cache_of(kind, model)
    logits = []
    for start, stop in [(0, 6), (6, 10), *((i, i + 1) for i in range(10, 15))]:
        step = dict(attention_mask=mask[:, :stop]) if padded else {}
        logits.append(model(ids[:, start:stop], past_key_values=cache, **step).logits)
    full = model(ids, attention_mask=mask, use_cache=False).logits
    close(torch.cat(logits, dim=1)[mask.bool()], full[mask.bool()])


@pytest.mark.parametrize("reading", READINGS, ids=str)
@torch.no_grad()
def test_generation_with_a_cache_equals_generation_without(reading):
    model = make("qwen2", **reading)
    alone = inputs("qwen2", batch=1, length=9)
    shorter = pad(alone["input_ids"][:, :5], "left", count=4)
    batch = dict(
        input_ids=torch.cat([alone["input_ids"], shorter["input_ids"]]),
        attention_mask=torch.cat([torch.ones(1, 9, dtype=torch.long), shorter["attention_mask"]]),
    )
    settings = dict(
        max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    plain = model.generate(**batch, use_cache=False, **settings)
    assert len(set(plain.sequences[0, 9:].tolist())) > 1  # no single token all over
    for cache in ("dynamic", "static"):
        other = model.generate(**batch, cache_implementation=cache, **settings)
        assert torch.equal(other.sequences, plain.sequences)
        close(torch.stack(other.logits), torch.stack(plain.logits))
    single = model.generate(**alone, **settings)  # the neighbour in the batch does not matter
    assert torch.equal(single.sequences[0], plain.sequences[0])


@torch.no_grad()
def test_beam_search_reorders_the_cache():
    model = make("llama", bound=0.3, window=3)
    batch = inputs("llama", length=7)
    settings = dict(max_new_tokens=6, do_sample=False, num_beams=3)
    assert torch.equal(
        model.generate(**batch, **settings), model.generate(**batch, use_cache=False, **settings)
    )
