"""`torch.compile` takes the models whole, and no mask of queries by keys is ever allocated."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import StaticCache

from tests.hf.tiny import inputs, make, pad


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def tiny(name, **options):
    return make(name, dtype=torch.float32, layers=1, **options)


def test_a_training_step_compiles_whole():
    model = tiny("qwen2", bound=0.02, window=3, learned_alpha=True)
    batch = pad(inputs("qwen2")["input_ids"], "left")
    batch["labels"] = batch["input_ids"]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        run(**batch).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for eager, other in zip(*grads, strict=True):
        close(eager, other)


@pytest.mark.parametrize("name", ["bert", "vit"])
@torch.no_grad()
def test_encoders_compile_whole(name):
    model = tiny(name, bound=0.02, window=3)
    batch = inputs(name, dtype=torch.float32)
    if name == "bert":
        batch = pad(batch["input_ids"], "right")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(**batch).logits, model(**batch).logits)


@torch.no_grad()
def test_decoding_from_a_static_cache_compiles_once():
    model = tiny("qwen2", bound=0.3, window=3)
    ids = inputs("qwen2", length=12)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    cache = StaticCache(config=model.config, max_cache_len=20)
    logits = [model(ids[:, :6], attention_mask=mask[:, :6], past_key_values=cache).logits]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    counts = []
    for i in range(6, 12):
        # `generate` makes the mask outside of the compiled step, of one shape for all steps
        step = model.prepare_inputs_for_generation(
            ids[:, : i + 1], next_sequence_length=1, past_key_values=cache,
            attention_mask=mask[:, : i + 1], use_cache=True,
        )  # fmt: skip
        step.pop("position_ids", None)
        assert step["attention_mask"]["full_attention"].real.shape == (2, 20)
        logits.append(compiled(**step).logits)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    full = model(ids, attention_mask=mask, use_cache=False).logits
    close(torch.cat(logits, 1)[mask.bool()], full[mask.bool()])
    assert counts[-1] == counts[0]


@torch.no_grad()
def test_packing_is_noticed_in_compiled_code():
    model = tiny("llama", bound=0.3)
    batch = inputs("llama")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(**batch, use_cache=False).logits, model(**batch, use_cache=False).logits)
    packed = torch.cat([torch.arange(6), torch.arange(7)])[None]
    with pytest.raises(RuntimeError, match="packed sequences in compiled"):
        compiled(**batch, position_ids=packed, use_cache=False)


class Largest(TorchDispatchMode):
    """The size in bytes of the largest memory behind any tensor that an operator returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(
    ("name", "case"),  # an encoder has no cache
    [*product(["llama"], ["plain", "padded", "static"]), *product(["bert"], ["plain", "padded"])],
)
@torch.no_grad()
def test_no_mask_of_queries_by_keys(name, case):
    length = 2000
    model = tiny(name, bound=0.02, window=3)
    model.config.max_position_embeddings = length + 5
    batch = inputs(name, batch=1, length=length)
    if case != "plain":
        batch = pad(batch["input_ids"], "left")
    if name == "bert":  # its table of positions is short
        batch["position_ids"] = torch.zeros_like(batch["input_ids"])
    if case == "static":
        batch["past_key_values"] = StaticCache(config=model.config, max_cache_len=2100)

    def largest(implementation):
        model.set_attn_implementation(implementation)
        with Largest() as seen:
            model(**batch)
        return seen.size

    assert largest("las") < length**2 / 2  # a mask has at least one byte for each pair
    if case == "padded":
        assert largest("sdpa") >= length**2  # and this is how one would show
