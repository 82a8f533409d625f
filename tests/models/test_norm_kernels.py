"""Normalisation kernels against the formulas, in Triton's interpreter or on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from longlens.layers import build
from longlens.models.backbone import Block
from longlens.models.norms import MaskedBatchNorm, PositionNorm
from longlens.ops.norm import (
    column_moments,
    fork_layer_norm,
    has_kernels,
    layer_norm_backward,
    scaled_sums,
)

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
@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 5, 3), (3, 40, 300), (1, 4, 2048)])
def test_a_fork_has_the_gradients_of_its_two_ways(device, shape):
    x = torch.randn(shape, device=device).requires_grad_()
    weight, bias = torch.randn(2, shape[-1], device=device).unbind()
    inputs = (x, weight.requires_grad_(), bias.requires_grad_())
    to_stream, to_norm = torch.randn(2, *shape, device=device)
    found = fork_layer_norm(*inputs, 1e-5)
    grads = torch.autograd.grad(found, inputs, (to_stream, to_norm))
    wide = [t.detach().double().requires_grad_() for t in inputs]
    normed = F.layer_norm(wide[0], shape[-1:], wide[1], wide[2], 1e-5)
    close(found[1], normed, rtol=1e-4, atol=1e-4)
    expected = torch.autograd.grad((wide[0] * 1, normed), wide, (to_stream, to_norm))
    for one, other in zip(grads, expected, strict=True):
        close(one, other, rtol=1e-3, atol=1e-3 if shape[-1] > 2 else 0.5)  # two columns: 1 / 0


@devices
def test_a_stride_of_zero_in_the_gradient(device):
    x = torch.randn(2, 5, 8, device=device).requires_grad_()
    stream, normed = fork_layer_norm(x, torch.ones(8, device=device), x.new_zeros(8), 1e-5)
    (found,) = torch.autograd.grad(stream.sum() + normed.square().mean(), x)
    plain = F.layer_norm(x, (8,))
    (expected,) = torch.autograd.grad(x.sum() + plain.square().mean(), x)
    torch.testing.assert_close(found, expected)


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
    row = torch.rand(9, device=device)
    column = torch.rand(4, device=device)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(column_moments, (x, x[:, :1] > 0), test_utils=checks)
    torch.library.opcheck(scaled_sums, (x, x, column, column), test_utils=checks)
    torch.library.opcheck(layer_norm_backward, (x, x, x, column, row, row), test_utils=checks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_a_block_under_autocast_is_as_exact_as_without_kernels(monkeypatch, compiled, residual):
    torch.manual_seed(0)
    block = Block(build("las", 64, num_heads=2), 64).cuda()
    x = torch.randn(4, 128, 64, device="cuda").to(residual).requires_grad_()
    upstream = torch.randn(4, 128, 64, device="cuda")
    inputs = (x, *block.parameters())

    def grads(run):
        with torch.autocast("cuda", torch.bfloat16):
            y = run(x)
        return torch.autograd.grad(y.float(), inputs, upstream)

    run = torch.compile(block) if compiled else block
    with_kernels = grads(run)
    with monkeypatch.context() as patch:
        patch.setattr(PositionNorm, "fork", lambda self, x, mask=None: (x, self(x, mask)))
        torch._dynamo.reset()
        without = grads(block)
    exact = torch.autograd.grad(
        block.double()(wide := x.detach().double().requires_grad_()),
        (wide, *block.parameters()), upstream.double(),
    )  # fmt: skip
    for one, other, true in zip(with_kernels, without, exact, strict=True):
        error, allowed = ((t.double() - true).norm() for t in (one, other))
        assert error <= 1.5 * allowed + 1e-3 * true.norm()
