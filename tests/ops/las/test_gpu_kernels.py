"""The Triton kernels on a CUDA device: error budgets over random calls, compilation, memory."""

import itertools
import random

import pytest
import torch

from longlens import LaSAttention, SoftmaxAttention, decay_rates, las_attention
from longlens.ops.las import explain, las_attention_packed, las_attention_varlen
from longlens.ops.las.decode import LaSCache
from longlens.ops.rotary import rotary_angles, rotate

from .cases import Case, over_budget, run
from .test_precision import READINGS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context:UserWarning"),
]

HALF = (torch.bfloat16, torch.float16)
DTYPES = (*HALF, torch.float32)
SPECIALISATIONS = list(itertools.product(DTYPES, (True, False), (True, False), (32, 64)))
DRAWS = 2000


@pytest.mark.parametrize("dtype, causal, masked, width", SPECIALISATIONS)
def test_random_calls_within_the_budget(dtype, causal, masked, width):
    """24 specialisations, 2,000 draws of shape, grouping, offset, rate, window, edge and stride."""
    draw = random.Random(f"{dtype}-{causal}-{masked}-{width}")
    for seed in range(-(-DRAWS // len(SPECIALISATIONS))):
        queries = draw.choice([1, 2, 17, 63, 64, 100, 128, 129, 200, 256, 301])
        keys = draw.choice([queries, queries, queries + 1, queries + 77, max(1, queries - 5)])
        options = dict(
            is_causal=causal,
            window=draw.choice([1, 3]),
            edge=draw.choice(["zero", "renormalize"]),
            query_offset=draw.choice([None, None, 0, 3, -4, keys]),
        )
        rate = draw.choice([1e-3, 0.05, 0.3, 2.0, 50.0])
        shape = (draw.choice([1, 2]), draw.choice([1, 2]), draw.choice([1, 2]), queries, keys)
        case = Case(*shape, width, width, rate, masked, seed, options)
        assert over_budget(case, "triton", dtype, "cuda") == [], case
        if seed % 10 == 0:
            first, again = (run(case, "triton", dtype, through=dtype, device="cuda") for _ in "12")
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 24, 40, 80, 96, 128, 256])
def test_head_widths(width, dtype):
    for reading, rate in itertools.product(READINGS, (None, 0.05)):
        case = Case(2, 4, 2, 150, 150, width, width, rate, True, 1, reading)
        assert over_budget(case, "triton", dtype, "cuda") == [], case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [None, 1e-3, 0.05, 1.0])
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_what_auto_takes_is_within_the_budget(reading, rate, dtype):
    for seed, ((queries, keys), masked) in enumerate(
        itertools.product(((33, 33), (300, 300), (70, 301)), (True, False))
    ):
        case = Case(2, 2, 2, queries, keys, 32, 40, rate, masked, seed, reading)
        assert over_budget(case, "auto", dtype, "cuda") == [], case


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("width", [8, 20, 32])
def test_narrow_causal_heads_within_the_budget(width, dtype):
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("faster from Hopper on")
    lengths, rates, groups = (2, 63, 300, 1024), (None, 1e-3, 0.05), (1, 2)
    for seed, (n, rate, group) in enumerate(itertools.product(lengths, rates, groups)):
        options = dict(is_causal=True, window=(1, 4, 5)[seed % 3], edge="zero")
        case = Case(2, 2, group, n, n, width, width, rate, False, seed, options)
        q, k, v, alpha, _, _ = case.tensors(dtype, device="cuda")
        plan = explain(q, k, v, alpha=alpha, enable_gqa=True, **options)
        asked = explain(q, k, v, alpha=alpha, enable_gqa=True, impl="sdpa", **options)
        served = asked.route in ("plain", "folded") and (rate or options["window"] > 1)
        narrow = plan.impl == "triton" and plan.route == "folded"
        assert narrow == bool(served), (plan, asked)
        assert over_budget(case, "auto", dtype, "cuda") == [], case


@pytest.mark.parametrize("width", [64, 80, 128])
def test_two_triangles_within_the_budget(width):
    for seed, (n, rate) in enumerate(
        itertools.product((1, 2, 63, 129, 300, 1024), (1e-3, 0.01, 0.06))
    ):
        options = dict(is_causal=False, window=(1, 3, 5)[seed % 3], edge="zero")
        case = Case(2, 2, 1, n, n, width, width, rate, False, seed, options)
        q, k, v, alpha, _, _ = case.tensors(torch.bfloat16, device="cuda")
        route = explain(q, k, v, alpha=alpha, **options).route
        assert route == ("mirrored" if n >= 128 else "kernel")
        assert over_budget(case, "auto", torch.bfloat16, "cuda") == [], case


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_and_rotated_equals_the_parts(causal, rotary, dtype):
    packed = torch.randn(2, 300, 12, 64, device="cuda").to(dtype).transpose(1, 2)
    alpha = decay_rates(8, 0.02, device="cuda")
    angles = rotary_angles(torch.arange(300, device="cuda"), 64) if rotary else None
    options = dict(alpha=alpha, alpha_max=0.02, window=5, is_causal=causal)
    results = []
    for form in ("packed", "parts", "exact"):
        x = packed.detach().clone().requires_grad_()
        if form == "packed":
            out = las_attention_packed(x, 8, 2, angles=angles, **options)
        else:
            wide = x.double() if form == "exact" else x
            q, k, v = wide.split([8, 2, 2], dim=1)
            if rotary:
                q, k = rotate(q, *angles), rotate(k, *angles)
            impl = "reference" if form == "exact" else "auto"
            out = las_attention(q, k, v, enable_gqa=True, impl=impl, **options)
        (grad,) = torch.autograd.grad(out.double().square().sum(), x)
        results.append((out.detach().double(), grad.double()))
    for found, parts, exact in zip(*results, strict=True):
        error, usual = (float((t - exact).abs().max()) for t in (found, parts))
        assert error <= 2 * usual + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("causal", [True, False])
def test_sequences_of_different_lengths(causal):
    lengths = [5, 300, 1, 77, 128]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device="cuda")
    tensors = [
        torch.randn(int(bounds[-1]), h, 32, device="cuda").bfloat16().requires_grad_()
        for h in (4, 2, 2)
    ]
    alpha = decay_rates(4, 0.05, device="cuda").requires_grad_()
    options = dict(alpha=alpha, window=5, is_causal=causal, enable_gqa=True)
    found = las_attention_varlen(*tensors, bounds, 300, **options)
    expected = las_attention_varlen(*tensors, bounds, 300, impl="reference", **options)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    grad = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, [*tensors, alpha], grad),
        torch.autograd.grad(expected, [*tensors, alpha], grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02 * float(b.abs().max()))


@pytest.mark.parametrize("kind", [SoftmaxAttention, LaSAttention])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("heads", [4, 2])
def test_compiled_layers(kind, causal, rotary, heads):
    torch.compiler.reset()  # each of these is one more program for the same code
    layer = kind(128, heads, causal=causal, rotary=rotary).cuda().bfloat16()
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 300, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    results = []
    for form in (compiled, layer):
        y = form(x)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), [x, layer.qkv.weight])))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(
            found, expected, rtol=0.02, atol=0.02 * float(expected.detach().abs().max())
        )


def test_auto_takes_kernels_where_folding_does_not_serve():
    q = torch.randn(1, 2, 256, 32, device="cuda", dtype=torch.bfloat16)
    alpha = decay_rates(2, 0.01, device="cuda")
    mask = torch.ones(1, 256, dtype=torch.bool, device="cuda")
    assert explain(q, q, q, alpha=alpha).route == "folded"
    assert explain(q, q, q, alpha=alpha, is_causal=False).impl == "triton"
    wide = q.repeat(1, 1, 1, 2)
    assert explain(wide, wide, wide, alpha=alpha, is_causal=False).route == "mirrored"
    assert explain(q, q, q, alpha=100 * alpha).impl == "triton"
    assert explain(q, q, q, alpha=alpha, key_mask=mask).impl == "triton"


def test_a_cuda_graph_of_forward_and_backward():
    layer = LaSAttention(128, 4, causal=False).cuda().bfloat16()
    x = torch.randn(2, 256, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step():
        (grad,) = torch.autograd.grad(layer(x).float().sum(), x)
        return grad

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


def test_alpha_on_another_device():
    q = torch.randn(1, 2, 16, 32, device="cuda")
    with pytest.raises(ValueError, match=r"alpha must be a float tensor on cuda:0, got .* on cpu"):
        las_attention(q, q, q, alpha=decay_rates(2), impl="triton")


def test_decoding_takes_kernels():
    k, v = torch.randn(2, 2, 4, 700, 64, device="cuda").half()
    q, alpha = k[:, :, -1:].repeat_interleave(2, 1), torch.tensor([0.0, 1e-3] * 4, device="cuda")
    cache = LaSCache(k, v, window=5)
    row = cache.attend(q.requires_grad_(), alpha=alpha)  # kernels have no gradient
    assert torch.equal(row, cache.attend(q, alpha=alpha, impl="sdpa"))
    with torch.no_grad():
        found = cache.attend(q, alpha=alpha)
        assert torch.equal(found, cache.attend(q, alpha=alpha, impl="triton"))
    torch.testing.assert_close(found, row, atol=2e-3, rtol=0)
