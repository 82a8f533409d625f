"""Batch normalisation's kernels against the formulas, in Triton's interpreter or on a GPU."""

import pytest
import torch

from longlens.models.norms import MaskedBatchNorm
from longlens.ops.norm import column_moments, has_kernels, scaled_sums

SHAPES = [(1, 1), (7, 3), (33, 256), (700, 24), (90, 300)]
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
devices = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.kernels), pytest.param("cuda", marks=on_gpu)],
)


def close(found, expected, rtol=2e-5, atol=2e-5):
    torch.testing.assert_close(found.double().cpu(), expected.cpu(), rtol=rtol, atol=atol)


@devices
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_moments_also_far_from_zero(device, rows, width, masked):
    x = torch.randn(rows, width, device=device) + 1000  # squares would lose all digits
    real = torch.rand(rows, 1, device=device) < 0.6 if masked else None
    mean, var, count = column_moments(x, real)
    kept = x.double() if real is None else x[real[:, 0]].double()
    assert (count == max(1, len(kept))).all()
    if len(kept):
        close(mean, kept.mean(0))
        close(var, kept.var(0, correction=0), rtol=1e-4)


@devices
def test_moments_without_a_real_row(device):
    nothing = torch.zeros(5, 1, dtype=torch.bool, device=device)
    found = column_moments(torch.full((5, 2), torch.nan, device=device), nothing)
    assert found.tolist() == [[0, 0], [0, 0], [1, 1]]


@devices
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_sums_of_the_backward_pass(device, rows, width):
    grad, x = torch.randn(2, rows, width, device=device)
    mean, rate = torch.rand(2, width, device=device)
    plain, scaled = scaled_sums(grad, x, mean, rate)
    close(plain, grad.double().sum(0), atol=1e-4)
    close(scaled, (grad.double() * (x.double() - mean) * rate).sum(0), atol=1e-4)


@devices
def test_batch_norm_with_kernels_is_batch_norm_without(device):
    norm = MaskedBatchNorm(6).to(device)
    wide = MaskedBatchNorm(6).double().to(device)
    x = torch.randn(3, 11, 6, device=device).requires_grad_()
    mask = torch.rand(3, 11, device=device) < 0.7
    upstream = torch.randn_like(x)
    exact = x.detach().double().requires_grad_()
    assert has_kernels(x, norm.weight)
    assert not has_kernels(exact, wide.weight)
    y, z = norm(x, mask), wide(exact, mask)
    close(y, z)
    close(norm.running_var, wide.running_var)
    found = torch.autograd.grad(y, (x, norm.weight, norm.bias), upstream)
    expected = torch.autograd.grad(z, (exact, wide.weight, wide.bias), upstream.double())
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@devices
def test_operators_keep_torchs_rules(device):
    x = torch.randn(9, 4, device=device)
    column = torch.rand(4, device=device)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(column_moments, (x, x[:, :1] > 0), test_utils=checks)
    torch.library.opcheck(scaled_sums, (x, x, column, column), test_utils=checks)
