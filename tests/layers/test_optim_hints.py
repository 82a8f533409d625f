"""Which parameters ask an optimiser for their own options, and that nothing makes them forget."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from longlens.config import ModelConfig
from longlens.layers.base import optim_hints, special
from longlens.models.build import build_model
from tests.layers.cases import KEYS, make

# As published: a small learning rate for what makes the memory (poles, step sizes, and the input
# matrix where it is HiPPO's) or the taps themselves, the model's own for everything else.
SPECIAL = {
    "ss": {"a", "b", "log_dt"},
    "s4-v1": {"log_decay", "frequency", "p", "b", "log_dt"},
    "s4": {"log_decay", "frequency", "p", "b", "log_dt"},
    "dss": {"log_decay", "frequency", "log_dt", "w"},
    "s4d": {"log_decay", "frequency", "log_dt"},
    "s5": {"log_decay", "frequency", "log_dt", "b"},
    "lru": {"log_rate", "log_phase", "log_gamma"},
    "dlr": {"log_rate", "angle"},
    "gss": {"log_decay", "log_frequency"},
    "h3": {"log_decay", "frequency", "log_dt"},
    "sgconv": {"w"},
    "longconv": {"taps"},
}
WISH = {"lr": 1e-3, "weight_decay": 0.0}


@pytest.mark.parametrize("key", KEYS)
def test_every_mixer_asks_for_what_its_paper_does(key):
    hints = optim_hints(make(key))
    assert {name.split(".")[-1] for name in hints} == SPECIAL.get(key, set())
    assert all(options == WISH for options in hints.values())


def test_s4_step_sizes_may_learn_as_fast_as_the_model():
    """As published for ListOps, Text and Retrieval: only A and B have a rate of their own."""
    hints = optim_hints(make("s4", dt_lr=None))
    assert hints.pop("kernel.log_dt") == {"weight_decay": 0.0}
    assert all(options == WISH for options in hints.values()) and len(hints) == 4


def model_and_names():
    model = build_model(ModelConfig(mixer="s4d", dim=8, depth=2, vocab_size=5, max_length=16))
    names = {
        f"backbone.blocks.{block}.mix.inner.kernel.{name}"
        for block in range(2)
        for name in SPECIAL["s4d"]
    }
    return model, names


def assert_asks(model, names):
    hints = optim_hints(model)
    assert set(hints) == names and names <= {name for name, _ in model.named_parameters()}
    assert all(options == WISH for options in hints.values())


def test_a_model_and_its_copies_ask():
    model, names = model_and_names()
    assert_asks(model, names)
    assert_asks(copy.deepcopy(model), names)
    assert_asks(copy.deepcopy(model).to(torch.bfloat16), names)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_asks(torch.load(file, weights_only=False), names)
    for module in (model, make("lru")):  # the second one has hints of its own
        compiled = torch.compile(module, backend="eager")
        assert_asks(compiled, {f"_orig_mod.{name}" for name in optim_hints(module)})


def test_wrapped_and_sharded_models_ask():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, names = model_and_names()
        assert_asks(DistributedDataParallel(model), {f"module.{name}" for name in names})
        model, names = model_and_names()
        mesh = dist.init_device_mesh("cpu", (1,))
        for block in model.backbone.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(next(model.parameters()), dist.tensor.DTensor)
        assert_asks(model, names)
    finally:
        dist.destroy_process_group()


def test_a_users_module_asks_in_one_line():
    class Own(nn.Module):
        optim_hints = special("rate", lr=0.1)

        def __init__(self, name):
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.zeros(2)))

    assert optim_hints(Own("rate")) == {"rate": {"lr": 0.1, "weight_decay": 0.0}}
    with pytest.raises(ValueError, match="names 'rate', but the module's parameters are 'rat'"):
        optim_hints(Own("rat"))
