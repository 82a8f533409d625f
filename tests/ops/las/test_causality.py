"""`causal` and `masked` smoothing never see the future; `centered` does, and says how far."""

import pytest
import torch

from longlens import las_attention
from longlens.ops.las.decode import LaSCache

N, CUT = 150, 70
RATES = [None, 1e-3, 0.5, 40.0]


def call(q, k, v, rate, smoothing, **options):
    alpha = None if rate is None else torch.tensor([0.0, rate])
    return las_attention(q, k, v, alpha=alpha, window=5, smoothing=smoothing, **options)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("smoothing", ["causal", "masked"])
@pytest.mark.parametrize("options", [dict(), dict(chunk=32), dict(edge="renormalize")], ids=str)
def test_no_gradient_from_the_future(rate, smoothing, options):
    q, k, v = (torch.randn(1, 2, N, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = call(q, k, v, rate, smoothing, **options)
    for grad in torch.autograd.grad(out[:, :, : CUT + 1].square().sum(), (q, k, v)):
        assert torch.count_nonzero(grad[:, :, CUT + 1 :]) == 0
        assert torch.count_nonzero(grad[:, :, CUT]) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("smoothing", ["causal", "masked"])
def test_huge_changes_of_the_future_change_no_bit(rate, smoothing, dtype):
    q, k, v = (torch.randn(1, 2, N, 8).to(dtype) for _ in range(3))
    before = call(q, k, v, rate, smoothing)
    for t in (q, k, v):
        t[:, :, CUT + 1 :] = torch.randn(1, 2, N - CUT - 1, 8) * 1e4
    after = call(q, k, v, rate, smoothing)
    assert torch.equal(before[:, :, : CUT + 1], after[:, :, : CUT + 1])
    assert not torch.equal(before[:, :, CUT + 1], after[:, :, CUT + 1])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("smoothing", ["causal", "masked"])
@pytest.mark.parametrize("edge", ["zero", "renormalize"])
@pytest.mark.parametrize("chunk", [None, 32])
def test_a_prefix_gives_the_prefix(rate, smoothing, edge, chunk):
    q, k, v = (torch.randn(2, 2, N, 8, dtype=torch.float64) for _ in range(3))
    options = dict(edge=edge, chunk=chunk)
    whole = call(q, k, v, rate, smoothing, **options)
    part = call(q[:, :, :CUT], k[:, :, :CUT], v[:, :, :CUT], rate, smoothing, **options)
    torch.testing.assert_close(whole[:, :, :CUT], part, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("smoothing", ["causal", "masked"])
@pytest.mark.parametrize("edge", ["zero", "renormalize"])
@pytest.mark.parametrize("chunk", [None, 32])
@pytest.mark.parametrize("window", [1, 3, 9])
def test_decoding_equals_the_full_forward(rate, smoothing, edge, chunk, window):
    q = torch.randn(2, 4, 90, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 90, 8, dtype=torch.float64) for _ in range(2))
    alpha = None if rate is None else torch.tensor([0.0, rate / 2, rate / 3, rate])
    options = dict(window=window, smoothing=smoothing, edge=edge, chunk=chunk)
    expected = las_attention(q, k, v, alpha=alpha, enable_gqa=True, **options)
    for start in (1, 2, 33):
        cache = LaSCache(k[:, :, :start], v[:, :, :start], **options)
        for t in range(start, 90):
            cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
            found = cache.attend(q[:, :, t : t + 1], alpha=alpha)
            torch.testing.assert_close(found, expected[:, :, t : t + 1], rtol=0, atol=1e-13)


def test_centered_sees_half_a_window_ahead_and_no_more():
    q, k = (torch.randn(1, 2, 20, 8, dtype=torch.float64) for _ in range(2))
    v = torch.randn(1, 2, 20, 8, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(call(q, k, v, 0.1, "centered")[:, :, 10].sum(), v)
    assert torch.count_nonzero(grad[:, :, 12]) > 0  # p = 2 ahead of position 10
    assert torch.count_nonzero(grad[:, :, 13:]) == 0


def test_centered_refuses_to_decode():
    k = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="centered"):
        LaSCache(k, k, window=3, smoothing="centered")
