"""Every fast path against the reference, in float64: output and all gradients to 1e-10."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from longlens import decay_rates, explain, las_attention
from longlens.ops.las.smoothing import window_sum

from .cases import Case, cases, error, local_cases, run

BOUND = 1e-10


def check(case, **overrides):
    expected = run(case, "reference", **overrides)
    for found, true, name in zip(
        run(case, "sdpa", **overrides), expected, ("out", *"qkv", "α", "sink"), strict=False
    ):
        assert error(found, true) < BOUND, name


@settings(max_examples=150)
@given(cases())
def test_any_call(case):
    check(case)


@settings(max_examples=60)
@given(st.one_of(cases(), local_cases()))
def test_any_call_with_a_sink(case):
    heads = case.kv_heads * case.group
    check(case, sink=torch.linspace(-1, 2, heads, dtype=torch.float64, requires_grad=True))


@settings(max_examples=30)
@given(cases(lengths=(1, 5, 31, 131)))
def test_positions_as_a_tensor(case):
    # 131 rows are more than the `rows` route holds at once, so its blocks are crossed too.
    offsets = torch.arange(case.batch) * 2 - 1
    check(case, query_offset=offsets)
    check(case, query_offset=torch.tensor(3))


READINGS = [
    (causal, smoothing, edge)
    for causal, smoothing, edge in itertools.product(
        (True, False), ("causal", "centered", "masked"), ("zero", "renormalize")
    )
    if causal or smoothing != "masked"
]


@pytest.mark.parametrize("rate", [None, 0.0, 1e-3, 0.5, 50.0])
@pytest.mark.parametrize(("causal", "smoothing", "edge"), READINGS)
def test_every_reading_at_a_prime_length(causal, smoothing, edge, rate):
    options = dict(is_causal=causal, smoothing=smoothing, edge=edge, window=5)
    case = Case(2, 2, 2, 151, 151, 8, 8, rate, True, 1, options)
    check(case)
    case.masked = False
    check(case, chunk=32)


@pytest.mark.parametrize("smoothing", ["causal", "centered", "masked"])
def test_gradcheck(smoothing):
    inputs = [torch.randn(1, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    alpha = torch.tensor([0.3, 8.0], dtype=torch.float64, requires_grad=True)

    def f(q, k, v, a):
        return las_attention(q, k, v, alpha=a, window=3, smoothing=smoothing, query_offset=1)

    assert torch.autograd.gradcheck(f, (*inputs, alpha))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_both_off_is_sdpa_bit_for_bit(causal, masked, dtype):
    q, k, v = (
        torch.randn(2, 77, 4, 16).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)
    )
    mask = torch.rand(2, 77) > 0.3 if masked else None
    expected = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else mask[:, None, None] & causal_mask(77, causal),
        is_causal=causal and mask is None,
    )
    found = las_attention(q, k, v, is_causal=causal, key_mask=mask)
    assert torch.equal(found, expected)
    grad = torch.randn_like(expected)
    if mask is None:  # with a mask the values are zeroed first, which SDPA does not do
        for a, b in zip(
            torch.autograd.grad(found, (q, k, v), grad),
            torch.autograd.grad(expected, (q, k, v), grad),
            strict=True,
        ):
            assert torch.equal(a, b)


def causal_mask(n, causal):
    full = torch.ones(n, n, dtype=torch.bool)
    return full.tril() if causal else full


def test_gqa_shares_keys_only_where_that_is_exact():
    q, kv = torch.randn(1, 4, 20, 8), torch.randn(1, 2, 20, 8)
    alpha = torch.tensor([0.1, 0.1, 0.2, 0.2])
    plan = explain(q, kv, kv, alpha=alpha, enable_gqa=True)
    assert plan.route == "folded" and "unrepeated" in str(plan)
    for other in (torch.tensor([0.1, 0.2, 0.2, 0.2]), alpha.clone().requires_grad_()):
        assert "repeated to 4" in str(explain(q, kv, kv, alpha=other, enable_gqa=True))


@pytest.mark.parametrize(
    ("options", "route"),
    [
        (dict(), "plain"),
        (dict(is_causal=False), "plain"),
        (dict(alpha=decay_rates(2)), "folded"),
        (dict(alpha=decay_rates(2), alpha_max=1e-3), "folded"),
        (dict(alpha=decay_rates(2, 5.0)), "merged"),
        (dict(alpha=decay_rates(2), is_causal=False), "merged"),
        (dict(window=3, smoothing="masked"), "merged"),
        (dict(window=301, smoothing="masked"), "rows"),
        (dict(query_offset=torch.tensor(4)), "rows"),
        (dict(query_offset=4), "merged"),
    ],
)
def test_explain_names_the_route(options, route):
    q = torch.randn(1, 2, 50, 8)
    plan = explain(q, q, q, **options)
    assert (plan.impl, plan.route) == ("sdpa", route)
    assert str(plan).startswith(f"sdpa/{route}\n  - ")


def test_a_million_terms_do_not_drift():
    # Differences of a running sum would lose every digit here.
    x = torch.full((1, 1, 100_000, 1), 0.1)
    x[0, 0, 10] = 1e8
    assert float((window_sum(x, 4, 0)[0, 0, 20:] - 0.5).abs().max()) < 1e-6
