"""LaSAttention and SoftmaxAttention as modules: masks, decoding, saving, compiling, autocast."""

import copy

import pytest
import torch

from longlens import LaSAttention, SoftmaxAttention, decay_rates, las_attention
from longlens.layers import build

VARIANTS = {
    "default": dict(),
    "masked": dict(smoothing="masked", window=3),
    "renormalize": dict(edge="renormalize"),
    "chunk": dict(chunk=16),
    "rotary-gqa": dict(rotary=True, num_kv_heads=2),
    "learned": dict(learned_alpha=True),
    "out-of-range": dict(bound=3.0),
    "literal": dict(spacing="literal"),
    "only-smooth": dict(bound=0.0),
    "only-local": dict(window=1),
    "head-dim": dict(head_dim=12, bias=False),
}
BOTH_SIDES = {"two-sided": dict(causal=False), "two-sided-rotary": dict(causal=False, rotary=True)}


def layer(**options):
    return LaSAttention(32, 4, **options).double()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_decoding_equals_forward(options):
    mixer, x = layer(**options), torch.randn(2, 50, 32, dtype=torch.float64)
    expected = mixer(x)
    head, state = mixer.prefill(x[:, :20])
    torch.testing.assert_close(head, expected[:, :20], rtol=0, atol=1e-12)
    for start in (None, 20):
        state = None if start is None else mixer.prefill(x[:, :start])[1]
        for t in range(start or 0, 50):
            y, state = mixer.step(x[:, t], state)
            torch.testing.assert_close(y, expected[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [True, False])
def test_decoding_after_an_empty_prompt(masked):
    mixer, x = layer(), torch.randn(2, 3, 32, dtype=torch.float64)
    mask = torch.ones(2, 0, dtype=torch.bool) if masked else None
    y, state = mixer.prefill(x[:, :0], mask)
    assert y.shape == (2, 0, 32)
    for t in range(3):
        y, state = mixer.step(x[:, t], state)
    torch.testing.assert_close(y, mixer(x)[:, 2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_decoding_a_batch_of_different_lengths(options, side):
    mixer = layer(**options)
    x = torch.randn(2, 45, 32, dtype=torch.float64)
    prompt, mask = x[:, :20].clone(), torch.ones(2, 20, dtype=torch.bool)
    if side == "right":
        mask[1, 13:] = False
    else:
        mask[1, :7] = False
        prompt[1, 7:] = x[1, :13]
    alone = torch.cat([x[1:, :13], x[1:, 20:]], dim=1)  # the second row as it is without padding
    expected = mixer(alone)[0]
    head, state = mixer.prefill(prompt, mask)
    torch.testing.assert_close(head[1][mask[1]], expected[:13], rtol=0, atol=1e-12)
    for t in range(20, 45):
        y, state = mixer.step(x[:, t], state)
        torch.testing.assert_close(y[1], expected[t - 7], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [*VARIANTS.values(), *BOTH_SIDES.values()])
def test_padding_changes_nothing(options):
    mixer, x = layer(**options), torch.randn(2, 40, 32, dtype=torch.float64)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 27:] = False
    expected = mixer(x[1:, :27])
    torch.testing.assert_close(mixer(x, mask)[1:, :27], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [*VARIANTS.values(), *BOTH_SIDES.values()])
def test_compiles_whole_forward_and_backward(options):
    torch._dynamo.reset()
    mixer, x = layer(**options), torch.randn(2, 50, 32, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    inputs = [x, *mixer.parameters()]
    for found, expected in zip(
        torch.autograd.grad(compiled(x).square().sum(), inputs),
        torch.autograd.grad(mixer(x).square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(bound=3.0),
        pytest.param(dict(window=1, bound=0.0, chunk=16), marks=pytest.mark.slow),
    ],
)
def test_compiles_for_changing_lengths(options):
    torch._dynamo.reset()
    mixer = layer(**options)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for length in (50, 64, 77, 33):
        x = torch.randn(2, length, 32, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), mixer(x))


def test_compiles_without_a_static_bound_on_alpha():
    torch._dynamo.reset()
    q = torch.randn(1, 2, 150, 8, dtype=torch.float64)
    alpha = torch.tensor([0.0, 9.0])
    compiled = torch.compile(las_attention, fullgraph=True, backend="aot_eager")
    for causal in (True, False):
        torch.testing.assert_close(
            compiled(q, q, q, alpha=alpha, window=3, is_causal=causal),
            las_attention(q, q, q, alpha=alpha, window=3, is_causal=causal, impl="reference"),
        )


def test_exports():
    mixer, x = layer(window=3), torch.randn(1, 12, 32, dtype=torch.float64)
    exported = torch.export.export(mixer, (x,))
    torch.testing.assert_close(exported.module()(x), mixer(x))


@pytest.mark.parametrize("flipped", [0, 1])
def test_the_merged_operator_is_registered_properly(flipped):
    from longlens.ops.las import flash

    q, k, v = (torch.randn(1, 2, 3, 8, 4, requires_grad=True) for _ in range(3))
    layout = [flash.FLASH, 0, 8, 0, 1, 0, flipped]
    torch.library.opcheck(
        torch.ops.longlens.merged_attention.default, ([q, k, v], layout, [0.5], 24)
    )


@pytest.mark.parametrize("kind", [LaSAttention, SoftmaxAttention])
def test_autocast_runs_in_bfloat16_and_keeps_the_rates(kind):
    mixer, x = kind(32, 4), torch.randn(2, 30, 32)
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    assert y.dtype == torch.bfloat16
    assert float((y - exact).detach().abs().max()) < 0.02 * float(exact.detach().abs().max())


@pytest.mark.parametrize("options", [dict(), dict(smoothing="masked", window=3, chunk=16)])
@pytest.mark.parametrize("before", [True, False])
def test_a_decoding_state_goes_into_autocast_and_out_of_it(before, options):
    mixer, x = LaSAttention(32, 4, **options), torch.randn(2, 30, 32)
    with torch.no_grad():
        expected = mixer(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=before):
            state = mixer.prefill(x[:, :20])[1]
        with torch.autocast("cpu", torch.bfloat16, enabled=not before):
            for t in range(20, 30):
                y, state = mixer.step(x[:, t], state)
    assert y.dtype == (torch.float32 if before else torch.bfloat16)
    assert float((y - expected[:, 29]).abs().max()) < 0.02 * float(expected.abs().max())


@pytest.mark.parametrize("key", ["las", "las-gated", "alibi", "fox", "mta-key"])
def test_autocast_leaves_layers_in_float64_alone(key):
    mixer, x = build(key, 32, num_heads=4).double(), torch.randn(2, 30, 32, dtype=torch.float64)
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mixer(x), expected)


def test_casting_the_module_does_not_round_the_rates():
    mixer = LaSAttention(32, 4)
    exact = mixer.alpha.clone()
    mixer.bfloat16()
    assert mixer.qkv.weight.dtype == torch.bfloat16
    assert mixer.alpha.dtype == torch.float32 and torch.equal(mixer.alpha, exact)


def test_state_dict_round_trip_carries_rates_and_bound():
    first, second = layer(bound=4.0), layer(bound=1e-3)
    second.load_state_dict(first.state_dict())
    x = torch.randn(1, 100, 32, dtype=torch.float64)
    torch.testing.assert_close(second(x), first(x), rtol=0, atol=1e-14)
    assert second.alpha_max == pytest.approx(4.0)


def test_learned_rates_stay_inside_their_bound():
    mixer = layer(learned_alpha=True, alpha_max=0.1)
    optimizer = torch.optim.SGD([mixer.alpha], lr=1e3)
    x = torch.randn(1, 60, 32, dtype=torch.float64)
    before = mixer.alpha.detach().clone()
    mixer(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(mixer.alpha.detach(), before)
    rates, bound = mixer.rates()
    assert bound == 0.1 and rates.min() >= 0 and rates.max() <= 0.1


def test_softmax_attention_is_las_with_both_off():
    las = LaSAttention(32, 4, bound=0.0, window=1)
    softmax = SoftmaxAttention(32, 4)
    softmax.load_state_dict({k: v for k, v in las.state_dict().items() if k != "decay.alpha"})
    x = torch.randn(2, 20, 32)
    assert torch.equal(las(x), softmax(x))


def test_default_rates_are_the_papers():
    assert torch.equal(LaSAttention(64, 8, bound=1e-3).alpha, decay_rates(8, 1e-3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LaSAttention(30, 4), ["dim", "multiple", "4", "30"]),
        (lambda: LaSAttention(0, 4), ["dim", "at least 1", "0"]),
        (lambda: LaSAttention(32, 4, head_dim=0), ["head_dim", "at least 1", "0"]),
        (lambda: LaSAttention(32, 4, num_kv_heads=3), ["num_heads", "4", "3"]),
        (lambda: LaSAttention(32, 4, window=4, smoothing="centered"), ["window", "odd", "4"]),
        (lambda: LaSAttention(32, 4, alpha_max=1.0), ["alpha_max", "learned_alpha"]),
        (lambda: LaSAttention(32, 4, learned_alpha=True, bound=1.0, alpha_max=0.5), ["alpha_max"]),
        (lambda: LaSAttention(12, 4, rotary=True), ["head_dim", "even", "3"]),
        (lambda: LaSAttention(32, 4)(torch.randn(2, 5, 31)), ["x", "32", "(2, 5, 31)"]),
        (lambda: LaSAttention(32, 4).step(torch.randn(2, 5, 32)), ["x", "(batch, 32)"]),
        (lambda: LaSAttention(32, 4, causal=False).step(torch.randn(2, 32)), ["causal=False"]),
        (
            lambda: LaSAttention(32, 4, smoothing="centered").step(torch.randn(2, 32)),
            ["centered", "'causal' or 'masked'"],
        ),
        (
            lambda: LaSAttention(32, 4, window=3).step(
                torch.randn(2, 32), LaSAttention(32, 4).step(torch.randn(2, 32))[1]
            ),
            ["another configuration", "window", "5", "3"],
        ),
        (
            lambda: LaSAttention(32, 4).prefill(
                torch.randn(1, 3, 32), torch.tensor([[True, False, True]])
            ),
            ["key_mask", "contiguous"],
        ),
    ],
)
def test_clear_errors(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_deepcopy_and_print():
    mixer = layer(window=3)
    assert "window=3" in repr(copy.deepcopy(mixer))
