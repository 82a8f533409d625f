"""The perceptron's kernel against the formula, in Triton's interpreter or on a GPU."""

import pytest
import torch
from torch import nn

from longlens.models.backbone import FeedForward
from longlens.ops import perceptron as module
from longlens.ops.perceptron import (
    gelu_backward,
    has_kernels,
    linear_gelu,
    perceptron,
    perceptron_reference,
)

SHAPES = [(1, 64, 128), (200, 128, 256), (130, 192, 384)]
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
devices = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.kernels), pytest.param("cuda", marks=on_gpu)],
)


def drawn(rows, width, hidden, device, dtype):
    """Input and weights of unit size at every stage, in float64 but with dtype's digits."""
    shapes = ((rows, width), (hidden, width), (hidden,), (width, hidden), (width,))
    scales = (1.0, width**-0.5, 1.0, hidden**-0.5, 1.0)
    return [
        (torch.randn(shape, device=device, dtype=torch.float64) * scale).to(dtype).double()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def with_gradients(function, inputs, upstream):
    inputs = [t.clone().requires_grad_() for t in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out.dtype))]


@devices
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("rows", "width", "hidden"), SHAPES)
def test_forward_and_all_gradients(device, half, rows, width, hidden):
    """As close to float64 as PyTorch's own operators of that dtype, but for a factor."""
    dtype = torch.float32
    if half:
        dtype = torch.bfloat16 if device == "cuda" else torch.float16
    if device == "cuda" and not half:
        pytest.skip("the kernels are for half precision there")
    torch.manual_seed(0)
    inputs = drawn(rows, width, hidden, device, dtype)
    upstream = torch.randn(rows, width, device=device)
    exact = with_gradients(perceptron_reference, inputs, upstream)
    low = [t.to(dtype) for t in inputs]
    assert has_kernels(low[0], dtype, hidden)
    usual = with_gradients(perceptron_reference, low, upstream)
    found = with_gradients(perceptron, low, upstream)
    for one, other, true in zip(found, usual, exact, strict=True):
        assert one.dtype == other.dtype
        size = true.abs().max()
        floor = 8 * torch.finfo(dtype).eps
        error, budget = ((t.double() - true).abs().max() / size for t in (one, other))
        assert error <= 2 * budget + floor, (error, budget)


@devices
def test_each_kernel_is_what_it_says(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, w1, b1, w2, _ = (t.to(dtype) for t in drawn(150, 64, 128, device, dtype))
    h, activity = linear_gelu(x, w1, b1)
    near = {"rtol": 2e-2, "atol": 2e-2} if device == "cuda" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(h, nn.functional.linear(x, w1, b1), **near)
    torch.testing.assert_close(activity, nn.functional.gelu(h, approximate="tanh"), **near)
    wide = h.double().requires_grad_()
    grad = torch.randn(150, 64, device=device).to(dtype)
    nn.functional.gelu(wide, approximate="tanh").backward(grad.double() @ w2.double())
    inner, sums = gelu_backward(grad, w2, h)
    torch.testing.assert_close(inner.double(), wide.grad, **near)
    torch.testing.assert_close(sums.double(), wide.grad.sum(0), rtol=1e-2, atol=1e-2)
    assert torch.equal(sums, gelu_backward(grad, w2, h)[1])


@devices
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")  # 1 / (1 + ∞)
def test_large_values_neither_overflow_nor_vanish(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.zeros(2, 64, device=device, dtype=dtype)
    w1 = torch.zeros(128, 64, device=device, dtype=dtype)
    b1 = torch.linspace(-1e4, 1e4, 128, device=device).to(dtype)
    h, activity = linear_gelu(x, w1, b1)
    assert torch.equal(activity, h.relu())
    one = torch.ones(2, 64, device=device, dtype=dtype)
    inner, _ = gelu_backward(one, torch.ones(64, 128, device=device, dtype=dtype), h)
    assert torch.equal(inner, 64 * (h > 0).to(dtype))


@devices
def test_operators_keep_torchs_rules(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, w1, b1, w2, _ = (t.to(dtype) for t in drawn(5, 64, 128, device, dtype))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(linear_gelu, (x, w1, b1), test_utils=checks)
    torch.library.opcheck(gelu_backward, (x, w2, x.new_ones(5, 128)), test_utils=checks)


@devices
def test_wrong_shapes_are_refused(device):
    x = torch.ones(2, 64, device=device)
    with pytest.raises(ValueError, match=r"weight must have shape \(128, 64\), got \(128, 32\)"):
        linear_gelu(x, x.new_ones(128, 32), x.new_ones(128))
    with pytest.raises(ValueError, match="multiple of 64 columns and h of 128, got 64 and 96"):
        linear_gelu(x, x.new_ones(96, 64), x.new_ones(96))


def test_a_feed_forward_part_goes_through_it_unless_somebody_watches(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "longlens.models.backbone.perceptron",
        lambda *given: calls.append(given) or perceptron_reference(*given),
    )
    part = FeedForward(8, "mlp", 16)
    x = torch.randn(2, 3, 8)
    plain = part(x)
    assert len(calls) == 1
    seen = []
    part.inner.register_forward_hook(lambda *given: seen.append(given[2].shape))
    torch.testing.assert_close(part(x), plain)
    assert len(calls) == 1 and seen == [(2, 3, 16)]
    part = FeedForward(8, "mlp", 16)
    part.outer = nn.Sequential(part.outer)  # as an adapter would
    part(x)
    assert len(calls) == 1


def test_no_kernels_where_they_do_not_fit():
    x = torch.ones(2, 64)
    assert not has_kernels(x, torch.float64, 128)
    assert not has_kernels(x, torch.float32, 100)
    assert not has_kernels(torch.ones(2, 60), torch.float32, 128)
    assert has_kernels(x, torch.float32, 128) == (module.INSTALLED and module.INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_under_autocast_for_any_length():
    torch.manual_seed(0)
    part = FeedForward(64, "mlp", 256).cuda()
    program = torch.compile(part, dynamic=True, fullgraph=True)
    for length in (65, 1000):
        x = torch.randn(4, length, 64, device="cuda").requires_grad_()
        upstream = torch.randn(4, length, 64, device="cuda")
        inputs = (x, *part.parameters())
        with torch.autocast("cuda", torch.bfloat16):
            compiled, eager = program(x), part(x)
        assert compiled.dtype == eager.dtype == torch.bfloat16
        found = torch.autograd.grad(compiled, inputs, upstream.bfloat16())
        expected = torch.autograd.grad(part(x), inputs, upstream)
        for one, other in zip(found, expected, strict=True):
            size = other.abs().max().item()
            torch.testing.assert_close(one, other, rtol=0, atol=0.03 * size)
