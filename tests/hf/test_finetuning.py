"""Fine-tuning as people do it: PEFT, transformers' Trainer, FSDP2, lm-evaluation-harness."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import longlens.hf
from tests.hf.tiny import inputs, layers_of, make

LEARNED = dict(bound=0.02, window=3, learned_alpha=True)


def rates(model):
    return [p for n, p in model.named_parameters() if n.endswith("alpha") and p.requires_grad]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_carries_learned_rates(tmp_path, checkpointing):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["las"])
    base = make("llama", dtype=torch.float32, **LEARNED)
    model = peft.get_peft_model(base, config).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    assert len(rates(model)) == 2
    optimizer = torch.optim.AdamW(longlens.hf.parameter_groups(model, 0.1), lr=1e-3)
    ids = inputs("llama")["input_ids"]
    before = [p.detach().clone() for p in rates(model)]
    for _ in range(3):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(not torch.equal(a, b) for a, b in zip(before, rates(model), strict=True))
    model.eval().save_pretrained(tmp_path)
    fresh = make("llama", dtype=torch.float32, **LEARNED)
    untrained = fresh(ids).logits
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()
    logits = model(input_ids=ids).logits
    torch.testing.assert_close(loaded(input_ids=ids).logits, logits)
    kept = [p for n, p in loaded.named_parameters() if "modules_to_save" in n and "las" in n]
    for one, other in zip(kept, rates(model), strict=True):
        assert torch.equal(one, other)
    with loaded.disable_adapter():
        torch.testing.assert_close(loaded(input_ids=ids).logits, untrained)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, logits, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        for p in kept:
            p.zero_()
    assert (model(input_ids=ids).logits - logits).abs().max() == 0  # its own rates
    assert (merged(input_ids=ids).logits - logits).abs().max() > 1e-4  # the rates mattered


def test_configure_does_not_throw_the_rates_of_an_adapter_away():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["las"])
    model = peft.get_peft_model(make("llama", **LEARNED), config)
    with pytest.raises(ValueError, match="before the adapter is added"):
        longlens.hf.configure(model.get_base_model(), window=5)
    assert len(rates(model)) == 2


@torch.no_grad()
def test_learned_rates_wait_elsewhere_between_calls():
    accelerate = pytest.importorskip("accelerate")
    model, batch = make("llama", dtype=torch.float32, **LEARNED), inputs("llama")
    logits = model(**batch).logits
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert layers_of(model)[0].alpha.is_meta
    assert torch.equal(model(**batch).logits, logits)


@torch.no_grad()
def test_rates_that_learning_took_too_far_act_the_same_when_loaded(tmp_path):
    model = make("llama", dtype=torch.float32, **LEARNED)
    for state in layers_of(model):
        state.alpha.copy_(torch.tensor([-0.01, 0.0, 0.03, 0.2]))  # they are clamped to [0, 0.05]
    batch = inputs("llama")
    logits = model(**batch).logits
    other = make("llama", dtype=torch.float32, **LEARNED)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(**batch).logits, logits)
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path)(**batch).logits, logits)
    assert layers_of(model)[0].alpha[3] == pytest.approx(0.2)  # saving changes nothing


def test_rates_norms_and_biases_have_no_weight_decay():
    model = make("bert", **LEARNED)
    decayed, free = longlens.hf.parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    assert sum(names[id(p)].endswith("las.alpha") for p in free["params"]) == 2
    assert all(p.ndim > 1 for p in decayed["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("accelerate")
    from transformers import (
        DataCollatorWithFlattening,
        LlamaForCausalLM,
        Trainer,
        TrainingArguments,
    )

    model = make("llama", dtype=torch.float32, **LEARNED)
    before = [state.alpha.detach().clone() for state in layers_of(model)]
    data = [dict(input_ids=torch.randint(1, 50, (n,)).tolist()) for n in (5, 9, 7, 4)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[],
        gradient_checkpointing=True, use_cpu=True, save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(longlens.hf.parameter_groups(model, 0.1), lr=1e-3)
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, data_collator=DataCollatorWithFlattening(),
        optimizers=(optimizer, None),
    )  # fmt: skip
    trainer.train()
    after = [state.alpha.detach() for state in layers_of(model)]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    trainer.save_model(str(tmp_path / "model"))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.config._attn_implementation == "las"
    for state, alpha in zip(layers_of(loaded), after, strict=True):
        assert torch.equal(state.alpha.detach(), alpha)


def one_rank(rank, world, address, results):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    try:
        from torch.distributed.fsdp import fully_shard

        model = make("llama", dtype=torch.bfloat16, **LEARNED)
        mesh = dist.init_device_mesh("cpu", (world,))
        longlens.hf.shard_rates(model, mesh=mesh)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ids = torch.arange(2 * 8).reshape(2, 8) % 47 + 1
        loss = model(ids[rank : rank + 1], labels=ids[rank : rank + 1], use_cache=False).loss
        loss.backward()
        optimizer.step()
        alphas = [state.alpha for state in layers_of(model)]
        full = [alpha.full_tensor() for alpha in alphas]
        grads = [alpha.grad.full_tensor() for alpha in alphas]
        dtypes = {model.model.layers[0].self_attn.q_proj.weight.dtype}
        if rank == 0:
            torch.save((full, grads, dtypes), results)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fsdp2_shards_learned_rates_of_a_bfloat16_model(tmp_path, world):
    results = tmp_path / "results.pt"
    arguments = (world, f"file://{tmp_path}/world", str(results))
    if world == 1:
        one_rank(0, *arguments)
    else:
        mp.spawn(one_rank, args=arguments, nprocs=world)
    full, grads, dtypes = torch.load(results, weights_only=False)
    assert dtypes == {torch.bfloat16}
    model = make("llama", dtype=torch.bfloat16, **LEARNED)  # the same step without FSDP
    ids = torch.arange(2 * 8).reshape(2, 8)[:world] % 47 + 1
    losses = [model(row[None], labels=row[None], use_cache=False).loss for row in ids]
    (sum(losses) / world).backward()
    for state, alpha, grad in zip(layers_of(model), full, grads, strict=True):
        assert alpha.dtype == torch.float32
        torch.testing.assert_close(grad, state.alpha.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(alpha, state.alpha.detach() - 0.5 * state.alpha.grad)
        assert (grad != 0).any()
