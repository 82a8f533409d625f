"""Sliding windows, chunks, sinks and capped scores, layer by layer, with every kind of cache."""

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

import longlens.hf
import tests.hf.eager_las  # noqa: F401, registers its attention
from longlens.hf.mask import LaSMask
from tests.hf.sweep import build, give_weights
from tests.hf.tiny_configs import tiny_config

DECODERS = {
    "mistral": "MistralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",  # soft-capping
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",  # sinks
    "olmo3": "Olmo3ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",  # chunks
    "modernbert-decoder": "ModernBertDecoderForCausalLM",
}
# before, ModernBERT's attention does not go through transformers' interface
modern = pytest.mark.skipif(
    tuple(int(n) for n in transformers.__version__.split(".")[:2]) < (5, 17), reason="too old"
)
READINGS = [
    dict(bound=0.3, window=3),
    dict(bound=0.05, window=5, smoothing="masked", edge="renormalize"),
]
LOCAL = ("sliding_attention", "chunked_attention")


def close(a, b):
    """Norms and rotations of these models are float32, so a last bit may cost as much."""
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def make(kind, implementation="las", **reading):
    config = tiny_config(kind)
    types = getattr(config, "layer_types", None)
    if types is not None:  # both kinds of layers, in turns
        local = next((t for t in types if t in LOCAL), LOCAL[kind == "llama4_text"])
        config.layer_types = [local, "full_attention"]
    config.eos_token_id, config.pad_token_id = None, 0
    cls = getattr(transformers, DECODERS.get(kind, "ModernBertForMaskedLM"))
    torch.manual_seed(1)
    model = build(cls, config, implementation).double().eval()
    give_weights(model)
    if reading:
        longlens.hf.configure(model, **reading)
    return model


def tokens(batch=2, length=21, padded=True):
    ids = torch.randint(6, 60, (batch, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0
    return dict(input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("kind", [*DECODERS, pytest.param("modernbert", marks=modern)])
@torch.no_grad()
def test_every_layer_has_its_window(kind):
    model = make(kind, bound=0.3, window=3)
    batch = tokens()
    real = batch["attention_mask"].bool()
    found = model(**batch).logits
    model.set_attn_implementation("eager_las")
    close(found, model(**batch).logits)
    model.set_attn_implementation("las")
    longlens.hf.configure(model, bound=0.0, window=1)
    assert (model(**batch).logits - found)[real].abs().max() > 1e-3
    batch = tokens(padded=False)  # of a padded row, theirs makes NaN in float64
    plain = model(**batch).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(plain, model(**batch).logits, rtol=1e-5, atol=1e-5)


def caches(model):
    yield DynamicCache(config=model.config)
    yield DynamicCache()  # keeps all keys
    yield StaticCache(config=model.config, max_cache_len=32)


@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", DECODERS)
@torch.no_grad()
def test_a_cache_changes_nothing(kind, padded, reading):
    model = make(kind, **reading)
    batch = tokens(length=25, padded=padded)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    full = model(ids, attention_mask=mask, use_cache=False).logits
    for cache in caches(model):
        logits = []
        for start, stop in [(0, 6), (6, 10), (10, 14), *((i, i + 1) for i in range(14, 25))]:
            step = dict(attention_mask=mask[:, :stop]) if padded else {}
            logits.append(model(ids[:, start:stop], past_key_values=cache, **step).logits)
        close(torch.cat(logits, dim=1)[mask.bool()], full[mask.bool()])


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "modernbert-decoder"])
@torch.no_grad()
def test_generation_with_a_cache_equals_generation_without(kind):
    model = make(kind, bound=0.3, window=3)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(99, 32).double())  # untied: no repeats
    settings = dict(
        max_new_tokens=15, do_sample=False, output_logits=True, return_dict_in_generate=True,
        pad_token_id=0,
    )  # fmt: skip
    batch = tokens(length=9)
    plain = model.generate(**batch, use_cache=False, **settings)
    assert len(set(plain.sequences[0, 9:].tolist())) > 1
    for cache in ("dynamic", "static"):
        other = model.generate(**batch, cache_implementation=cache, **settings)
        assert torch.equal(other.sequences, plain.sequences)
        close(torch.stack(other.logits), torch.stack(plain.logits))


@torch.no_grad()
def test_sliding_caches_keep_what_smoothing_needs_and_no_more():
    model = make("mistral", bound=0.3, window=3)
    cache = DynamicCache(config=model.config)
    model(torch.randint(6, 60, (1, 40)), past_key_values=cache)
    assert cache.layers[0].keys.shape[2] == 8 - 1 + 2
    longlens.hf.configure(model, window=5)
    with pytest.raises(ValueError, match=r"needs 11 keys before a token .* the cache keeps 9"):
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)


@torch.no_grad()
def test_caches_of_ones_own_classes():
    class Cache(DynamicCache):
        def __init__(self, model):
            super().__init__(config=model.config)

    model = make("mistral", bound=0.3, window=3)
    assert (
        Cache(model).layers[0].sliding_window
        == DynamicCache(config=model.config).layers[0].sliding_window
        == 8 + 2
    )
    model.set_attn_implementation("sdpa")
    assert Cache(model).layers[0].sliding_window == 8


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
@torch.no_grad()
def test_packed_sequences(kind):
    model = make(kind, bound=0.3, window=3)
    ids = torch.randint(6, 60, (1, 30))
    position_ids = torch.cat([torch.arange(12), torch.arange(18)])[None]
    found = model(ids, position_ids=position_ids).logits
    close(found[:, :12], model(ids[:, :12]).logits)
    close(found[:, 12:], model(ids[:, 12:]).logits)


def test_what_a_local_layer_does_not_take():
    model = make("mistral", bound=0.3, window=3)
    with torch.no_grad():
        longlens.hf.configure(model, chunk=4)
        model(**tokens())  # blocks inside of the window
        with pytest.raises(ValueError, match="has a local pattern of its own, so chunk=4"):
            model.generate(**tokens(), max_new_tokens=3, pad_token_id=0)
    layer = model.model.layers[0].self_attn
    x, angles = torch.randn(1, 5, 32).double(), torch.ones(2, 1, 5, 8).double()
    longlens.hf.configure(model, chunk=None)
    with pytest.raises(ValueError, match="asks for a sliding window that its mask does not have"):
        layer(x, tuple(angles), attention_mask=LaSMask(1, 5, 5, causal=True))
    layer = make("olmo3", bound=0.3, window=3).model.layers[1].self_attn
    with pytest.raises(ValueError, match="may see keys that its cache has dropped"):
        layer(x, tuple(angles), attention_mask=LaSMask(1, 5, 5, causal=True, dropped=2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", pytest.param("modernbert", marks=modern)])
@torch.no_grad()
def test_compiled(kind):
    model, batch = make(kind, bound=0.3, window=3), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(**batch).logits, model(**batch).logits)
