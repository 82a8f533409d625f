"""The rates and options live with the model: saved, loaded, cast, copied, trained."""

import copy

import pytest
import torch
from transformers import AutoConfig, LlamaForCausalLM

import longlens.hf
from longlens import decay_rates
from tests.hf.tiny import inputs, layers_of, make


def rates(model):
    return torch.stack([state.alpha.detach() for state in layers_of(model)])


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
@torch.no_grad()
def test_save_and_load_keep_rates_options_and_logits(tmp_path, name, learned):
    model = make(name, dtype=torch.float32, bound=0.2, window=3, learned_alpha=learned, layers=2)
    for state in layers_of(model):
        state.alpha = type(state.alpha)(torch.rand(4) * 0.3)  # not what the options would make
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(rates(loaded), rates(model))
    assert layers_of(loaded)[0].learned_alpha == learned
    assert layers_of(loaded)[0].alpha_max >= rates(loaded)[0].max()
    assert loaded.config.las_attention == model.config.las_attention
    assert AutoConfig.from_pretrained(tmp_path).las_attention["window"] == 3
    batch = inputs(name, dtype=torch.float32)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_a_checkpoint_without_rates_gets_them(tmp_path):
    make("llama", "sdpa", dtype=torch.float32).save_pretrained(tmp_path)
    model, report = LlamaForCausalLM.from_pretrained(
        tmp_path, attn_implementation="las", output_loading_info=True
    )
    assert torch.equal(rates(model), decay_rates(4).expand(2, 4))
    assert not report["missing_keys"] and not report["unexpected_keys"]


def test_a_model_saved_with_las_says_so_when_loaded_as_softmax(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(longlens.hf.models.logger, "warning_once", heard.append)
    make("llama", dtype=torch.float32).save_pretrained(tmp_path)
    LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert "attn_implementation='las'" in heard[0]


@pytest.mark.parametrize("learned", [False, True])
def test_low_precision_does_not_round_the_rates(tmp_path, learned):
    model = make("llama", dtype=torch.float32, bound=0.2, learned_alpha=learned)
    exact = rates(model)
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(
        tmp_path, attn_implementation="las", dtype=torch.bfloat16
    )
    for cast in (loaded, model.to(torch.bfloat16), copy.deepcopy(model).half()):
        assert cast.lm_head.weight.dtype in (torch.bfloat16, torch.float16)
        assert rates(cast).dtype == torch.float32 and torch.equal(rates(cast), exact)
    model.double()
    assert torch.equal(rates(model).float(), exact)
    loaded.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="las")
    assert again.dtype == torch.bfloat16 and torch.equal(rates(again), exact)
    assert again(**inputs("llama")).logits.dtype == torch.bfloat16


def test_state_dicts_carry_the_rates():
    one, other = make("llama", bound=0.2), make("llama", bound=0.5)
    other.load_state_dict(one.state_dict())
    assert torch.equal(rates(other), rates(one))
    assert layers_of(other)[0].alpha_max == pytest.approx(0.2)


def test_switching_an_existing_model_there_and_back():
    model = make("llama", "sdpa")
    batch = inputs("llama")
    plain = model(**batch).logits
    model.set_attn_implementation("las")
    assert torch.equal(rates(model), decay_rates(4).expand(2, 4))
    assert model.config.las_attention["window"] == 5
    assert (model(**batch).logits - plain).abs().max() > 0.1
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(**batch).logits, plain)


def test_configure_changes_what_it_is_given():
    model = make("llama", bound=0.2, window=3)
    longlens.hf.configure(model, edge="renormalize", learned_alpha=True)
    state = layers_of(model)[0]
    assert (state.window, state.edge) == (3, "renormalize")
    with torch.no_grad():
        state.alpha.mul_(0.5)
    kept = rates(model)
    longlens.hf.configure(model, learned_alpha=False, window=7)
    assert torch.equal(rates(model), kept) and not list(layers_of(model)[0].parameters())
    longlens.hf.configure(model, bound=0.1)
    assert torch.equal(rates(model), decay_rates(4, 0.1).expand(2, 4))
    assert model.config.las_attention == dict(
        bound=0.1, spacing="uniform", window=7, smoothing=None, edge="renormalize",
        learned_alpha=False, chunk=None, layers=None,
    )  # fmt: skip


def test_configure_leaves_an_optimizer_and_frozen_rates_what_they_are():
    model = make("llama", bound=0.02, learned_alpha=True)
    layers_of(model)[0].alpha.requires_grad_(False)
    before = [state.alpha for state in layers_of(model)]
    longlens.hf.configure(model, window=3)
    assert all(s.alpha is alpha for s, alpha in zip(layers_of(model), before, strict=True))
    assert [state.alpha.requires_grad for state in layers_of(model)] == [False, True]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_fine_tuning_step_moves_weights_and_learned_rates(checkpointing):
    model = make("qwen2", bound=0.02, window=3, learned_alpha=True).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    before = rates(model)
    ids = inputs("qwen2")["input_ids"]
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert all((state.alpha.grad[1:] != 0).all() for state in layers_of(model))
    optimizer.step()
    assert not torch.equal(rates(model), before)
    with torch.no_grad():
        assert model(ids, labels=ids).loss < loss


def test_fixed_rates_are_no_parameters():
    model = make("llama")
    assert not [name for name, _ in model.named_parameters() if "las" in name]
