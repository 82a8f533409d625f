"""Convolutions and hybrids: each layer against its equations written out, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from longlens.layers import build
from longlens.layers.ckconv import CKConv
from longlens.layers.conv import ShortConv
from longlens.layers.gmlp import GMLP
from longlens.layers.hyena import Hyena
from longlens.layers.longconv import LongConv, smooth, squash
from longlens.layers.mega import DampedEMA, Mega, laplace
from longlens.layers.sgconv import SGConv
from longlens.ops.conv import conv_reference
from longlens.ops.ema import ema_reference
from tests.layers.cases import run_steps
from tests.layers.test_state_space import shake

F64 = torch.float64
BOTH = pytest.mark.parametrize("bidirectional", [False, True])


def framed(layer, x, past, future):
    """The frame of long convolutions, by the direct sum."""
    return layer.mix(conv_reference(x, past, future) + layer.skip * x)


@BOTH
def test_sgconv_kernel_is_its_scales(bidirectional):
    layer = shake(SGConv(3, scale_dim=4, decay=0.5, max_length=30, bidirectional=bidirectional))
    kernel = layer.kernel
    assert kernel.w.shape[0] == 1 + math.ceil(math.log2(30 / 4))  # lengths 4, 4, 8, 16
    taps = torch.zeros(1 + bidirectional, 3, 32, dtype=F64)
    start = 0
    for i, size in enumerate((4, 4, 8, 16)):
        for t in range(size):
            # linear interpolation with the ends of the samples half a step inside
            place = min(max((t + 0.5) * 4 / size - 0.5, 0), 3)
            low, part = int(place), place - int(place)
            high = min(low + 1, 3)
            value = (1 - part) * kernel.w[i, ..., low] + part * kernel.w[i, ..., high]
            taps[..., start + t] = 0.5**i * value
        start += size
    taps = taps / kernel.norm
    torch.testing.assert_close(kernel(30), taps[..., :30])
    torch.testing.assert_close(kernel(7), taps[..., :7])
    x = torch.randn(2, 30, 3, dtype=F64)
    expected = framed(layer, x, taps[0], taps[1] if bidirectional else None)
    torch.testing.assert_close(layer(x), expected)


def test_sgconv_starts_with_unit_norm():
    taps = SGConv(3, scale_dim=4, max_length=32).kernel(32)
    torch.testing.assert_close(taps.norm(dim=-1), torch.ones(1, 3))


@BOTH
def test_longconv_is_its_regularised_taps(bidirectional):
    layer = shake(
        LongConv(3, max_length=20, threshold=0.05, smoothing=3, bidirectional=bidirectional)
    )
    raw = F.pad(layer.kernel.taps, (1, 1))
    mean = (raw[..., :-2] + raw[..., 1:-1] + raw[..., 2:]) / 3
    taps = torch.where(mean.abs() > 0.05, mean - 0.05 * mean.sign(), torch.zeros_like(mean))
    torch.testing.assert_close(layer.kernel(20), taps)
    x = torch.randn(2, 20, 3, dtype=F64)
    expected = framed(layer, x, taps[0], taps[1] if bidirectional else None)
    torch.testing.assert_close(layer(x), expected)


def test_squash_makes_sparse_and_smooth_makes_smooth():
    taps = torch.randn(1, 4, 200)
    assert (squash(taps, 0.5) == 0).float().mean() > 0.3
    assert smooth(taps, 9).diff().abs().mean() < 0.3 * taps.diff().abs().mean()
    with pytest.raises(ValueError, match="smoothing must be odd and at least 1, got 4"):
        LongConv(4, smoothing=4)


@BOTH
def test_ckconv_is_its_network(bidirectional):
    layer = shake(CKConv(3, hidden=8, omega=5.0, max_length=20, bidirectional=bidirectional))
    net = layer.kernel.network
    position = (torch.arange(20, dtype=F64) / 20)[:, None]
    h = torch.sin(5.0 * (position @ net.first.weight.T + net.first.bias))
    h = torch.sin(h @ net.second.weight.T + net.second.bias)
    taps = (h @ net.last.weight.T + net.last.bias).T.reshape(-1, 3, 20)
    x = torch.randn(2, 20, 3, dtype=F64)
    expected = framed(layer, x, taps[0], taps[1] if bidirectional else None)
    torch.testing.assert_close(layer(x), expected)


def test_hyena_needs_two_gates():
    with pytest.raises(ValueError, match="order must be at least 2, got 1"):
        Hyena(4, order=1)


@BOTH
@pytest.mark.parametrize("size", [1, 4, 5])
def test_short_convolution_is_its_window(bidirectional, size):
    layer = shake(ShortConv(3, kernel_size=size, bidirectional=bidirectional))
    x = torch.randn(2, 9, 3, dtype=F64)
    ahead = (size - 1) // 2 if bidirectional else 0
    y = layer.depthwise.bias.expand(2, 9, 3).clone()
    for i in range(9):
        for tap in range(size):
            j = i + tap - (size - 1 - ahead)
            if 0 <= j < 9:
                y[:, i] += layer.depthwise.weight[:, 0, tap] * x[:, j]
    torch.testing.assert_close(layer(x), layer.pointwise(F.gelu(y)))


@BOTH
@pytest.mark.parametrize("toeplitz", [False, True])
def test_gmlp_is_its_gate(bidirectional, toeplitz):
    layer = shake(GMLP(4, max_length=16, toeplitz=toeplitz, groups=2, bidirectional=bidirectional))
    x = torch.randn(2, 9, 4, dtype=F64)
    u, v = F.gelu(layer.input(x)).chunk(2, -1)
    v = F.layer_norm(v, (8,), layer.norm.weight, layer.norm.bias)
    if toeplitz:
        taps = layer.spatial[:, [0] * 4 + [1] * 4]
        mixed = conv_reference(v, taps[0], taps[1] if bidirectional else None)
    else:
        matrix = layer.spatial[:9, :9]
        mixed = (matrix if bidirectional else matrix.tril()) @ v
    expected = layer.output(u * (mixed + layer.bias[:9, None]))
    torch.testing.assert_close(layer(x), expected)
    assert layer.cost == ("L log L" if toeplitz else "L^2")


def test_gmlp_starts_as_a_perceptron():
    layer = GMLP(8, max_length=16)
    x = torch.randn(2, 16, 8)
    u = F.gelu(layer.input(x)).chunk(2, -1)[0]
    torch.testing.assert_close(layer(x), layer.output(u), rtol=0, atol=5e-3)


@BOTH
def test_mega_average_is_the_recurrence(bidirectional):
    ema = shake(DampedEMA(3, averages=4, bidirectional=bidirectional), 0.5)
    x = torch.randn(2, 50, 3, dtype=F64)
    y = ema_reference(x, *ema.rates())
    if bidirectional:
        y = y + ema_reference(x.flip(1), *ema.rates(1)).flip(1)
    torch.testing.assert_close(ema(x), F.silu(y + ema.skip * x))


@BOTH
@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("relative_bias", ["rotary", "simple"])
def test_mega_is_its_equations(bidirectional, chunk, attention, relative_bias):
    layer = shake(
        Mega(
            4,
            query_dim=6,
            averages=3,
            chunk=chunk,
            attention=attention,
            relative_bias=relative_bias,
            max_length=20,
            bidirectional=bidirectional,
        )
    )
    x = torch.randn(2, 13, 4, dtype=F64)
    smoothed = layer.ema(x)
    z, g, h, u = layer.project(smoothed).split([6, 8, 4, 4], -1)
    z = F.silu(z)
    q, k = (z * layer.scale[i] + layer.shift[i] for i in (0, 1))
    v = F.silu(layer.value(x))
    o = torch.zeros_like(v)
    for i in range(13):
        start = 0 if chunk is None else i // chunk * chunk
        stop = 13 if chunk is None else min(13, start + chunk)
        keys = range(start, stop if bidirectional else i + 1)

        def turn(vector, position):
            rate = 10000.0 ** (-torch.arange(3, dtype=torch.float32) / 3)
            a, b = vector[:3], vector[3:]
            angle = (float(position) * rate).double()
            cos, sin = angle.cos(), angle.sin()
            return torch.cat([a * cos - b * sin, b * cos + a * sin])

        def bias_of(j, i=i, start=start):
            if relative_bias == "simple":
                return layer.bias_table[(20 if chunk is None else chunk) - 1 + j - i]
            return turn(layer.bias_query, i - start) @ turn(layer.bias_key, j - start)

        scale = math.sqrt(6) if attention == "softmax" else len(keys)
        bias = torch.stack([bias_of(j) for j in keys])
        scores = torch.stack([(q[:, i] * k[:, j]).sum(-1) for j in keys], -1) / scale + bias
        weights = scores.softmax(-1) if attention == "softmax" else laplace(scores)
        o[:, i] = torch.einsum("bj,bjw->bw", weights, v[:, keys.start : keys.stop])
    gate = torch.sigmoid(u)
    hidden = F.silu(h + layer.mix(F.silu(g) * o))
    expected = gate * hidden + (1 - gate) * x
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("attention", ["softmax", "laplace"])
def test_mega_with_a_bias_for_every_distance_steps_and_learns_it(chunk, attention):
    """Steps equal the whole, every distance that occurs has a gradient, padding changes nothing."""
    own = dict(query_dim=6, averages=3, chunk=chunk, attention=attention, relative_bias="simple")
    layer = shake(Mega(4, max_length=13, **own))
    x = torch.randn(2, 13, 4, dtype=F64)
    whole = layer(x)
    torch.testing.assert_close(run_steps(layer, x), whole)
    both = shake(Mega(4, max_length=16, bidirectional=True, **own))
    mask = (torch.arange(16) < 13).expand(2, -1)
    padded = both(F.pad(x, (0, 0, 0, 3), value=math.nan), mask)[:, :13]
    torch.testing.assert_close(padded, both(x))
    (grad,) = torch.autograd.grad(whole.square().sum(), layer.bias_table)
    past = layer.reach - 1  # the last places are of keys ahead, which a causal layer never sees
    assert (grad[: past + 1] != 0).all() and (grad[past + 1 :] == 0).all()
    if chunk is None:
        with pytest.raises(ValueError, match="max_length=13"):
            layer(torch.zeros(1, 14, 4, dtype=F64))


def test_laplace_is_close_to_squared_relu():
    """The paper chose μ and σ so that it matches relu² in value and slope at √½."""
    x = torch.tensor([math.sqrt(0.5)], dtype=F64, requires_grad=True)
    y = laplace(x)
    (slope,) = torch.autograd.grad(y, x)
    assert y.item() == pytest.approx(0.5)
    assert slope.item() == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("key", ["lstm", "gru"])
def test_recurrent_networks_are_torchs(key):
    ours = build(key, 5).double()
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[key](5, 5, batch_first=True).double()
    with torch.no_grad():
        for mine, name in zip(
            ours.forwards, ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), strict=True
        ):
            getattr(theirs, name).copy_(mine)
    x = torch.randn(2, 9, 5, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x)[0])
