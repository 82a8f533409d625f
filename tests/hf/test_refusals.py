"""Models and calls that would be wrong without a word are refused, by name."""

import copy
import subprocess
import sys

import pytest
import torch
import transformers
from transformers import BartConfig, BertConfig, GPT2Config, ViTConfig

import longlens.hf
from longlens.hf.mask import LaSMask
from tests.hf.sweep import build
from tests.hf.tiny import COMMON, DECODER, TEXT, inputs, layers_of, make
from tests.hf.tiny_configs import tiny_config

WITHOUT_INTERFACE = {
    "bloom": "BloomModel",
    "falcon": "FalconModel",
    "gptj": "GPTJModel",
    "gpt_neo": "GPTNeoForCausalLM",
    "codegen": "CodeGenModel",
    "mpnet": "MPNetModel",
    "big_bird": "BigBirdModel",
}
BART = dict(
    vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, pad_token_id=0, init_std=0.4,
)  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), WITHOUT_INTERFACE.items())
def test_classes_with_an_attention_of_their_own_are_refused_by_name(kind, name, tmp_path):
    cls = getattr(transformers, name)
    with pytest.raises(ValueError, match=f"{name} cannot take attn_implementation='las'"):
        build(cls, tiny_config(kind), "las")
    model = build(cls, tiny_config(kind), "eager")
    with pytest.raises(ValueError, match=f"{name} cannot take attn_implementation='las'"):
        model.set_attn_implementation("las")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{name} cannot take attn_implementation='las'"):
        cls.from_pretrained(tmp_path, attn_implementation="las")


def test_a_class_of_ones_own_with_its_own_attention_is_refused():
    class MyAttention(torch.nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    class MyModel(transformers.LlamaPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.attention = MyAttention()
            self.post_init()

    with pytest.raises(ValueError, match=r"MyModel cannot take .* \(MyAttention\)"):
        build(MyModel, tiny_config("llama"), "las")


def test_a_switch_that_leaves_a_part_out_is_refused():
    model = build(transformers.GotOcr2Model, tiny_config("got_ocr2"), "eager")
    with pytest.raises(ValueError, match=r"GotOcr2\w* cannot take attn_implementation='las'"):
        model.set_attn_implementation("las")


def test_models_without_attention_are_left_alone():
    build(transformers.ResNetModel, tiny_config("resnet"), "las")


def test_a_layer_without_mask_must_be_bidirectional():
    layer = make("llama").model.layers[0].self_attn
    x, angles = torch.randn(1, 5, 32).double(), torch.ones(2, 1, 5, 8).double()
    with pytest.raises(ValueError, match="LlamaAttention got no attention mask and says it is"):
        layer(x, tuple(angles), attention_mask=None)
    del layer.is_causal
    with pytest.raises(ValueError, match="does not say whether it is causal"):
        layer(x, tuple(angles), attention_mask=None)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda mask: torch.zeros(2, 1, 5, 5) + mask,
        lambda mask: torch.where(mask, 0.0, 1.0),
        lambda mask: torch.zeros(2, 5).masked_fill(mask, 0.0),
        lambda mask: mask[:, :, :, :5],
        lambda mask: mask.to(torch.float32),
        lambda mask: mask.bool(),
    ],
)
def test_nobody_else_can_read_the_mask(misuse):
    mask = LaSMask(batch=2, queries=5, keys=5, causal=True)
    with pytest.raises((ValueError, AttributeError), match="reads the attention mask"):
        misuse(mask)


def test_a_mask_for_other_lengths_is_refused():
    layer = make("llama").model.layers[0].self_attn
    x, angles = torch.randn(1, 5, 32).double(), torch.ones(2, 1, 5, 8).double()
    with pytest.raises(ValueError, match="one of 4 queries and 4 keys, but this layer has 5 and 5"):
        layer(x, tuple(angles), attention_mask=LaSMask(1, 4, 4, causal=True))


@torch.no_grad()
def test_a_mask_that_no_layer_uses_is_no_reason_to_refuse():
    config = transformers.Gemma3TextConfig(
        **COMMON, **TEXT, **DECODER, num_hidden_layers=2, head_dim=8, sliding_window=4,
        layer_types=["full_attention"] * 2, attn_implementation="las",
    )  # fmt: skip
    transformers.Gemma3ForCausalLM(config)(**inputs("llama"))
    config = copy.deepcopy(config)
    config.use_bidirectional_attention, config.sliding_window = True, 4
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="asks for a mask pattern of its own"):
        transformers.Gemma3ForCausalLM(config)(**inputs("llama"))


@torch.no_grad()
def test_cross_attention_is_refused_at_equal_lengths_too():
    with pytest.raises(ValueError, match=r"self-attention only, and Bart.*encoder_attn.*'las_enc"):
        transformers.BartModel(BartConfig(**BART, attn_implementation="las"))
    decoder = transformers.BartForCausalLM(BartConfig(**BART, attn_implementation="las")).eval()
    ids = torch.randint(3, 50, (2, 7))
    decoder(ids)
    with pytest.raises(ValueError, match="BartAttention got key_value_states"):
        decoder(ids, encoder_hidden_states=torch.randn(2, 7, 32))


@torch.no_grad()
def test_the_encoder_alone_has_las_attention(tmp_path):
    config = BartConfig(**BART, attn_implementation="las_encoder")
    model = transformers.BartForConditionalGeneration(config).eval()
    longlens.hf.configure(model, bound=0.3, window=3)
    assert len(layers_of(model)) == len(layers_of(model.model.encoder)) == 1
    batch = dict(input_ids=torch.randint(3, 50, (2, 9)), decoder_input_ids=torch.ones(2, 4).long())
    logits = model(**batch).logits
    model.save_pretrained(tmp_path)
    loaded = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**batch).logits, logits)
    model.set_attn_implementation("sdpa")
    assert (model(**batch).logits - logits).abs().max() > 1e-3
    model.set_attn_implementation("las_encoder")
    torch.testing.assert_close(model(**batch).logits, logits)
    encoder = model.model.encoder
    states = encoder(batch["input_ids"]).last_hidden_state
    model.set_attn_implementation("sdpa")
    plain = model(encoder_outputs=(states,), decoder_input_ids=batch["decoder_input_ids"]).logits
    torch.testing.assert_close(plain, logits)  # the decoder is as with SDPA


@torch.no_grad()
def test_an_encoder_with_a_configuration_of_its_own_may_have_las_attention():
    common = dict(COMMON, num_hidden_layers=1)
    encoder = ViTConfig(**common, image_size=20, patch_size=4)
    decoder = BertConfig(**common, **TEXT, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    model.set_attn_implementation({"encoder": "las", "decoder": "sdpa"})
    assert len(layers_of(model)) == len(layers_of(model.encoder)) == 1
    ids = torch.randint(1, 50, (2, 5))
    model(pixel_values=torch.randn(2, 3, 20, 20), decoder_input_ids=ids)
    with pytest.raises(ValueError, match="self-attention only"):
        model.set_attn_implementation("las")


@torch.no_grad()
def test_attention_weights_are_refused_everywhere():
    for name in ("llama", "bert", "vit"):
        with pytest.raises(ValueError, match="attention weights as output"):
            make(name)(**inputs(name), output_attentions=True)
    config = GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, attn_implementation="las")
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(ValueError, match=r"attention weights.*GPT2LMHeadModel"):
        gpt2.generate(
            **inputs("llama"), max_new_tokens=2, output_attentions=True, pad_token_id=0,
            return_dict_in_generate=True,
        )  # fmt: skip
    with pytest.raises(ValueError, match="output_attentions"):
        gpt2.config.output_attentions = True


def test_a_checkpoint_is_not_evaluated_as_softmax_where_longlens_is_missing(tmp_path):
    make("llama", dtype=torch.float32, bound=0.2, window=3).save_pretrained(tmp_path)
    code = (
        "import sys, transformers\n"
        "try:\n"
        f"    transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\n"
        "except ValueError as problem:\n"
        "    assert 'longlens' not in sys.modules\n"
        "    print(problem)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'Specified `attn_implementation="las"` is not supported' in out.stdout
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)  # and here it is LaS
    assert model.config._attn_implementation == "las" and layers_of(model)[0].window == 3


def test_saving_leaves_the_configuration_as_it_was(tmp_path):
    model = make("llama", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert not hasattr(model.config, "attn_implementation")
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
