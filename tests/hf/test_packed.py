"""Packed sequences: each by itself, as in a padded batch; in training and in a prompt."""

import pytest
import torch
import transformers
from transformers import DataCollatorWithFlattening, DynamicCache

import longlens.hf
from tests.hf.tiny import COMMON, DECODER, TEXT

LENGTHS = (5, 1, 8)
FAMILIES = {
    "Llama": {},
    "Qwen3": dict(num_key_value_heads=2, head_dim=8),
    "Mistral": dict(sliding_window=None),
    "Phi3": dict(num_key_value_heads=2),
    "Olmo2": {},
    "GPTNeoX": {},
}


def make(family, **options):
    torch.manual_seed(1)
    settings = {**COMMON, **TEXT, **DECODER, **FAMILIES[family], "num_hidden_layers": 2}
    config = getattr(transformers, f"{family}Config")(**settings, attn_implementation="las")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    longlens.hf.configure(model, **dict(dict(bound=0.3, window=3), **options))
    return model


def sequences():
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, 50, (n,), generator=generator) for n in LENGTHS]


def padded(model, rows):
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]


def positions():
    return torch.cat([torch.arange(n) for n in LENGTHS])[None]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_logits_are_those_of_the_padded_batch(family):
    model, rows = make(family), sequences()
    expected = padded(model, rows)
    ids = torch.cat(rows)[None]
    close(model(ids, position_ids=positions(), use_cache=False).logits[0], expected)
    assert (model(ids, use_cache=False).logits[0] - expected).abs().max() > 0.01  # it matters


@pytest.mark.parametrize("reading", [dict(smoothing="masked"), dict(chunk=3), dict(window=1)])
@torch.no_grad()
def test_every_reading_is_packed(reading):
    model, rows = make("Llama", **reading), sequences()
    out = model(torch.cat(rows)[None], position_ids=positions(), use_cache=False).logits[0]
    close(out, padded(model, rows))


@torch.no_grad()
def test_rows_may_be_packed_in_different_ways():
    model, rows = make("Llama"), sequences()
    ids = torch.stack([torch.cat(rows), torch.cat(rows[::-1])])
    backwards = torch.cat([torch.arange(n) for n in LENGTHS[::-1]])[None]
    out = model(ids, position_ids=torch.cat([positions(), backwards]), use_cache=False).logits
    close(out[0], padded(model, rows))
    close(out[1], padded(model, rows[::-1]))


@torch.no_grad()
def test_a_packed_prompt_is_found_although_there_is_a_cache():
    model, rows = make("Llama"), sequences()
    cache = DynamicCache(config=model.config)
    ids = torch.cat(rows)[None]
    close(
        model(ids, position_ids=positions(), past_key_values=cache).logits[0], padded(model, rows)
    )
    # positions that jump without starting again are no packing
    jump = torch.cat([torch.arange(5), torch.arange(9, 18)])[None]
    cache, free = (DynamicCache(config=model.config) for _ in range(2))
    ones = torch.ones_like(ids)
    with_mask = model(ids, position_ids=jump, attention_mask=ones, past_key_values=free).logits
    close(model(ids, position_ids=jump, past_key_values=cache).logits, with_mask)


@pytest.mark.parametrize("kernel_arguments", [False, True])
@pytest.mark.parametrize("use_cache", [False, True])
def test_a_training_step_with_the_collator_of_transformers(kernel_arguments, use_cache):
    model, rows = make("Llama", learned_alpha=True).train(), sequences()
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=kernel_arguments)
    batch = collate([dict(input_ids=row.tolist()) for row in rows])
    losses = []
    for row in rows:  # each by itself, tokens weighed as in the packed batch
        if len(row) > 1:
            losses.append(model(row[None], labels=row[None]).loss * (len(row) - 1))
    expected = torch.stack(losses).sum() / (sum(LENGTHS) - len(LENGTHS))
    grads = torch.autograd.grad(expected, list(model.parameters()))
    loss = model(**batch, use_cache=use_cache).loss
    close(loss, expected)
    for a, b in zip(torch.autograd.grad(loss, list(model.parameters())), grads, strict=True):
        close(a, b)


@torch.no_grad()
def test_bounds_compile():
    torch._dynamo.reset()
    model, rows = make("Llama"), sequences()
    bounds = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    out = compiled(
        torch.cat(rows)[None], position_ids=positions(), use_cache=False, cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds, max_length_q=8, max_length_k=8,
    )  # fmt: skip
    close(out.logits[0], padded(model, rows))
    torch._dynamo.reset()


@torch.no_grad()
def test_packing_and_padding_do_not_go_together():
    model, rows = make("Llama"), sequences()
    ids = torch.cat(rows)[None]
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    bounds = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    with pytest.raises(ValueError, match="packed sequences go without padding"):
        model(ids, attention_mask=mask, cu_seq_lens_q=bounds, max_length_q=8)
