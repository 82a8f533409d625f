"""Kernels are what the layer computes; maps are its attention; measures find what was put in."""

import math
from itertools import product

import pytest
import torch
from torch import nn

from longlens.layers import MIXERS, build
from longlens.layers.registry import options_of
from longlens.lens.convolution import LINEAR, Convolution, check, impulse_response
from longlens.lens.field import influence
from longlens.lens.kernels import convolutions
from longlens.lens.look import look_at_layer
from longlens.lens.maps import attention_map, by_distance, visible_keys
from longlens.lens.measures import decay_fit, measure, thin

CONVOLUTIONS = [
    "ss", "s4-v1", "s4", "dss", "s4d", "s5", "lru", "dlr", "gss", "h3", "sgconv", "longconv",
    "hyena", "ckconv", "tnn", "conv", "gmlp-toeplitz", "mega", "mega-chunk",
]  # fmt: skip
ATTENTION = [
    "softmax", "softmax-chunk", "rope", "las", "las-chunk", "l", "s", "alibi", "alibi-chunk",
    "local", "reformer", "linformer", "bigbird", "performer", "linear",
]  # fmt: skip


def made(key, dim=8, length=48, **options):
    torch.manual_seed(0)
    known = options_of(key)
    if "max_length" in known:
        options["max_length"] = length
    if "num_heads" in known:
        options.setdefault("num_heads", 2)
    return build(key, dim, **options).eval()


TWO_SIDED = [key for key in CONVOLUTIONS if "bidirectional" in options_of(key)]


@pytest.mark.parametrize(
    ("key", "both"), [*product(CONVOLUTIONS, [False]), *product(TWO_SIDED, [True])]
)
def test_the_kernel_is_what_the_layer_computes(key, both):
    options = {"bidirectional": both} if key in TWO_SIDED else {}
    parts = convolutions(made(key, **options))
    assert parts
    for part in parts:
        assert check(part) < 1e-12
        if part.mixes:  # from a channel to itself
            own = part.kernel(48)[range(8), range(8)]
            torch.testing.assert_close(part.channels(48), own, rtol=0, atol=1e-12)
        if not both:
            found, own = impulse_response(part, 48), part.with_skip(48)
            torch.testing.assert_close(found, own, rtol=0, atol=1e-12)


def test_the_impulse_response_of_s4d_is_its_convolution_kernel():
    layer = made("s4d", output="none").double()
    x = torch.zeros(1, 32, 8, dtype=torch.float64)
    (part,) = convolutions(layer)
    x[:, 0] = 1
    with torch.no_grad():
        response = part.run(x)[0].T - torch.cat(
            [layer.skip[:, None], torch.zeros(8, 31, dtype=torch.float64)], dim=1
        )
        torch.testing.assert_close(response, layer.kernel(32)[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(part.kernel(32), layer.kernel(32)[0])


def test_what_is_no_convolution_does_not_pass_for_one():
    none = torch.zeros(4, dtype=torch.float64)
    part = Convolution("whole", 4, torch.tanh, True, none, mixes=True)
    assert check(part) > 0.01  # not linear
    ramp = torch.arange(48.0)[:, None].double()
    part = Convolution("whole", 4, lambda x: ramp * x, True, none, mixes=True)
    assert check(part) > 0.01  # linear, but not the same at all times
    assert convolutions(made("lstm"), width=8) == []
    assert convolutions(made("softmax"), width=8) == []


class Leaky(nn.Module):
    """A layer that the zoo does not know: a leaky sum after a change of basis."""

    causal = True

    def __init__(self, dim):
        super().__init__()
        self.turn = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask=None):
        h, out = torch.zeros_like(x[:, 0]), []
        for u in self.turn(x).unbind(1):
            h = 0.9 * h + u
            out.append(h)
        return torch.stack(out, dim=1)


def test_an_unknown_linear_layer_is_seen_by_its_impulse_response():
    layer = Leaky(4)
    (part,) = convolutions(layer, width=4)
    expected = layer.turn.weight.detach().double()[..., None] * 0.9 ** torch.arange(16).double()
    torch.testing.assert_close(part.kernel(16), expected)
    views = look_at_layer(layer, torch.randn(2, 32, 4))
    assert [view.view for view in views] == ["kernel", "gradient"]
    assert views[0].error < LINEAR
    assert views[0].summary().decay_rate == pytest.approx(-math.log(0.9), rel=1e-6)


@pytest.mark.parametrize("key", ATTENTION)
def test_the_map_is_what_the_layer_mixes_values_with(key):
    layer = made(key)
    x = torch.randn(2, 24, 8)
    weights = attention_map(layer, x)
    assert weights.shape == (2, 2, 24, 24)
    with torch.no_grad():
        if key in ("softmax", "softmax-chunk", "rope", "las", "las-chunk", "l", "s"):
            _, _, v = layer._project(x, torch.arange(24))
            y = layer._output(weights @ v)
        else:
            y = layer.output((weights @ layer.project(x)[2]).transpose(1, 2).flatten(2))
        torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_attention_to_a_memory_has_no_map(bidirectional):
    assert attention_map(made("luna", bidirectional=bidirectional), torch.randn(1, 9, 8)) is None


@pytest.mark.parametrize("key", ["mega", "mega-chunk"])
def test_the_map_of_mega(key):
    options = {"chunk": 8} if key == "mega-chunk" else {}
    layer = made(key, query_dim=4, **options)
    x = torch.randn(2, 20, 8)
    weights = attention_map(layer, x)
    assert weights.shape == (2, 1, 20, 20)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 20))
    with torch.no_grad():
        _, g, h, u = layer.project(layer.ema(x)).split(layer.split, dim=-1)
        o = weights[:, 0] @ torch.nn.functional.silu(layer.value(x))
        torch.testing.assert_close(layer.gated(x, o, g, h, u), layer(x), rtol=1e-4, atol=1e-5)


def silent(layer):
    """No queries and keys: every score is 0."""
    with torch.no_grad():
        heads = layer.num_heads * layer.head_dim
        layer.qkv.weight[: 2 * heads] = 0
        layer.qkv.bias[: 2 * heads] = 0
    return layer


@pytest.mark.parametrize("options", [{}, {"chunk": 16}, {"causal": False}])
def test_las_without_queries_and_keys_attends_evenly(options):
    layer = silent(made("l", **{k: v for k, v in options.items() if k == "chunk"}))
    if "causal" in options:
        layer = silent(made("l", bidirectional=True))
    x = torch.randn(2, 64, 8)
    profile = by_distance(attention_map(layer, x), visible_keys(layer, 64))
    reach = options.get("chunk", 64)
    torch.testing.assert_close(profile[:, :reach], torch.ones(2, reach))
    assert (profile[:, reach:] == 0).all()
    if reach == 64:
        found = measure(profile[0])
        assert found.decay_rate == pytest.approx(0, abs=1e-6)
        assert found.entropy == pytest.approx(math.log(64), abs=1e-5)
        assert found.total_variation == pytest.approx(0, abs=1e-4)
        assert found.mass_beyond["16"] == pytest.approx(47 / 64, abs=1e-5)


def test_smoothing_shows_as_a_ramp_over_the_window():
    layer = silent(made("las", window=5))
    profile = by_distance(attention_map(layer, torch.randn(1, 64, 8)), visible_keys(layer, 64))
    torch.testing.assert_close(profile[0, :4], torch.tensor([0.2, 0.4, 0.6, 0.8]))
    torch.testing.assert_close(profile[0, 4:], torch.ones(60))


def test_smoothing_makes_rows_smoother():
    x = torch.randn(2, 64, 8)
    rough, smooth = (
        look_at_layer(made(key, **options), 4 * x)[0].summary()
        for key, options in (("l", {}), ("las", {"window": 9}))
    )
    assert smooth.total_variation < rough.total_variation
    assert smooth.spectral_centroid < rough.spectral_centroid / 3
    flat = silent(made("l"))
    assert look_at_layer(flat, x)[0].summary().total_variation == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("rate", [0.001, 0.05, 1.0])
def test_a_known_decay_is_found(rate):
    distance = torch.arange(256, dtype=torch.float64)
    for swing in (1.0, torch.cos(math.pi * distance)):  # also under a change of sign
        found, fit = decay_fit(3 * torch.exp(-rate * distance) * swing)
        assert found == pytest.approx(rate, rel=1e-9)
        assert fit == pytest.approx(1)


def test_measures_of_known_kernels():
    exponential = measure(torch.exp(-0.1 * torch.arange(512.0).double()))
    assert exponential.half_distance == 6  # 1 - exp(-0.1 (d+1)) reaches a half at d = 6
    assert exponential.mass_beyond["16"] == pytest.approx(math.exp(-1.7), rel=1e-6)
    assert exponential.total_variation == pytest.approx(1, abs=1e-6)
    wave = measure(torch.cos(2 * math.pi * torch.arange(512.0) / 8))
    assert wave.spectral_centroid == pytest.approx(1 / 8, abs=1e-6)
    noise = measure(torch.randn(8192, generator=torch.Generator().manual_seed(0)))
    assert noise.spectral_centroid == pytest.approx(0.25, abs=0.01)
    single = measure(torch.tensor([1.0, 0.0, 0.0]))
    assert single.decay_rate is None and single.half_distance == 0 and single.entropy == 0


def test_measures_refuse_what_is_no_kernel():
    with pytest.raises(ValueError, match="NaN"):
        measure(torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="zero everywhere"):
        measure(torch.zeros(4))
    with pytest.raises(ValueError, match=r"got \(2, 4\)"):
        measure(torch.ones(2, 4))


def test_thinned_profiles_keep_both_ends():
    points = thin(torch.arange(1000.0))
    assert len(points) <= 64
    assert points[0] == [0, 0.0] and points[-1] == [999, 999.0]
    assert [d for d, _ in points[:16]] == list(range(16))
    assert thin(torch.tensor([1.0, 2e-6, 1e-9])) == [[0, 1.0], [1, 2e-6], [2, 0.0]]


def test_influence_sees_exactly_the_receptive_field():
    layer = made("conv", kernel_size=7, bidirectional=False)
    found = influence(layer, torch.randn(2, 32, 8), causal=True)
    assert (found[:7] > 0).all() and (found[7:] == 0).all()
    layer = made("conv", kernel_size=7, bidirectional=True)
    found = influence(layer, torch.randn(2, 32, 8), causal=False)
    assert (found[:4] > 0).all() and (found[4:] == 0).all()


@pytest.mark.parametrize("key", list(MIXERS))
def test_every_mixer_shows_something(key):
    views = look_at_layer(made(key, length=32), torch.randn(1, 32, 8))
    kinds = {view.view for view in views}
    if key in CONVOLUTIONS:
        assert "kernel" in kinds
    if key in ATTENTION:
        assert "attention" in kinds
    assert views[-1].view == "gradient"
    for view in views:
        assert torch.isfinite(view.kernels).all()
        assert view.summary().half_distance < 32
