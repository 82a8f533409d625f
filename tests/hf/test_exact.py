"""Models with LaS attention against an oracle, against SDPA, and with padding."""

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

import longlens.hf
from tests.hf.tiny import inputs, layers_of, make, pad
from tests.ops.las.oracle import oracle

MODELS = ("llama", "qwen2", "bert", "vit")
READINGS = [
    dict(bound=0.3, window=3),
    dict(bound=0.05, window=5, edge="renormalize", spacing="geometric"),
    dict(bound=2.0, window=1),
    dict(bound=0.3, window=3, chunk=4),
]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def oracle_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    state, causal = module.las, kwargs.get("is_causal", module.is_causal)
    out = oracle(
        *(t.detach().numpy() for t in (query, key, value)),
        alpha=state.alpha.double().numpy(),
        window=state.window,
        smoothing=state.smoothing or ("causal" if causal else "centered"),
        edge=state.edge,
        chunk=state.chunk,
        is_causal=causal,
        key_mask=None if attention_mask is None else attention_mask[:, 0, 0].numpy(),
        scale=scaling,
    )
    return torch.from_numpy(out).transpose(1, 2).contiguous(), None


def oracle_mask(attention_mask=None, **_):
    return None if attention_mask is None else attention_mask[:, None, None]


AttentionInterface.register("oracle", oracle_attention)
AttentionMaskInterface.register("oracle", oracle_mask)


def by_oracle(model, batch):
    """The logits with the oracle's attention, which starts from the same raw padding mask."""
    model.set_attn_implementation("oracle")
    logits = model(**batch).logits
    model.set_attn_implementation("las")
    return logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reading", READINGS, ids=str)
@torch.no_grad()
def test_logits_are_those_of_the_oracle(name, reading):
    model = make(name, layers=1, **reading)
    batch = inputs(name)
    logits = model(**batch).logits
    close(logits, by_oracle(model, batch))
    longlens.hf.configure(model, bound=0.0, window=1, chunk=None)
    assert (model(**batch).logits - logits).abs().max() > 0.1  # the options matter


@pytest.mark.parametrize("name", ["llama", "bert"])
@torch.no_grad()
def test_padded_logits_are_those_of_the_oracle(name):
    model = make(name, layers=1, bound=0.3, window=3, edge="renormalize")
    batch = pad(inputs(name)["input_ids"], "right")
    batch["attention_mask"][0, :3] = 0  # and the first row also on the left
    real = batch["attention_mask"].bool()
    close(model(**batch).logits[real], by_oracle(model, batch)[real])


@torch.no_grad()
def test_a_decoder_made_bidirectional_is_bidirectional():
    model = make("llama", layers=1, bound=0.3, window=3)
    batch = inputs("llama")
    causal = model(**batch).logits
    model.config.is_causal = False
    logits = model(**batch).logits
    close(logits, by_oracle(model, batch))
    assert (logits - causal).abs().max() > 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", [None, "left", "right"])
@torch.no_grad()
def test_without_decay_and_smoothing_it_is_sdpa(name, side):
    model = make(name, bound=0.0, window=1)
    batch = inputs(name)
    real = slice(None)
    if side and name != "vit":
        batch = pad(batch["input_ids"], side)
        real = batch["attention_mask"].bool()
    logits = model(**batch).logits[real]
    model.set_attn_implementation("sdpa")
    close(logits, model(**batch).logits[real])


@pytest.mark.parametrize("name", ["llama", "qwen2", "bert"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("reading", [*READINGS, dict(smoothing="causal")], ids=str)
@torch.no_grad()
def test_padding_does_not_change_real_tokens(name, side, reading):
    model = make(name, **reading)
    ids = inputs(name)["input_ids"]
    batch = pad(ids, side)
    # The model's own positions start with the first real token, as `generate` sees to.
    start = 5 if side == "left" else 0
    batch["position_ids"] = (torch.arange(18)[None] - start).clamp(min=0).expand(2, -1)
    close(model(**batch).logits[batch["attention_mask"].bool()], model(ids).logits.flatten(0, 1))


@torch.no_grad()
def test_layers_left_out_are_plain_attention():
    batch = inputs("llama")
    model = make("llama", layers=3)
    longlens.hf.configure(model, bound=0.3, window=3, layers=[1])
    assert [state.window for state in layers_of(model)] == [1, 3, 1]
    hidden = model(**batch, output_hidden_states=True).hidden_states
    model.set_attn_implementation("sdpa")
    plain = model(**batch, output_hidden_states=True).hidden_states
    close(hidden[1], plain[1])
    assert (hidden[2] - plain[2]).abs().max() > 0.1


@torch.no_grad()
def test_a_hybrid_model_gets_rates_in_its_attention_layers_only():
    import transformers

    torch.manual_seed(1)
    config = transformers.Lfm2Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4, pad_token_id=0,
        layer_types=["conv", "full_attention", "conv"], attn_implementation="las",
    )  # fmt: skip
    model = transformers.Lfm2ForCausalLM(config).double().eval()
    longlens.hf.configure(model, bound=0.3, window=3, layers=[1])  # 1 is the model's own index
    assert [name for name in model.state_dict() if name.endswith("las.alpha")] == [
        "model.layers.1.self_attn.las.alpha"
    ]
    assert layers_of(model)[0].window == 3
    ids = inputs("llama")["input_ids"]
    parts = [model(ids[:, :10], use_cache=True)]
    for i in range(10, 13):
        parts.append(model(ids[:, i : i + 1], past_key_values=parts[0].past_key_values))
    logits = torch.cat([part.logits for part in parts], dim=1)
    close(logits, model(ids, use_cache=False).logits)
