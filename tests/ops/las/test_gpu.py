"""The same promises on a CUDA device: error budgets, SDPA bit for bit, causality, compilation."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from longlens import LaSAttention, SoftmaxAttention, decay_rates, las_attention

from .cases import Case, over_budget
from .test_precision import READINGS

pytestmark = [
    pytest.mark.gpu,
    # of torch's own making: inductor scripting its helpers, autograd threads without a context
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context:UserWarning"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [None, 1e-3, 0.05, 1.0, 50.0])
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_error_budget(reading, rate, dtype):
    shapes = itertools.product(
        ((33, 33), (130, 131), (300, 300), (70, 301)), (True, False), (32, 40)
    )
    for seed, ((queries, keys), masked, width) in enumerate(shapes):
        case = Case(2, 2, 2, queries, keys, width, width, rate, masked, seed, reading)
        assert over_budget(case, "sdpa", dtype, "cuda") == [], case


@pytest.mark.parametrize("width", [5, 24, 96, 128, 256])
def test_head_widths(width):
    for options in READINGS:
        case = Case(2, 4, 2, 97, 97, width, 8, 0.01, False, 1, options)
        assert over_budget(case, "sdpa", torch.bfloat16, "cuda") == [], case


def test_a_sliced_upstream_gradient():
    # the gradient of a concatenation is a slice; cuDNN's backward gets that wrong on its own
    for smoothing in ("causal", "centered"):
        options = dict(smoothing=smoothing, window=3, chunk=32)
        case = Case(2, 2, 2, 45, 45, 32, 32, 0.01, False, 1, options)
        assert over_budget(case, "sdpa", torch.bfloat16, "cuda") == []


def test_a_sliced_upstream_gradient_of_compiled_attention():
    shape = (2, 2, 300, 32)
    tensors = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in range(3)]
    alpha = torch.tensor([1e-3, 2e-3], device="cuda")
    upstream = torch.randn(2, 2, 600, 32, device="cuda").bfloat16()

    def joined(q, k, v):  # of its gradient, attention gets a slice
        out = las_attention(q, k, v, alpha=alpha, alpha_max=2e-3, window=3)
        return torch.cat([out, torch.zeros_like(out)], dim=2)

    eager = torch.autograd.grad(joined(*tensors), tensors, upstream)
    compiled = torch.autograd.grad(torch.compile(joined)(*tensors), tensors, upstream)
    for found, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_off_is_sdpa_bit_for_bit(causal, dtype, width):
    shape = (2, 300, 4, width)
    q, k, v = (torch.randn(shape, device="cuda").to(dtype).transpose(1, 2) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.equal(las_attention(q, k, v, is_causal=causal), expected)


@pytest.mark.parametrize("smoothing", ["causal", "masked"])
@pytest.mark.parametrize("rate", [None, 1e-3, 0.5, 40.0])
def test_huge_changes_of_the_future_change_no_bit(smoothing, rate):
    q, k, v = (torch.randn(1, 2, 300, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    options = dict(window=5, smoothing=smoothing)
    if rate is not None:
        options["alpha"] = torch.tensor([0.0, rate], device="cuda")
    before = las_attention(q, k, v, **options)
    for t in (q, k, v):
        t[:, :, 151:] = 1e4 * torch.randn(1, 2, 149, 32, device="cuda")
    after = las_attention(q, k, v, **options)
    assert torch.equal(before[:, :, :151], after[:, :, :151])


@pytest.mark.parametrize(
    "options", [dict(), dict(causal=False), dict(smoothing="masked"), dict(chunk=64)]
)
def test_compiled_layer_under_autocast(options):
    layer = LaSAttention(128, 4, **options).cuda()
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 300, 128, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        found, expected = compiled(x), layer(x)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    found.float().square().sum().backward()
    assert x.grad.isfinite().all()


def test_a_captured_graph_replays():
    layer = LaSAttention(128, 4).cuda().bfloat16()
    x = torch.randn(2, 300, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x)
        graph.replay()
    torch.testing.assert_close(found, expected)


def test_float64_takes_the_reference():
    q = torch.randn(1, 2, 50, 8, device="cuda", dtype=torch.float64)
    alpha = decay_rates(2, device="cuda")
    torch.testing.assert_close(
        las_attention(q, q, q, alpha=alpha).cpu(),
        las_attention(q.cpu(), q.cpu(), q.cpu(), alpha=alpha.cpu()),
    )
    with pytest.raises(ValueError, match="float64 on cuda"):
        las_attention(q, q, q, alpha=alpha, impl="sdpa")


def test_decoding_on_the_device():
    for layer in (
        LaSAttention(64, 4, smoothing="masked", window=3),
        SoftmaxAttention(64, 4, rotary=True),
    ):
        layer.cuda()
        x = torch.randn(2, 40, 64, device="cuda")
        expected, state = layer(x), None
        for t in range(40):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, expected[:, t], rtol=1e-4, atol=1e-5)
