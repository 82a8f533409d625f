"""DecayRates, in layers and in Hugging Face models: precision, loading, and a bound that holds."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vmap

from longlens import LaSAttention, decay_rates, las_attention
from longlens.hf.options import Options
from longlens.hf.state import LaSState
from longlens.layers.decay import DecayRates, clamped
from longlens.ops.las import las_weights
from longlens.ops.las.decode import LaSCache

learned = pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])


def in_layer(bound, learned, **options):
    layer = LaSAttention(16, 4, bound=bound, learned_alpha=learned, **options)
    return layer, layer.decay


def in_bridge(bound, learned):
    state = LaSState(4, Options(bound=bound, learned_alpha=learned))
    return state, state


homes = pytest.mark.parametrize("home", [in_layer, in_bridge], ids=["layer", "bridge"])


@homes
@learned
@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
def test_casting_a_model_leaves_the_rates_alone(home, learned, cast):
    module, rates = home(0.01, learned)
    rates.alpha.requires_grad_(learned)
    if learned:
        rates.alpha.grad = torch.full((4,), 1e-3)
    getattr(module, cast)()
    expected = torch.float64 if cast == "double" else torch.float32
    assert rates.alpha.dtype == expected
    assert torch.equal(rates.alpha.detach().float(), decay_rates(4, 0.01))
    if learned:
        assert isinstance(rates.alpha, torch.nn.Parameter)
        assert rates.alpha.grad.dtype == expected
    module.float()
    assert rates.alpha.dtype == torch.float32


@homes
@learned
@pytest.mark.parametrize("assign", [False, True])
def test_loaded_rates_above_the_bound_are_used_as_they_are(home, learned, assign):
    source, _ = home(0.7, learned)
    target, rates = home(0.001, learned)
    target.load_state_dict(source.state_dict(), assign=assign)
    found, bound = rates.rates()
    assert torch.equal(found.detach(), decay_rates(4, 0.7))
    assert bound == pytest.approx(0.7)


def test_a_layer_computes_with_the_rates_it_has_loaded():
    """Learned rates above the bound were clamped to it without a word."""
    source, _ = in_layer(0.7, True)
    target, _ = in_layer(0.001, True)
    target.load_state_dict(source.state_dict())
    x = torch.randn(1, 200, 16)
    torch.testing.assert_close(target(x), source(x), rtol=0, atol=1e-6)


@homes
def test_saving_and_loading_change_no_function_where_learning_passed_the_bound(home):
    """The raw parameter was saved, and taken for the new bound by whoever loaded it."""
    source, rates = home(0.001, True)
    with torch.no_grad():
        rates.alpha.copy_(torch.tensor([-1.0, 0.02, 0.05, 0.3]))
    target, loaded = home(0.001, True)
    for module in (target, source):
        module.load_state_dict(source.state_dict())
    acting = torch.tensor([0.0, 0.02, 0.05, 0.05])
    for found, bound in (rates.rates(), loaded.rates()):
        assert bound == pytest.approx(0.05) and torch.equal(found.detach(), acting)


def test_checkpoints_of_earlier_versions_load():
    source, _ = in_layer(0.7, False)
    old = {name.replace("decay.", ""): value for name, value in source.state_dict().items()}
    target, rates = in_layer(0.001, False)
    target.load_state_dict(old)
    assert "alpha" in old and torch.equal(rates.alpha, source.alpha)


def change_in_place(layer):
    layer.alpha.mul_(1000)


def change_behind_autograd(layer):
    layer.alpha.data.mul_(1000)


def put_in_its_place(layer):
    layer.decay.alpha = layer.alpha * 1000


@pytest.mark.parametrize("change", [change_in_place, change_behind_autograd, put_in_its_place])
def test_rates_changed_beyond_their_bound_raise(change):
    layer, rates = in_layer(0.05, False)
    x = torch.randn(1, 100, 16)
    layer(x)
    change(layer)
    for run in (layer, lambda x: layer.prefill(x), lambda x: layer.step(x[:, 0])):
        with pytest.raises(ValueError) as caught:
            run(x)
        assert "alpha" in str(caught.value) and "0.05" in str(caught.value)
        assert "follow" in str(caught.value) and "\n" not in str(caught.value)
    rates.follow()
    expected, _ = in_layer(0.05, False)
    expected.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), expected(x))
    assert layer.alpha_max == pytest.approx(50)


def test_rates_put_in_by_functional_call_raise_beyond_the_bound_and_serve_within():
    layer, _ = in_layer(0.05, False)
    x = torch.randn(1, 100, 16)
    wide, narrow = decay_rates(4, 3.0), decay_rates(4, 0.02)
    with pytest.raises(ValueError, match="alpha"):
        functional_call(layer, {"decay.alpha": wide}, (x,))
    with pytest.raises(ValueError, match="alpha"):
        vmap(lambda a: functional_call(layer, {"decay.alpha": a}, (x,)))(
            torch.stack([narrow, wide])
        )
    found = functional_call(layer, {"decay.alpha": narrow}, (x,))
    expected, _ = in_layer(0.05, False)
    expected.load_state_dict(layer.state_dict() | {"decay.alpha": narrow})
    torch.testing.assert_close(found, expected(x))
    layer(x)  # its own rates are back


def test_decay_that_was_off_is_not_switched_on_unnoticed():
    layer, _ = in_layer(0.0, False)
    layer.alpha.fill_(0.5)
    with pytest.raises(ValueError, match="alpha"):
        layer(torch.randn(1, 10, 16))


def test_learned_rates_stay_in_their_bound_whatever_the_optimizer_does():
    layer, rates = in_layer(0.01, True, alpha_max=0.1)
    with torch.no_grad():
        rates.alpha.copy_(torch.tensor([-1.0, 0.05, 0.1, 7.0]))
    found, bound = layer.rates()
    assert bound == 0.1 and torch.equal(found, torch.tensor([0.0, 0.05, 0.1, 0.1]))
    layer(torch.randn(1, 10, 16))


OUTSIDE = torch.tensor([-0.1, -0.1, 0.0, 0.0, 0.03, 0.05, 0.05, 0.2, 0.2])
UPSTREAM = torch.tensor([3.0, -3.0, 3.0, -3.0, 2.0, 3.0, -3.0, 3.0, -3.0])
BACK_INSIDE = torch.tensor([0.0, -3.0, 3.0, -3.0, 2.0, 3.0, -3.0, 3.0, 0.0])


def weighed(alpha, upstream=UPSTREAM):
    return (clamped(alpha, 0.05) * upstream).sum()


def by_autograd(alpha):
    alpha = alpha.clone().requires_grad_()
    weighed(alpha).backward()
    return alpha.grad


def by_compiled_autograd(alpha):
    alpha = alpha.clone().requires_grad_()
    torch.compile(weighed, fullgraph=True, backend="aot_eager")(alpha).backward()
    return alpha.grad


def by_vmap(alpha):
    return vmap(grad(weighed))(alpha[:, None], UPSTREAM[:, None])[:, 0]


def by_jacrev(alpha):
    return jacrev(lambda a: clamped(a, 0.05) * UPSTREAM)(alpha).sum(0)


WAYS = [by_autograd, by_compiled_autograd, grad(weighed), by_vmap, by_jacrev]


@pytest.mark.parametrize("way", WAYS)
def test_outside_of_the_bound_gradients_that_lead_back_pass(way):
    """They were zero, so that a rate that one step had carried outside never came back."""
    assert torch.equal(way(OUTSIDE), BACK_INSIDE)


def test_rates_are_clamped_bit_for_bit_and_have_the_clamps_tangent():
    expected = OUTSIDE.clamp(0, 0.05)
    for alpha in (OUTSIDE, OUTSIDE.double(), OUTSIDE.bfloat16()):
        assert torch.equal(clamped(alpha, 0.05), alpha.clamp(0, 0.05))
    assert torch.equal(vmap(lambda a: clamped(a, 0.05))(OUTSIDE), expected)
    tangent = jvp(lambda a: clamped(a, 0.05), (OUTSIDE,), (torch.ones(9),))[1]
    assert torch.equal(tangent, torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 0, 0]))
    layer, _ = in_layer(0.01, True)
    assert torch.equal(
        torch.export.export(layer, (x := torch.randn(1, 9, 16),)).module()(x), layer(x)
    )


@pytest.mark.parametrize("end", [0.0, 0.05])
def test_rates_that_an_optimizer_carries_out_come_back(end):
    rates = DecayRates(4, 0.01, learned_alpha=True)
    optimizer = torch.optim.AdamW(rates.parameters(), lr=1e-3)
    for target, steps in ((1.5 * end - 0.02, 200), (0.02, 300)):
        for _ in range(steps):
            optimizer.zero_grad()
            (rates.rates()[0] - target).square().sum().backward()
            optimizer.step()
        if target != 0.02:
            assert torch.equal(rates.rates()[0].detach(), torch.full((4,), end))
            assert (
                float((rates.alpha.detach() - end).abs().max()) < 0.02
            )  # no farther than momentum goes
    torch.testing.assert_close(rates.alpha.detach(), torch.full((4,), 0.02), rtol=0, atol=2e-3)


def test_a_layer_learns_decay_after_it_has_learned_to_do_without():
    torch.manual_seed(0)
    layer, rates = in_layer(1e-3, True)
    x, noise = torch.randn(4, 64, 16), torch.randn(4, 64, 16)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)

    def train(target, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (layer(x) - target).square().mean().backward()
            optimizer.step()

    train(noise, 200)
    assert float(rates.alpha.detach().max()) < 0
    teacher, _ = in_layer(0.05, False)
    teacher.load_state_dict(layer.state_dict() | {"decay.alpha": decay_rates(4, 0.05)})
    train(teacher(x).detach(), 100)
    found = rates.alpha.detach().clone()
    assert float(found[1:].min()) > 0  # the first head of the teacher has no decay
    train(teacher(x).detach(), 1)
    assert not torch.equal(found, rates.alpha.detach())


@pytest.mark.parametrize("wrong", [[0.0, 0.2], [-0.1, 0.0], [float("nan"), 0.0]])
def test_a_bound_that_is_none_raises(wrong):
    q = torch.randn(1, 2, 10, 4)
    with pytest.raises(ValueError, match=r"alpha_max=0\.1"):
        las_attention(q, q, q, alpha=torch.tensor(wrong), alpha_max=0.1)


@pytest.mark.parametrize("wrong", [[-0.1, 0.0], [float("nan"), 0.0]])
def test_wrong_rates_raise_on_every_path(wrong):
    """Where α was not read to choose a path, a negative rate made scores grow with distance."""
    q, alpha = torch.randn(1, 2, 10, 4), torch.tensor(wrong)
    for run in (
        lambda: las_attention(q, q, q, alpha=alpha),
        lambda: las_attention(q, q, q, alpha=alpha, impl="reference"),
        lambda: las_attention(q, q, q, alpha=alpha, impl="reference", alpha_max=0.1),
        lambda: las_weights(q, q, alpha=alpha),
        lambda: LaSCache(q, q).attend(q[:, :, :1], alpha=alpha),
    ):
        with pytest.raises(ValueError, match="alpha"):
            run()
    with pytest.raises(ValueError, match=r"alpha_max=0\.1"):
        las_weights(q, q, alpha=torch.tensor([0.0, 0.2]), alpha_max=0.1)


def test_a_bound_in_another_precision_holds():
    q = torch.randn(1, 2, 10, 4)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        las_attention(q, q, q, alpha=decay_rates(2, 0.1).to(dtype), alpha_max=0.1)


@learned
def test_copies_and_pickles(learned):
    rates = DecayRates(4, 0.1, learned_alpha=learned)
    rates.rates()
    for other in (copy.deepcopy(rates), pickle.loads(pickle.dumps(rates))):
        assert torch.equal(other.alpha, rates.alpha) and other.alpha_max == rates.alpha_max
        other.rates()


@learned
def test_rates_made_without_memory_get_their_values_with_it(learned):
    with torch.device("meta"):
        layer, rates = in_layer(0.02, learned)
    assert rates.alpha.is_meta
    layer.to_empty(device="cpu")
    assert torch.equal(rates.alpha.detach(), decay_rates(4, 0.02))


def test_rates_made_in_inference_mode():
    with torch.inference_mode():
        layer, _ = in_layer(0.02, False)
        layer(torch.randn(1, 10, 16))
    with torch.no_grad():
        layer(torch.randn(1, 10, 16))


@pytest.mark.gpu
def test_on_a_gpu_rates_are_read_once_and_after_a_change():
    layer, rates = in_layer(0.05, False)
    layer.cuda()
    x = torch.randn(1, 100, 16, device="cuda")
    layer(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    layer.alpha.mul_(1000)
    with pytest.raises(ValueError, match="alpha"):
        layer(x)
    rates.follow()
    layer(x)


def test_learned_rates_may_begin_at_their_bound():
    """0.05 in float32 is above 0.05."""
    rates = DecayRates(4, 0.05, learned_alpha=True, alpha_max=0.05)
    assert torch.equal(rates.rates()[0], DecayRates(4, 0.05).alpha)
    with pytest.raises(ValueError, match="alpha_max must be at least"):
        DecayRates(4, 0.051, learned_alpha=True, alpha_max=0.05)
