"""The Triton kernels' logic, run by Triton's interpreter on a CPU (make test-kernels)."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from longlens import LaSAttention, SoftmaxAttention, decay_rates, las_attention
from longlens.models.count import flop_count
from longlens.ops.las import las_attention_packed, las_attention_varlen
from longlens.ops.las.api import explain
from longlens.ops.las.call import Call, check
from longlens.ops.las.decay import fold, fold_square
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.plan import Assumed, Plan
from longlens.ops.las.prepare import folded_inputs
from longlens.ops.las.smoothing import pool_values
from longlens.ops.las.triton.attention_op import las_kernel
from longlens.ops.las.triton.mirror_op import las_mirrored, mirrored_attention
from longlens.ops.las.triton.prologue_op import Layout, las_prologue
from longlens.ops.rotary import rotary_angles, rotate

from .cases import Case, cases, over_budget

pytestmark = [
    pytest.mark.kernels,
    # numpy, behind the interpreter, on values that the kernels discard afterwards
    pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning"),
]

# The set that `make test` runs: every kernel once, forward and backward, in under a minute.
short = pytest.mark.kernels_short

SLOW = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
READINGS = [
    dict(is_causal=True, smoothing="causal", window=5, edge="zero"),
    dict(is_causal=True, smoothing="causal", window=4, edge="renormalize"),
    dict(is_causal=True, smoothing="centered", window=3, edge="renormalize"),
    dict(is_causal=True, smoothing="masked", window=5, edge="zero"),
    dict(is_causal=True, smoothing="masked", window=7, edge="renormalize"),
    dict(is_causal=False, smoothing="centered", window=5, edge="zero"),
    dict(is_causal=False, smoothing="causal", window=1, edge="zero"),
]


def refused(case):
    q, k, v, alpha, mask, _ = case.tensors(torch.float32)
    try:
        options = case.options | dict(alpha=alpha, key_mask=mask, enable_gqa=True)
        explain(q, k, v, impl="triton", **options)
    except ValueError as error:
        return str(error)
    return None


@given(cases(lengths=(1, 2, 5, 31, 64, 97, 131)))
@SLOW
def test_any_call_within_the_budget(case):
    if refused(case) is None:
        assert over_budget(case, "triton", torch.float32) == [], case


@short
@pytest.mark.parametrize(
    "reading", [READINGS[i] for i in (0, 4, 5)], ids=("causal", "masked", "both")
)
def test_every_kernel_of_a_call(reading):
    for dtype, rate in ((torch.float32, 0.3), (torch.float16, 0.02)):
        case = Case(1, 1, 2, 50, 70, 8, 6, rate, True, 1, reading)
        assert over_budget(case, "triton", dtype) == [], case


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rate", [None, 0.02, 3.0])
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_several_blocks_of_queries_and_keys(reading, rate, dtype):
    for seed, (queries, keys, masked) in enumerate([(140, 140, False), (70, 150, True)]):
        case = Case(1, 1, 2, queries, keys, 24, 16, rate, masked, seed, reading)
        assert over_budget(case, "triton", dtype) == [], case


@pytest.mark.parametrize("width", [1, 16, 24, 40, 80, 96, 256])
def test_head_widths(width):
    case = Case(1, 1, 1, 40, 40, width, max(1, width // 2), 0.1, True, 3, READINGS[5])
    assert over_budget(case, "triton", torch.float32) == []


@short
def test_strided_inputs_need_no_copy_and_results_repeat():
    x = torch.randn(2, 70, 3, 4, 16)
    q, k, v = x.permute(2, 0, 3, 1, 4)  # (B, L, 3, H, D), the usual projection
    alpha = decay_rates(4, 0.05).requires_grad_()
    options = dict(alpha=alpha, window=3, is_causal=False)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    first, again, dense = (
        [out, *torch.autograd.grad(out.square().sum(), [*inputs, alpha])]
        for out in (
            las_attention(q, k, v, impl="triton", **options),
            las_attention(q, k, v, impl="triton", **options),
            las_attention(*(t.contiguous() for t in (q, k, v)), impl="triton", **options),
        )
    )
    for a, b, c in zip(first, again, dense, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert first[0].stride() == (70 * 64, 16, 64, 1)  # as the query: heads inside positions


def plain_inputs(q, k, v, alpha, angles, pooling, copies):
    if angles is not None:
        q, k = rotate(q, *angles), rotate(k, *angles)
    v = pool_values(v, **pooling)
    k, v = (t.repeat_interleave(copies, dim=1) for t in (k, v))
    q, k, scale = fold_square(q, k, alpha, 0.02, 1.0)
    return q, k, v, scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("edge", ["zero", "renormalize"])
def test_the_prologue_is_rotation_folding_and_pooling(dtype, packed, rotary, edge):
    check_prologue(dtype, packed, rotary, edge)


@short
def test_the_prologue_once():
    check_prologue(torch.float32, True, True, "renormalize")


def by_prologue(alpha_max, equal_in_group=False):
    return Plan("sdpa", "folded", assumed=Assumed(alpha_max, equal_in_group), prologue=True)


def check_prologue(dtype, packed, rotary, edge):
    all_heads = torch.randn(2, 150, 8, 16, dtype=dtype).transpose(1, 2)
    mask = torch.rand(2, 150) > 0.3
    pooling = dict(window=5, smoothing="causal", edge=edge, key_mask=mask)
    results = []
    for fused in (True, False):
        source = all_heads.detach().clone().transpose(1, 2).contiguous().transpose(1, 2)
        source.requires_grad_()
        alpha = torch.tensor([0.0, 0.005, 0.01, 0.02], requires_grad=True)
        angles = rotary_angles(torch.arange(150), 16) if rotary else None
        parts = source.split([4, 2, 2], dim=1)
        if fused:
            call = Call(*parts, alpha=alpha, scale=1.0, enable_gqa=True, **pooling)
            call.packed, call.angles = source if packed else None, angles
            *outs, scale = folded_inputs(check(call), by_prologue(0.02))
        else:
            *outs, scale = plain_inputs(*parts, alpha, angles, pooling, copies=2)
        torch.manual_seed(1)
        total = sum((o.float() * torch.randn(o.shape)).sum() for o in outs)
        results.append([*outs, *torch.autograd.grad(total, [source, alpha]), torch.tensor(scale)])
    for found, expected in zip(*results, strict=True):
        ulp = torch.finfo(dtype).eps
        tolerance = 16 * ulp * float(expected.detach().abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_packed_is_the_same_call_on_parts(reading):
    packed = torch.randn(2, 4 + 2 * 2, 50, 8)
    angles = rotary_angles(torch.arange(50), 8)
    q, k, v = packed.split([4, 2, 2], dim=1)
    q, k = rotate(q, *angles), rotate(k, *angles)
    options = dict(alpha=decay_rates(4, 0.1), **reading)
    expected = las_attention(q, k, v, enable_gqa=True, **options)
    found = las_attention_packed(packed, 4, 2, angles=angles, impl="triton", **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("edge", ["zero", pytest.param("renormalize", marks=short)])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_of_different_lengths(causal, edge):
    lengths = [1, 40, 7, 75]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    tensors = [torch.randn(bounds[-1], h, 16, requires_grad=True) for h in (4, 2, 2)]
    alpha = decay_rates(4, 0.1).requires_grad_()
    options = dict(alpha=alpha, window=5, edge=edge, is_causal=causal, enable_gqa=True)
    found = las_attention_varlen(*tensors, bounds, 80, impl="triton", **options)
    expected = torch.cat(
        [
            las_attention(*(t[None].transpose(1, 2) for t in piece), **options)[0].transpose(0, 1)
            for piece in zip(*(t.split(lengths) for t in tensors), strict=True)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, [*tensors, alpha], grad),
        torch.autograd.grad(expected, [*tensors, alpha], grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def op_arguments(grad):
    q = torch.randn(1, 2, 20, 8, requires_grad=grad)
    k, v = (torch.randn(1, 1, 20, 8, requires_grad=grad) for _ in range(2))
    alpha = torch.tensor([0.0, 0.1], requires_grad=grad)
    return q, k, v, alpha


@pytest.mark.parametrize("grad", [True, False])
def test_opcheck(grad):
    q, k, v, alpha = op_arguments(grad)
    mask = torch.rand(1, 20) > 0.2
    torch.library.opcheck(las_kernel, (q, k, v, alpha, mask, None, [20, 0, 0, 0], 0.3))
    layout = list(Layout(2, 1, 1, 2, 2, 0, 20, 8))
    torch.library.opcheck(las_prologue, (q, k, v, alpha, mask, None, None, None, None, layout))


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
def test_gradients_against_finite_differences():
    q, k, v, alpha = op_arguments(True)
    q, k, v = (t[:, :, :6].detach().requires_grad_() for t in (q, k, v))

    def both_outputs(q, k, v, alpha):
        return las_kernel(q, k, v, alpha, None, None, [6, 0, 0, 0], 0.3)

    # float32 differences: the step is large and the tolerance follows from its rounding
    torch.autograd.gradcheck(
        both_outputs, (q, k, v, alpha), eps=1e-2, atol=5e-3, rtol=5e-2, nondet_tol=0.0,
        fast_mode=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [dict(), dict(causal=False, rotary=True), dict(window=1)])
def test_a_compiled_layer(options):
    layer = LaSAttention(32, 4, impl="triton", **options)
    x = torch.randn(2, 50, 32, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_export():
    layer = LaSAttention(32, 4, impl="triton", causal=False).eval()
    x = torch.randn(2, 50, 32)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x))


@short
def test_derivatives_that_kernels_lack_are_refused():
    q = torch.randn(1, 1, 8, 8)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="forward-mode"):
        las_attention(forward_ad.make_dual(q, q), q, q, impl="triton")
    with pytest.raises(ValueError, match="inside the transforms"):
        torch.func.vmap(lambda q: las_attention(q, q, q, impl="triton"))(q[None])


@short
def test_second_derivatives_are_refused():
    q = torch.randn(1, 1, 8, 8, requires_grad=True)
    out = las_attention(q, q, q, impl="triton")
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()


def test_layers_and_plans():
    x = torch.randn(1, 30, 16)
    for kind in (SoftmaxAttention, LaSAttention):
        layer = kind(16, 2, impl="triton")
        expected = layer(x)
        layer.impl = "sdpa"
        torch.testing.assert_close(layer(x), expected)
    q = torch.randn(1, 2, 8, 8)
    assert explain(q, q, q, impl="triton").route == "kernel"


@short
def test_what_the_kernels_refuse():
    q = torch.randn(1, 1, 8, 300)
    with pytest.raises(ValueError, match="head dimensions of 1 to 256, not 300"):
        las_attention(q, q, q, impl="triton")
    q = torch.randn(1, 1, 8, 8)
    with pytest.raises(ValueError, match="float32, float16, not float64"):
        las_attention(*[q.double()] * 3, impl="triton")
    with pytest.raises(ValueError, match="query_offset as an int"):
        las_attention(q, q, q, query_offset=torch.tensor(0), impl="triton")
    with pytest.raises(ValueError, match="masked windows up to 65"):
        las_attention(q, q, q, window=67, smoothing="masked", impl="triton")


def test_fold_agrees_with_the_layout_of_factors():
    # the prologue and the torch form must fold about the same centre
    q = torch.randn(1, 2, 9, 8)
    alpha = torch.tensor([0.0, 0.1])
    found, *_ = folded_inputs(check(Call(q, q, q, alpha=alpha)), by_prologue(0.1, True))
    torch.testing.assert_close(found, fold(q, alpha, torch.arange(9) - 4.0))


@pytest.mark.parametrize("n", [1, 2, pytest.param(33, marks=short), 97, 160])
def test_two_triangles_in_one_call(n):
    x = torch.randn(2, n, 3, 3, 24)
    q, k, v = (t.detach().requires_grad_() for t in x.permute(2, 0, 3, 1, 4))
    alpha = decay_rates(3, 0.2).requires_grad_()
    grad = torch.randn(2, n, 3, 24).transpose(1, 2)
    found = mirrored_attention(q, k, v, alpha, 0.3)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v, alpha)]
    expected = las_attention(*wide[:3], alpha=wide[3], is_causal=False, scale=0.3, impl="reference")
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(found, [q, k, v, alpha], grad),
        torch.autograd.grad(expected, wide, grad.double()),
        strict=True,
    ):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-5 * float(1 + b.abs().max()))


def test_two_triangles_pass_opcheck():
    q, k, v = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))
    alpha = decay_rates(2, 0.1).requires_grad_()
    torch.library.opcheck(las_mirrored, (q, k, v, alpha, 0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kv_heads, chunk", [(1, None), (2, None), (6, 50)])
@pytest.mark.parametrize("n", [1, pytest.param(70, marks=short), 600])
def test_decoding_by_kernels(n, kv_heads, chunk, dtype):
    k, v = (torch.randn(2, kv_heads, n, 24, dtype=dtype) for _ in range(2))
    mask = torch.arange(n) < torch.tensor([n, max(1, n // 3)])[:, None] if n != 70 else None
    cache = LaSCache(k, v, window=5, chunk=chunk, key_mask=mask)
    cache.append(k[:, :, :1], v[:, :, :1])
    query = torch.randn(2, 6, 1, 24, dtype=dtype)
    alpha = decay_rates(6, 0.1)
    found = cache.attend(query, alpha=alpha, impl="triton")
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(
        found, cache.attend(query, alpha=alpha), rtol=tolerance, atol=tolerance
    )


def test_decoding_kernels_refuse_gradients():
    cache = LaSCache(torch.randn(1, 1, 5, 16), torch.randn(1, 1, 5, 16))
    with pytest.raises(ValueError, match="no gradient"):
        cache.attend(torch.randn(1, 1, 1, 16, requires_grad=True), impl="triton")


def test_the_kernels_arithmetic_is_counted():
    q, k, v = torch.randn(3, 1, 2, 40, 8).unbind()
    once = 4 * 2 * 40 * 40 * 8
    for options in (dict(is_causal=True), dict(is_causal=False, alpha=torch.tensor([0.1, 0.2]))):
        found = flop_count(lambda o=options: las_attention(q, k, v, impl="triton", **o))
        assert once <= found < 1.5 * once
    bounds = torch.tensor([0, 10, 40])
    packed = flop_count(lambda: las_kernel(q, k, v, None, None, bounds, [30, 0, 0, 1], 0.3))
    assert packed == once * 30 // 40
    x = q.clone().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        las_attention(x, k, v, impl="triton").sum().backward()
    assert counter.get_total_flops() == once * 7 // 2
    alpha = torch.tensor([0.1, 0.2])
    assert once <= flop_count(lambda: mirrored_attention(q, k, v, alpha, 0.3)) < 1.5 * once
