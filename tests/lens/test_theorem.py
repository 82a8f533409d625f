"""Theorem B.1: softmax attention that is a convolution, to rounding."""

import pytest
import torch
import torch.nn.functional as F

from longlens.layers import build
from longlens.lens import as_attention
from longlens.lens.kernels import convolutions

EXACT = 1e-9


def convolve(kernel, u):
    """The causal convolution by its definition: kernel (..., L), u (..., L)."""
    y = torch.zeros(torch.broadcast_shapes(kernel.shape, u.shape), dtype=torch.float64)
    for t in range(u.shape[-1]):
        y[..., t:] = y[..., t:] + kernel[..., : u.shape[-1] - t] * u[..., t : t + 1]
    return y


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


KERNELS = {
    "positive": draw(40).abs(),
    "with zeros": draw(40).abs() * (torch.arange(40) % 3 == 0),
    "one tap": F.one_hot(torch.tensor(7), 40).double(),
    "signed": draw(40, seed=1),
    "negative": -draw(40).abs(),
    "decaying over 300 orders of magnitude": torch.exp(-18.0 * torch.arange(40.0).double()),
    "zeros": torch.zeros(40, dtype=torch.float64),
    "one position": torch.tensor([2.0], dtype=torch.float64),
    "channels": draw(5, 40, seed=2),
    "channels, one of them zero": draw(3, 40) * torch.tensor([[1.0], [0.0], [1.0]]),
}


@pytest.mark.parametrize("empty", ["last", "first"])
@pytest.mark.parametrize("name", KERNELS)
def test_attention_is_the_convolution(name, empty):
    kernel = KERNELS[name]
    u = draw(3, *kernel.shape, seed=3)
    attention = as_attention(kernel, empty=empty)
    expected = convolve(kernel, u)
    torch.testing.assert_close(attention(u), expected, rtol=0, atol=EXACT)


def test_a_causal_mask_changes_nothing_with_the_empty_token_first():
    attention = as_attention(KERNELS["signed"], empty="first")
    u = draw(2, 40)
    expected = convolve(KERNELS["signed"], u)
    torch.testing.assert_close(attention(u, is_causal=True), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("length", [1, 17])
@pytest.mark.parametrize("name", KERNELS)
def test_shorter_sequences_with_the_empty_token_first(name, length):
    kernel = KERNELS[name]
    u = draw(3, *kernel.shape, seed=3)[..., :length]
    attention = as_attention(kernel, empty="first")
    expected = convolve(kernel[..., :length], u)
    torch.testing.assert_close(attention(u), expected, rtol=0, atol=EXACT)


def test_the_weights_are_a_softmax_and_hold_the_kernel():
    kernel = KERNELS["positive"]
    attention = as_attention(kernel)
    weights = attention.weights()
    assert weights.shape == (1, 41, 41) and torch.isfinite(attention.query).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 41, dtype=torch.float64))
    # a column of a convolution matrix is the kernel, moved down
    torch.testing.assert_close(weights[0, 3:40, 3] * kernel.sum(), kernel[:37])
    assert (weights[0, :40, :40].triu(1) == 0).all()  # exactly: nothing leaks from the future


def test_one_head_for_one_sign_and_two_for_both():
    assert as_attention(KERNELS["positive"]).query.shape[-3] == 1
    negative = as_attention(KERNELS["negative"])
    assert negative.query.shape[-3] == 1 and negative.value < 0
    signed = as_attention(KERNELS["signed"])
    assert signed.query.shape[-3] == 2
    assert signed.value[0] > 0 > signed.value[1]


@pytest.mark.parametrize(
    "key", ["ss", "s4-v1", "s4d", "dss", "dlr", "lru", "s5", "gss", "mega", "sgconv", "longconv",
            "ckconv", "tnn"],
)  # fmt: skip
def test_heads_of_a_layer_compute_what_the_layer_does(key):
    torch.manual_seed(0)
    options = {"max_length": 24} if key in ("sgconv", "longconv", "ckconv") else {}
    options |= {"bidirectional": False}
    layer = build(key, 4, **options)
    (part,) = convolutions(layer)
    x = draw(2, 24, part.width)
    with torch.no_grad():
        expected = part.run(x)
        y = as_attention(layer, length=24)(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(y, expected, rtol=0, atol=EXACT)


def test_float32_stays_close():
    kernel = KERNELS["signed"].float()
    u = draw(40).float()
    expected = convolve(kernel.double(), u.double())
    error = (as_attention(kernel)(u) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (torch.tensor([1.0, float("nan")]), "1 of its 2 entries are NaN"),
        (torch.tensor([float("inf")]), "must be finite"),
        (torch.ones(2, 2, 2), r"shape \(L,\) or \(channels, L\).*got \(2, 2, 2\)"),
        (torch.tensor(1.0), r"got \(\)"),
        (torch.ones(0), r"at least one tap"),
        (torch.ones(3, dtype=torch.int64), "floating-point numbers, got torch.int64"),
        (torch.ones(3, dtype=torch.complex64), "got torch.complex64"),
    ],
)
def test_kernels_that_are_none(kernel, message):
    with pytest.raises(ValueError, match=message):
        as_attention(kernel)


def test_wrong_use_says_what_is_wrong():
    kernel = torch.ones(4)
    with pytest.raises(ValueError, match="empty must be one of"):
        as_attention(kernel, empty="middle")
    with pytest.raises(ValueError, match="length must be from 1 to 4, got 5"):
        as_attention(kernel, length=5)
    with pytest.raises(ValueError, match="length must be given"):
        as_attention(build("s4d", 4))
    with pytest.raises(ValueError, match="no convolution inside"):
        as_attention(build("softmax", 8), length=8)
    with pytest.raises(ValueError, match="bidirectional=True"):
        as_attention(build("s4d", 4, bidirectional=True), length=8)
    with pytest.raises(ValueError, match=r"u must have shape \(..., 4\), got \(5,\)"):
        as_attention(kernel)(torch.ones(5))
    with pytest.raises(ValueError, match=r"u must have shape \(..., 4\), got \(3,\)"):
        as_attention(kernel)(torch.ones(3))
    with pytest.raises(ValueError, match=r"\(..., 4\) or be shorter, got \(5,\)"):
        as_attention(kernel, empty="first")(torch.ones(5))
    with pytest.raises(ValueError, match="hides an empty token that stands last"):
        as_attention(kernel)(torch.ones(4), is_causal=True)
