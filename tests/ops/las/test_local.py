"""Sliding windows: defined by an independent form, exact on every route, linear in their width."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from longlens import decay_rates, explain, las_attention, las_weights
from longlens.ops.las import las_attention_packed, las_attention_varlen, local
from longlens.ops.las.call import Call
from longlens.ops.las.call import check as check_call
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.plan import Assumed, Plan
from longlens.ops.rotary import rotary_angles, rotate

from .cases import Case, cases, error, local_cases, over_budget, run
from .test_exact import check
from .test_kernels import SLOW, refused, short
from .test_plan import recorded
from .test_reference import check_definition


@settings(max_examples=60)
@given(local_cases(lengths=(1, 2, 3, 7, 13)))
def test_reference_is_the_definition(case):
    check_definition(case)


def test_a_row_worked_by_hand():
    # Equal scores: query 4 gives 1/2 to keys 3 and 4, and each of them 1/2 to itself and the last.
    q = torch.zeros(1, 1, 6, 2, dtype=torch.float64)
    row = las_weights(q, q, window=2, local=2)[0, 0, 4] * 4
    np.testing.assert_allclose(row, [0, 0, 1, 2, 1, 0], atol=1e-12)
    row = las_weights(q, q, is_causal=False, local=2)[0, 0, 3] * 3
    np.testing.assert_allclose(row, [0, 0, 1, 1, 1, 0], atol=1e-12)
    row = las_weights(q, q, is_causal=False, local=(0, 1))[0, 0, 3] * 2
    np.testing.assert_allclose(row, [0, 0, 0, 1, 1, 0], atol=1e-12)


@settings(max_examples=50)
@given(local_cases())
def test_any_call(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=1000)
@given(local_cases())
def test_many_calls(case):
    check(case)


@settings(max_examples=20)
@given(local_cases(lengths=(1, 5, 31, 131)))
def test_positions_as_a_tensor(case):
    check(case, query_offset=torch.arange(case.batch) * 2 - 1)


@settings(max_examples=20)
@given(cases(lengths=(1, 13, 64)))
def test_a_window_over_everything_is_none(case):
    wide = (1000, 0 if case.options["is_causal"] else 1000)
    for found, expected in zip(run(case, "auto", local=wide), run(case, "auto"), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 9, 64])
def test_without_decay_and_smoothing_it_is_sdpa_with_a_band(causal, size):
    q, k, v = torch.randn(3, 2, 2, 150, 8).unbind()
    distance = torch.arange(150)[:, None] - torch.arange(150)
    mask = (distance < size) & ((distance >= 0) if causal else (distance > -size))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(las_attention(q, k, v, is_causal=causal, local=size), expected)


ROUTES = [
    (dict(), "local"),
    (dict(is_causal=False), "local"),
    (dict(is_causal=False, local=(0, 5), window=3), "local"),
    (dict(alpha=decay_rates(2), window=5), "local"),
    (dict(alpha=decay_rates(2, 0.5), window=5), "local"),
    (dict(alpha=decay_rates(2, 50.0), window=5), "rows"),
    (dict(alpha=decay_rates(2), is_causal=False, local=(20, 1)), "local"),
    (dict(window=3, smoothing="masked"), "rows"),
    (dict(query_offset=4), "rows"),
    (dict(alpha=decay_rates(2), chunk=90), "local"),
    (dict(local=400), "plain"),
]


@pytest.mark.parametrize(("options", "route"), ROUTES, ids=str)
def test_explain_names_the_route_and_its_steps(options, route):
    q, k, v = torch.randn(3, 1, 2, 200, 8).unbind()
    options = dict(local=16) | options
    plan = explain(q, k, v, **options)
    assert (plan.impl, plan.route) == ("sdpa", route)
    assert recorded(lambda: las_attention(q, k, v, **options)) == list(plan.steps)


def test_one_query_reads_its_window_alone():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 500, 8)
    k[:, :, : 500 - 16 - 4] = torch.nan
    found = las_attention(q, k, k, local=16, window=5)
    expected = las_attention(q, k[:, :, -20:], k[:, :, -20:], local=16, window=5, impl="reference")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("options", [dict(), dict(alpha=decay_rates(2, 50.0))])
def test_scores_outside_of_the_window_are_not_computed(options, monkeypatch):
    import longlens.ops.las.flash
    import longlens.ops.las.rows

    scores = 0

    def count(q, k, *_):
        nonlocal scores
        scores += q[..., 0].numel() * k.shape[-2]

    flash, formula = longlens.ops.las.flash.flash_forward, longlens.ops.las.rows.reference
    monkeypatch.setattr(longlens.ops.las.flash, "flash_forward", lambda *a: count(*a) or flash(*a))
    monkeypatch.setattr(
        longlens.ops.las.rows, "reference", lambda c: count(c.query, c.key) or formula(c)
    )
    q, k, v = torch.randn(3, 1, 2, 3000, 4).unbind()
    las_attention(q, k, v, local=100, window=3, **options)
    assert 2 * 3000 * 100 <= scores < 2.5 * 2 * 3000 * 100


@settings(max_examples=20)
@given(local_cases(lengths=(13, 64)))
def test_packed_sequences(case):
    q, k, v, alpha, _, _ = case.tensors()
    options = case.options | dict(alpha=alpha, enable_gqa=True, query_offset=None)
    bounds = torch.tensor([0, 5, 5, case.queries])
    k, v = (F.pad(t, (0, 0, 0, max(0, case.queries - case.keys)))[:, :, : case.queries]
            for t in (k, v))  # fmt: skip
    flat = [t[0].transpose(0, 1) for t in (q, k, v)]
    del options["query_offset"]
    found = las_attention_varlen(*flat, bounds, case.queries, **options)
    for start, stop in ((0, 5), (5, case.queries)):
        piece = [t[:1, :, start:stop] for t in (q, k, v)]
        expected = las_attention(*piece, impl="reference", **options)
        assert error(found[start:stop].transpose(0, 1)[None], expected) < 1e-10


@pytest.mark.parametrize("causal", [True, False])
def test_what_the_flash_operator_is_asked_for(causal, monkeypatch):
    """The operator of CUDA devices, (B, L, H, D) and a window, stood in for by its definition."""

    def operator(q, k, v, *given, scale, window_size_left, window_size_right):
        assert given == (None, None, 150, 150, 0.0, False, False)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        distance = torch.arange(150)[:, None] - torch.arange(150)
        seen = (distance <= window_size_left) & (distance >= -window_size_right)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
        return (out.transpose(1, 2),)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", operator, raising=False)
    alpha = decay_rates(2, 0.1) if causal else None
    options = dict(alpha=alpha, is_causal=causal, window=3, local=20)
    tensors = [torch.randn(1, 2, 150, 8, dtype=torch.float64) for _ in range(3)]
    call = check_call(Call(*tensors, **options))
    found = local.run_sliding(call, Plan("sdpa", "sliding", assumed=Assumed(0.1)))
    assert error(found, las_attention(*tensors, impl="reference", **options)) < 1e-10


@pytest.mark.parametrize("smoothing", ["causal", "masked"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [6, (5, 0)])
def test_decoding(smoothing, padded, size):
    q, k, v = torch.randn(3, 2, 2, 40, 8, dtype=torch.float64).unbind()
    options = dict(window=3, smoothing=smoothing, edge="renormalize", local=size)
    mask = torch.arange(40) >= torch.tensor([[0], [3 if padded else 0]])
    cache = LaSCache(k[:, :, :20], v[:, :, :20], key_mask=mask[:, :20], **options)
    alpha = decay_rates(2, 0.1)
    expected = las_attention(q, k, v, alpha=alpha, key_mask=mask, impl="reference", **options)
    for i in range(20, 40):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        found = cache.attend(q[:, :, i : i + 1], alpha=alpha)
        torch.testing.assert_close(found, expected[:, :, i : i + 1])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_error_budget(causal, dtype):
    for rate, size in ((None, 16), (1e-3, 100), (0.3, 3), (50.0, 16)):
        options = dict(is_causal=causal, window=5, local=size)
        case = Case(1, 2, 2, 230, 230, 16, 16, rate, size == 16, 1, options)
        assert over_budget(case, "sdpa", dtype) == [], case


@pytest.mark.parametrize("causal", [True, False])
def test_transforms(causal):
    q, k, v = torch.randn(3, 4, 1, 2, 40, 4, dtype=torch.float64).unbind()

    def value(impl):
        options = dict(alpha=decay_rates(2, 0.1), window=3, local=8, is_causal=causal, impl=impl)
        return lambda q, k, v: las_attention(q, k, v, **options).sin().sum()

    fast, plain = value("auto"), value("reference")
    found = torch.func.vmap(torch.func.grad(fast, (0, 1, 2)))(q, k, v)
    expected = [torch.func.grad(plain, (0, 1, 2))(*each) for each in zip(q, k, v, strict=True)]
    for place, each in enumerate(found):
        assert error(each, torch.stack([grads[place] for grads in expected])) < 1e-10
    tangents = torch.func.jvp(fast, (q[0], k[0], v[0]), (k[0], v[0], q[0]))
    torch.testing.assert_close(
        tangents, torch.func.jvp(plain, (q[0], k[0], v[0]), (k[0], v[0], q[0]))
    )


def test_a_packed_projection():
    packed = torch.randn(1, 2 + 2 * 1, 60, 8)
    angles = rotary_angles(torch.arange(60), 8)
    q, k, v = packed.split([2, 1, 1], dim=1)
    expected = las_attention(
        rotate(q, *angles), rotate(k, *angles), v, window=3, local=8, enable_gqa=True
    )
    found = las_attention_packed(packed, 2, 1, angles=angles, window=3, local=8)
    torch.testing.assert_close(found, expected)


def test_no_gradient_leaves_the_window():
    q, k, v = torch.randn(3, 1, 1, 60, 4, requires_grad=True).unbind()
    out = las_attention(q, k, v, local=8, window=3, alpha=torch.tensor([0.1]))
    dk, dv = torch.autograd.grad(out[:, :, 40].sum(), (k, v))
    assert (dk[0, 0].abs().sum(-1) > 0).nonzero().flatten().tolist() == [*range(33, 41)]
    assert (dv[0, 0].abs().sum(-1) > 0).nonzero().flatten().tolist() == [*range(31, 41)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(local=0), ["local", ">= 1", "0"]),
        (dict(local=2.5), ["local", "2.5"]),
        (dict(local=[3, 0]), ["local", "[3, 0]"]),
        (dict(local=(3, 1)), ["right is 0 where is_causal", "(3, 1)"]),
        (dict(local=(-1, 0), is_causal=False), [">= 0", "(-1, 0)"]),
        (dict(local=(1, 2, 3), is_causal=False), ["pair", "(1, 2, 3)"]),
    ],
)
def test_wrong_windows(options, words):
    x = torch.randn(1, 1, 5, 4)
    with pytest.raises(ValueError) as caught:
        las_attention(x, x, x, **options)
    for word in words:
        assert word in str(caught.value)


def attend(q, k, v):
    return las_attention(q, k, v, alpha=decay_rates(2), alpha_max=1e-3, local=16, window=3)


def test_compiled():
    tensors = torch.randn(3, 1, 2, 100, 8).unbind()
    found = torch.compile(attend, fullgraph=True, backend="eager")(*tensors)
    torch.testing.assert_close(found, attend(*tensors))


@pytest.mark.slow
def test_exported():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v)

    tensors = torch.randn(3, 1, 2, 100, 8).unbind()
    length = torch.export.Dim("length", min=40, max=4000)
    program = torch.export.export(Module(), tensors, dynamic_shapes=[{2: length}] * 3)
    for n in (100, 70):
        tensors = torch.randn(3, 1, 2, n, 8).unbind()
        torch.testing.assert_close(program.module()(*tensors), attend(*tensors))


kernels = [
    pytest.mark.kernels,
    pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning"),
]


class TestKernels:
    pytestmark = kernels

    @settings(SLOW, max_examples=30)
    @given(local_cases(lengths=(1, 5, 40, 70)))
    def test_any_call(self, case):
        if refused(case) is None:
            assert over_budget(case, "triton", torch.float32) == [], case

    @short
    @pytest.mark.parametrize("causal", [True, False])
    def test_every_kernel(self, causal):
        for dtype, rate in ((torch.float32, 0.3), (torch.float16, 0.02)):
            options = dict(is_causal=causal, window=3, local=(40, 0) if causal else (3, 33))
            case = Case(1, 1, 2, 100, 150, 8, 6, rate, True, 1, options)
            assert over_budget(case, "triton", dtype) == [], case

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
    def test_masked_smoothing(self, size):
        options = dict(is_causal=True, smoothing="masked", window=7, edge="renormalize", local=size)
        case = Case(1, 1, 2, 90, 110, 8, 8, 0.3, size == 3, size, options)
        assert over_budget(case, "triton", torch.float32) == [], case

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("local", [1, 5, 40, (0, 3), (33, 0), (3, 64)], ids=str)
    def test_several_blocks_of_queries_and_keys(self, local, dtype):
        for seed, (queries, keys) in enumerate([(150, 150), (70, 200), (90, 60)]):
            options = dict(is_causal=False, window=3, local=local)
            case = Case(1, 1, 2, queries, keys, 24, 16, 0.02, seed == 1, seed, options)
            assert over_budget(case, "triton", dtype) == [], case

    def test_packed_sequences(self):
        q, k, v = torch.randn(3, 150, 2, 16).unbind()
        bounds, alpha = torch.tensor([0, 70, 70, 150]), decay_rates(2, 0.1)
        options = dict(alpha=alpha, window=3, local=9)
        found, expected = (
            las_attention_varlen(q, k, v, bounds, 80, impl=impl, **options)
            for impl in ("triton", "reference")
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["auto", "sdpa", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [None, 1e-3, 0.5])
def test_error_budget_on_a_gpu(impl, dtype, rate):
    for causal in (True, False):
        for seed, (keys, size) in enumerate(((301, 16), (301, 130), (1000, 256), (257, 1))):
            options = dict(is_causal=causal, window=5, local=size)
            case = Case(2, 2, 2, keys, keys, 64, 64, rate, seed == 1, seed, options)
            assert over_budget(case, impl, dtype, "cuda") == [], case


@pytest.mark.gpu
@pytest.mark.parametrize(("width", "route"), [(128, "triton/kernel"), (256, "sdpa/sliding")])
def test_one_call_on_a_gpu(width, route):
    q = torch.randn(2, 16, 1024, width, device="cuda").bfloat16()
    plan = explain(q, q, q, alpha=decay_rates(16, device="cuda"), window=5, local=256)
    assert f"{plan.impl}/{plan.route}" == route
    assert plan.steps == ("prologue_forward", "_flash_attention_forward")
