"""What LaS attention cannot do raises, and says what is possible instead."""

import importlib
import sys

import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

import longlens.hf
from tests.hf.tiny import COMMON, TEXT, inputs, make


def test_a_missing_or_old_transformers_is_named(monkeypatch):
    import longlens.hf._requirements as requirements

    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.3.1")
    with pytest.raises(ImportError, match=r"transformers 5\.4 or later, got 5\.3\.1"):
        importlib.reload(requirements)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'longlens\[hf\]'"):
        importlib.reload(requirements)


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'windows'.*bound, spacing, window, smoothing, edge"):
        longlens.hf.configure(make("llama"), windows=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(window=0), "window must be an integer >= 1"),
        (dict(spacing="even"), "spacing must be one of"),
        (dict(edge="wrap"), "edge must be one of"),
        (dict(bound=-1.0), "bound must be a finite number"),
        (dict(smoothing="centered", window=3), "ahead of it.*'causal' or 'masked'"),
        (dict(chunk=0), "chunk must be None or an integer"),
        (dict(layers=[0, 7]), r"layers must be among \[0, 1\], got 7"),
    ],
)
def test_wrong_options_change_nothing(options, message):
    model = make("llama", bound=0.2)
    before = model.config.las_attention
    with pytest.raises(ValueError, match=message):
        longlens.hf.configure(model, **options)
    assert model.config.las_attention == before
    assert model.model.layers[0].self_attn.las.alpha_max == pytest.approx(0.2)


def test_encoders_have_no_masked_smoothing_and_odd_windows():
    with pytest.raises(ValueError, match="masked"):
        longlens.hf.configure(make("bert"), smoothing="masked")
    with pytest.raises(ValueError, match="window must be odd"):
        longlens.hf.configure(make("vit"), window=4)


def test_a_mask_of_another_kind_than_the_layer_says_is_refused():
    model = make("bert")  # makes a bidirectional mask whatever the caller says
    with pytest.raises(ValueError, match="BertSelfAttention says that it is causal, but its mask"):
        model(**inputs("bert"), is_causal=True)


def test_attention_dropout_is_refused_in_training_only():
    model = make("bert")  # BERT's configuration asks for 0.1 by default
    model(**inputs("bert"))
    with pytest.raises(ValueError, match=r"no dropout, got 0\.1.*attention_probs_dropout_prob"):
        model.train()(**inputs("bert"))


def test_explicit_masks_are_refused():
    model, batch = make("llama"), inputs("llama")
    for mask in (torch.zeros(2, 1, 13, 13), torch.ones(2, 1, 13, 13, dtype=torch.bool)):
        with pytest.raises(ValueError, match="never an explicit mask"):
            model(**batch, attention_mask=mask)
    with pytest.raises(ValueError, match="never an explicit mask"):
        make("bert")(**inputs("bert"), attention_mask=torch.ones(2, 13, 13))


def test_cross_attention_is_refused():
    config = transformers.BertConfig(**COMMON, **TEXT, num_hidden_layers=1)
    config.is_decoder = config.add_cross_attention = True
    model = transformers.BertLMHeadModel(config)
    with pytest.raises(ValueError, match="self-attention only"):
        model.set_attn_implementation("las")


def test_a_model_that_does_not_use_las_cannot_be_configured():
    with pytest.raises(ValueError, match=r"set_attn_implementation\('las'\) first"):
        longlens.hf.configure(make("llama", "sdpa"), window=3)
    with pytest.raises(ValueError, match="PreTrainedModel, got Linear"):
        longlens.hf.configure(torch.nn.Linear(2, 2), window=3)


def test_an_implementation_set_behind_our_back_is_noticed():
    model = make("llama", "sdpa")
    model.config._attn_implementation = "las"
    with pytest.raises(ValueError, match="has no decay rates"):
        model(**inputs("llama"))


def test_a_configuration_with_an_unknown_entry_is_refused(tmp_path):
    model = make("llama", dtype=torch.float32)
    model.config.las_attention = dict(window=3, colour="red")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="unknown option 'colour'"):
        LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="las")
