"""Tiny models of four architectures, made from their configurations, with weights that matter."""

import torch
import transformers

import longlens.hf
from longlens.hf.state import LaSState

# Large initial weights, or attention would be uniform and nothing could go wrong in it.
COMMON = dict(hidden_size=32, num_attention_heads=4, intermediate_size=48, initializer_range=0.4)
TEXT = dict(vocab_size=50, max_position_embeddings=256, pad_token_id=0)
DECODER = dict(num_key_value_heads=4, bos_token_id=1, eos_token_id=None)


def make(name, implementation="las", *, layers=2, dtype=torch.float64, **options):
    """A model in eval mode; `options` go to `configure`."""
    torch.manual_seed(1)
    common = dict(COMMON, num_hidden_layers=layers, attn_implementation=implementation)
    if name == "llama":
        config = transformers.LlamaConfig(**common, **TEXT, **DECODER)
        model = transformers.LlamaForCausalLM(config)
    elif name == "qwen2":  # grouped queries
        config = transformers.Qwen2Config(**common, **TEXT, **{**DECODER, "num_key_value_heads": 2})
        model = transformers.Qwen2ForCausalLM(config)
    elif name == "bert":
        config = transformers.BertConfig(**common, **TEXT)
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.ViTConfig(**common, image_size=20, patch_size=4, num_labels=7)
        model = transformers.ViTForImageClassification(config)
    model = model.to(dtype).eval()
    if implementation == "las" and options:
        longlens.hf.configure(model, **options)
    return model


def inputs(name, batch=2, length=13, dtype=torch.float64):
    if name == "vit":
        return dict(pixel_values=torch.randn(batch, 3, 20, 20, dtype=dtype))
    return dict(input_ids=torch.randint(1, 50, (batch, length)))


def pad(ids, side, count=5):
    """The same tokens with padding on one side, and the attention mask."""
    shape = (ids.shape[0], count)
    parts = [ids.new_zeros(shape), ids] if side == "left" else [ids, ids.new_zeros(shape)]
    real = [ids.new_zeros(shape), torch.ones_like(ids)]
    mask = torch.cat(real if side == "left" else real[::-1], dim=1)
    return dict(input_ids=torch.cat(parts, dim=1), attention_mask=mask)


def layers_of(model):
    """The states of LaS attention, in order."""
    return [m for m in model.modules() if isinstance(m, LaSState)]
