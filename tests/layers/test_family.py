"""Layers of the family: what they start as, what they keep, and what they refuse."""

import pytest
import torch

from longlens import LaSAttention, decay_rates
from longlens.layers import build
from longlens.layers.family import DecayAttention
from longlens.lens.maps import attention_map

KEYS = ("fox", "wall", "las-taps", "las-gauss", "las-gated", "mta-key")


def shared(layer, other):
    """The projections of one layer in the other."""
    for name in ("qkv", "out"):
        getattr(other, name).load_state_dict(getattr(layer, name).state_dict())
    return other


@pytest.mark.parametrize("causal", [True, False])
def test_learned_taps_start_at_las(causal):
    las = LaSAttention(16, 4, causal=causal).double()
    layer = shared(las, build("las-taps", 16, num_heads=4, bidirectional=not causal).double())
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    torch.testing.assert_close(layer(x), las(x), rtol=1e-6, atol=1e-7)  # taps are float32's 1/5
    assert layer.taps.requires_grad


def test_gates_start_at_the_rates_of_las():
    rates = decay_rates(4, 1e-3).clamp(min=1e-5)
    x = torch.randn(1, 6, 16)
    forget = build("fox", 16, num_heads=4)._decay(x, None)["log_forget"]
    torch.testing.assert_close(-forget, rates[None, :, None].expand(1, 4, 6), rtol=1e-3, atol=1e-9)
    gate = build("wall", 16, num_heads=4)._decay(x, None)["log_gate"]
    expected = rates[None, :, None, None].expand(1, 4, 6, 4)
    torch.testing.assert_close(-gate, expected, rtol=1e-3, atol=1e-9)
    learned = DecayAttention(16, 4, learned_decay=True)
    torch.testing.assert_close(learned._decay(x, None)["alpha"], decay_rates(4, 1e-3))


def test_mta_starts_as_softmax_attention():
    softmax = build("softmax", 16, num_heads=4)
    layer = shared(softmax, build("mta-key", 16, num_heads=4))
    x = torch.randn(2, 30, 16)
    torch.testing.assert_close(layer(x), softmax(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", ["none", "las", "alibi", "power", "fox", "wall"])
@pytest.mark.parametrize("extra", [dict(), dict(gate="head", sink=True, rotary=True)])
def test_a_prompt_then_tokens_is_the_whole(decay, extra):
    layer = DecayAttention(16, 4, decay=decay, num_kv_heads=2, **extra).double()
    if layer.to_gates is not None:
        torch.nn.init.normal_(layer.to_gates.weight)
    x = torch.randn(2, 20, 16, dtype=torch.float64)
    whole = layer(x)
    y, state = layer.prefill(x[:, :12])
    outs = [y]
    for t in range(12, 20):
        y, state = layer.step(x[:, t], state)
        outs.append(y[:, None])
    torch.testing.assert_close(torch.cat(outs, 1), whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("key", KEYS)
def test_maps_times_values_are_the_output(key):
    layer = build(key, 16, num_heads=2)
    x = torch.randn(1, 12, 16)
    weights = attention_map(layer, x)
    _, _, v = layer._project(x, torch.arange(12))
    torch.testing.assert_close(layer._finish(x, weights @ v), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(decay="linear"), "decay must be one of"),
        (dict(decay="wall", causal=False), "needs causal=True"),
        (dict(gate="token"), "gate must be one of"),
        (dict(bound=0.1), "bound must be between 0 and rate_max"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        DecayAttention(16, 4, **options)
    layer = DecayAttention(16, 4, smoothing="centered")
    with pytest.raises(ValueError, match="cannot decode"):
        layer.step(torch.randn(1, 16))


def test_gates_that_begin_at_their_largest_rate_can_learn():
    layer = DecayAttention(16, 2, decay="wall", bound=0.05, rate_max=0.05)
    layer(torch.randn(1, 9, 16)).square().sum().backward()
    assert layer.to_gates.bias.isfinite().all()
    assert (layer.to_gates.bias.grad != 0).all()
