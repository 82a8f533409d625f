"""Batch normalisation's kernels against the formulas, in Triton's interpreter or on a GPU."""

import pytest
import torch

from longlens.models.norms import MaskedBatchNorm
from longlens.ops.norm import (
    column_moments,
    has_kernels,
    moments_reference,
    scaled_sums,
    scaled_sums_reference,
)

SHAPES = [(1, 1), (7, 3), (33, 256), (700, 24), (90, 300)]
LARGE = [(60_000, 256), (60_000, 300)]  # many tiles a program, many programs
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=[pytest.mark.kernels, pytest.mark.kernels_short]),
        pytest.param("cuda", marks=on_gpu),
    ],
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
    exact = moments_reference(x.double(), real)
    assert (count == exact[2]).all()
    close(mean, exact[0])
    close(var, exact[1], rtol=1e-4)


def test_the_reference_is_torchs_own():
    x = torch.randn(9, 4).double()
    real = torch.tensor([True, False, True] * 3)[:, None]
    mean, var, count = moments_reference(x, real)
    torch.testing.assert_close(mean, x[real[:, 0]].mean(0))
    torch.testing.assert_close(var, x[real[:, 0]].var(0, correction=0))
    assert count.tolist() == [6.0] * 4
    torch.testing.assert_close(moments_reference(x, None)[1], x.var(0, correction=0))


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
    wide = (t.double() for t in (grad, x, mean, rate))
    close(scaled_sums(grad, x, mean, rate), scaled_sums_reference(*wide), atol=1e-4)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "width"), LARGE)
def test_large_inputs_as_in_training(rows, width, dtype):
    x, grad = (torch.randn(width, rows, device="cuda").to(dtype).T + 3 for _ in "xg")
    real = torch.rand(rows, 1, device="cuda") < 0.8
    for mask in (None, real):
        expected = moments_reference(x.double(), mask)
        close(column_moments(x, mask), expected, rtol=1e-4, atol=1e-4)
    mean, rate = torch.rand(2, width, device="cuda")
    expected = scaled_sums_reference(grad.double(), x.double(), mean.double(), rate.double())
    close(scaled_sums(grad, x, mean, rate), expected, rtol=1e-4, atol=0.2)
    assert torch.equal(scaled_sums(grad, x, mean, rate), scaled_sums(grad, x, mean, rate))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_batch_norm_is_the_eager_one():
    torch.manual_seed(0)
    norm = MaskedBatchNorm(48).cuda()
    program = torch.compile(norm, dynamic=True, fullgraph=True)
    for length in (65, 131):
        x = torch.randn(4, length, 48, device="cuda").requires_grad_()
        mask = torch.rand(4, length, device="cuda") < 0.7
        upstream = torch.randn_like(x)
        inputs = (x, norm.weight, norm.bias)
        found = torch.autograd.grad(program(x, mask), inputs, upstream)
        expected = torch.autograd.grad(norm(x, mask), inputs, upstream)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@devices
def test_a_mask_of_another_size_is_refused(device):
    x = torch.ones(6, 2, device=device)
    with pytest.raises(ValueError, match=r"real must have shape \(6, 1\), got \(3, 1\)"):
        column_moments(x, torch.ones(3, 1, dtype=torch.bool, device=device))
