"""Shared mathematics: every fast form against its plain reference, forward and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longlens.ops.conv import conv_reference, fft_conv, fft_length
from longlens.ops.ema import ema_kernel, ema_reference
from longlens.ops.linear import (
    elu_features,
    linear_attention,
    linear_attention_reference,
    orthogonal_gaussian,
    softmax_features,
)
from longlens.ops.rnn import GATES, rnn, rnn_reference
from longlens.ops.scan import diagonal_scan, scan_reference
from longlens.ops.ssm import (
    bilinear,
    cauchy,
    dense_kernel,
    dense_kernel_reference,
    hippo_legs,
    hippo_nplr,
    hold_gain,
    vandermonde,
    vandermonde_reference,
)

F64, C128 = torch.float64, torch.complex128


def gradients(out, inputs):
    torch.manual_seed(1)  # randn_like would follow the strides, which differ between forms
    weight = torch.randn(out.shape, dtype=out.dtype)
    return torch.autograd.grad((out * weight).real.sum(), inputs)


def same(fast, slow, inputs, tol=1e-11):
    torch.testing.assert_close(fast, slow, rtol=tol, atol=tol)
    for a, b in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def leaf(*shape, dtype=F64, scale=1.0):
    return (scale * torch.randn(shape, dtype=dtype)).requires_grad_()


@given(
    length=st.integers(1, 40), taps=st.integers(1, 50), ahead=st.integers(0, 50),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_fft_convolution_is_the_direct_sum(length, taps, ahead, seed):
    torch.manual_seed(seed)
    x, k = leaf(2, length, 3), leaf(3, taps)
    b = leaf(3, ahead) if ahead else None
    used = [x, k] if b is None or length == 1 else [x, k, b]
    same(fft_conv(x, k, b), conv_reference(x, k, b), used)


def test_fft_convolution_keeps_dtype_and_precision_under_autocast():
    x, k = torch.randn(2, 50, 3), torch.randn(3, 50)
    exact = conv_reference(x.double(), k.double())
    with torch.autocast("cpu", torch.bfloat16):
        y = fft_conv(x, k)
        low = fft_conv(x.bfloat16(), k)
    assert y.dtype == torch.float32 and low.dtype == torch.bfloat16
    assert (y - exact).abs().max() < 1e-4
    assert (low - exact).abs().max() < 0.15


def test_fft_lengths_are_enough_and_have_small_factors():
    for n in [*range(1, 13_000), 131_071, 196_609]:
        m = fft_length(n)
        assert n <= m <= max(n + 63, (5 / 4 if n <= 8192 else 4 / 3) * n + 1)
        for prime in (2, 3, 5, 7, 11, 13):
            while m % prime == 0:
                m //= prime
        assert m == 1


def test_fft_conv_names_the_wrong_argument():
    with pytest.raises(ValueError, match=r"backward must have shape \(D, K\) with D = 3"):
        fft_conv(torch.zeros(1, 4, 3), torch.zeros(3, 4), torch.zeros(4, 3))


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 100, 1025, 2100])
@pytest.mark.parametrize("dtype", [F64, C128])
def test_scan_is_the_loop(length, dtype):
    a = (0.3 + 0.69 * torch.rand(4, dtype=F64)).to(dtype)
    if dtype == C128:
        a = a * torch.exp(1j * torch.linspace(0, 6, 4, dtype=F64))
    a.requires_grad_()
    b = leaf(2, length, 4, dtype=dtype)
    used = [b] if length == 1 else [a, b]
    same(diagonal_scan(a, b), scan_reference(a, b), used)


def test_scan_with_a_zero_ratio_forgets_everything():
    b = torch.randn(1, 70, 2, dtype=F64)
    torch.testing.assert_close(diagonal_scan(torch.zeros(2, dtype=F64), b), b)


@pytest.mark.parametrize("length", [1, 70])
def test_scan_under_torch_func(length):
    a, b = torch.rand(4, dtype=F64), torch.randn(3, 2, length, 4, dtype=F64)

    def loss(scan):
        return lambda a, b: scan(a, b).square().sum()

    found, exact = (
        torch.func.vmap(torch.func.grad(loss(scan), (0, 1)), (None, 0))(a, b)
        for scan in (diagonal_scan, scan_reference)
    )
    torch.testing.assert_close(found, exact)


def test_scan_keeps_only_its_output():
    a, b = torch.full((8,), 0.9, requires_grad=True), torch.randn(2, 256, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        diagonal_scan(a, b)
    assert sum(kept) <= 2 * 256 * 8 + 8


@pytest.mark.parametrize("length", [1, 2, 7, 64, 100])
def test_vandermonde_is_its_sum(length):
    c, r = leaf(2, 3, 5, dtype=C128), leaf(3, 5, dtype=C128, scale=0.1)
    used = [c] if length == 1 else [c, r]
    same(vandermonde(c, r, length), vandermonde_reference(c, r, length), used)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 100])
def test_dense_kernel_is_matrix_powers(length):
    a, b = leaf(3, 5, 5, scale=0.3), leaf(3, 5)
    c = leaf(2, 3, 5)
    used = [b, c] if length == 1 else [a, b, c]
    same(dense_kernel(a, b, c, length), dense_kernel_reference(a, b, c, length), used)


def test_cauchy_is_its_sum():
    v, lam = leaf(2, 3, 4, dtype=C128), leaf(3, 4, dtype=C128)
    z, w = torch.randn(3, 6, dtype=C128), torch.randn(6, dtype=C128)
    parts = [
        v[..., None] / (z[None, :, None] - w * lam[None, ..., None]),
        v.conj()[..., None] / (z[None, :, None] - w * lam.conj()[None, ..., None]),
    ]
    same(cauchy(v, lam, z, w), (parts[0] + parts[1]).sum(2), [v, lam], tol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 9, 300])
def test_ema_convolution_is_the_recurrence(length):
    rates = [torch.rand(3, 4, dtype=F64).requires_grad_() for _ in range(2)]
    weights = [leaf(3, 4), leaf(3, 4)]
    x = leaf(2, length, 3)
    fast = fft_conv(x, ema_kernel(*rates, *weights, length))
    used = [x, rates[0], *weights] if length == 1 else [x, *rates, *weights]
    same(fast, ema_reference(x, *rates, *weights), used)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("length", [1, 5, 8, 19])
def test_linear_attention_is_its_matrix(causal, normalize, length):
    q, k, v = leaf(2, 2, length, 3), leaf(2, 2, length, 3), leaf(2, 2, length, 4)
    options = {"causal": causal, "normalize": normalize}
    fast = linear_attention(elu_features(q), elu_features(k), v, chunk=8, **options)
    slow = linear_attention_reference(elu_features(q), elu_features(k), v, **options)
    same(fast, slow, [q, k, v])


def test_softmax_features_estimate_the_exponential():
    q, k = 0.3 * torch.randn(6, 4, dtype=F64), 0.3 * torch.randn(6, 4, dtype=F64)
    w = orthogonal_gaussian(200_000, 4).double()
    shift = (q @ w.T - q.square().sum(-1, keepdim=True) / 2).amax(-1, keepdim=True)
    estimate = softmax_features(q, w, is_query=True) @ softmax_features(k, w, is_query=False).T
    torch.testing.assert_close(estimate * torch.exp(shift), torch.exp(q @ k.T), rtol=0.02, atol=0)


def test_elu_features_are_elu_plus_one():
    x = torch.linspace(-3, 3, 50, dtype=F64, requires_grad=True)
    same(elu_features(x), torch.nn.functional.elu(x) + 1, [x], tol=1e-14)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_rnn_is_its_gates(kind):
    gates = GATES[kind] * 3
    weights = [leaf(gates, 3), leaf(gates, 3), leaf(gates), leaf(gates)]
    x = leaf(2, 6, 3)
    same(rnn(kind, x, weights), rnn_reference(kind, x, weights), [x, *weights])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.longlens.rnn.default, (kind, x, weights), test_utils=checks)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager")
    same(compiled(kind, x, weights), rnn_reference(kind, x, weights), [x, *weights])


def test_hippo_legs_has_its_closed_form():
    a, b = hippo_legs(6)
    for n in range(6):
        assert b[n] == pytest.approx(math.sqrt(2 * n + 1))
        for k in range(6):
            low = -math.sqrt((2 * n + 1) * (2 * k + 1))
            assert a[n, k] == pytest.approx(low if n > k else -(n + 1) if n == k else 0)


@pytest.mark.parametrize("state", [2, 8, 64])
def test_nplr_rebuilds_hippo(state):
    lam, p, b, v = hippo_nplr(state)
    torch.testing.assert_close(lam.real, torch.full_like(lam.real, -0.5))
    assert (lam.imag > 0).all()
    torch.testing.assert_close(v.conj().T @ v, torch.eye(state // 2, dtype=C128))
    torch.testing.assert_close((v.conj().T @ v.conj()).abs().max(), torch.tensor(0.0, dtype=F64))
    a, b_dense = hippo_legs(state)
    # Both halves: A = 2 Re[V (Λ v* ...)] minus the low-rank part, P = 2 Re(V p).
    normal = 2 * (v @ torch.diag(lam) @ v.conj().T).real
    p_dense = 2 * (v @ p).real
    torch.testing.assert_close(normal - torch.outer(p_dense, p_dense), a)
    torch.testing.assert_close(2 * (v @ b).real, b_dense)
    torch.testing.assert_close(p_dense, torch.sqrt(torch.arange(state, dtype=F64) + 0.5))


def test_hippo_nplr_needs_an_even_state():
    with pytest.raises(ValueError, match="state must be even and at least 2, got 3"):
        hippo_nplr(3)


def test_discretisations_solve_the_differential_equation():
    lam, dt = torch.tensor([-0.5 + 3j], dtype=C128), torch.tensor([1e-3], dtype=F64)
    exact = (torch.exp(lam * dt) - 1) / lam
    torch.testing.assert_close(hold_gain(lam, dt), exact, rtol=1e-10, atol=0)
    # In float32 the plain formula loses half its digits; hold_gain does not.
    single = hold_gain(lam.to(torch.complex64), dt.float())
    assert (single - exact).abs() / exact.abs() < 1e-6
    a = torch.randn(3, 3, dtype=F64)
    abar, bbar = bilinear(a, torch.ones(3, dtype=F64), dt)
    torch.testing.assert_close(abar[0], torch.linalg.matrix_exp(a * dt), rtol=0, atol=1e-8)
    assert (bbar[0] - dt * (torch.ones(3, dtype=F64) + a.sum(1) * dt / 2)).abs().max() < 1e-8
