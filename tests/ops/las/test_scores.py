"""Capped scores and sinks: the definition, gradients, and what serves them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longlens import explain, las_attention
from longlens.ops.las import las_attention_varlen

from .cases import error, local_cases
from .oracle import oracle


@settings(max_examples=60)
@given(local_cases(lengths=(1, 2, 3, 7, 13)), st.sampled_from([None, 0.7]), st.booleans())
def test_the_definition(case, softcap, has_sink):
    q, k, v, alpha, mask, _ = case.tensors()
    sink = torch.randn(q.shape[1], dtype=torch.float64) if has_sink else None
    tensors = dict(alpha=alpha, key_mask=mask, sink=sink)
    options = case.options | dict(softcap=softcap)
    arrays = {name: None if t is None else t.numpy() for name, t in tensors.items()}
    expected = torch.from_numpy(oracle(q.numpy(), k.numpy(), v.numpy(), **arrays, **options))
    for impl in ("auto", "reference"):
        found = las_attention(q, k, v, enable_gqa=True, impl=impl, **tensors, **options)
        assert error(found, expected) < 1e-12


def test_gradients_on_blocks_of_rows():
    q, k, v = (torch.randn(1, 2, 150, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    options = dict(window=3, local=20, softcap=2.0, sink=sink)
    assert explain(q, k, v, **options).route == "rows"
    found, expected = (
        torch.autograd.grad(
            las_attention(q, k, v, impl=impl, **options).square().sum(), (q, k, v, sink)
        )
        for impl in ("auto", "reference")
    )
    for a, b in zip(found, expected, strict=True):
        assert error(a, b) < 1e-10


@pytest.mark.parametrize(
    ("route", "options"),
    [
        ("merged", dict(window=3)),
        ("merged", dict(window=3, is_causal=False)),
        ("merged", dict(window=5, smoothing="masked")),
        ("merged", dict(alpha=torch.tensor([0.0, 2.0], dtype=torch.float64))),
        ("merged", dict(key_mask=torch.arange(150)[None] > 5)),  # the first rows have no key
        ("merged", dict(key_mask=torch.arange(150)[None] > 5, is_causal=False)),
        ("merged", dict(query_offset=-4)),
        ("local", dict(window=3, local=20)),
        ("local", dict(local=20, is_causal=False)),
    ],
    ids=str,
)
def test_gradients_of_a_sink_as_a_part(route, options):
    q, k, v = (torch.randn(1, 2, 150, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    plan = explain(q, k, v, sink=sink, **options)
    assert plan.route == route and plan.steps[-1] == "band_forward"
    found, expected = (
        las_attention(q, k, v, sink=sink, impl=impl, **options) for impl in ("auto", "reference")
    )
    assert error(found.detach(), expected.detach()) < 1e-10
    upstream = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v, sink), upstream),
        torch.autograd.grad(expected, (q, k, v, sink), upstream),
        strict=True,
    ):
        assert error(a, b) < 1e-10


def test_packed_sequences():
    q, k, v = torch.randn(3, 30, 2, 4).unbind()
    options = dict(softcap=1.5, sink=torch.randn(2), local=6)
    found = las_attention_varlen(q, k, v, torch.tensor([0, 12, 30]), 18, **options)
    pieces = [t[12:].transpose(0, 1)[None] for t in (q, k, v)]
    torch.testing.assert_close(
        found[12:], las_attention(*pieces, impl="reference", **options)[0].transpose(0, 1)
    )


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize(
    "options",
    [dict(window=3), dict(window=3, is_causal=False), dict(window=5, smoothing="masked"),
     dict(local=9, window=3), dict(window=3, key_mask=torch.arange(70)[None] > 5)],
    ids=str,
)  # fmt: skip
def test_a_sink_by_kernels(options):
    q, k, v = (torch.randn(1, 2, 70, 16, requires_grad=True) for _ in range(3))
    sink = torch.tensor([0.5, -1.0], requires_grad=True)
    alpha = torch.tensor([0.0, 0.1])
    assert "forward_kernel" in explain(q, k, v, sink=sink, impl="triton", **options).steps
    found, expected = (
        las_attention(q, k, v, alpha=alpha, sink=sink, impl=impl, **options)
        for impl in ("triton", "reference")
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v, sink), upstream),
        torch.autograd.grad(expected, (q, k, v, sink), upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_packed_sequences_with_a_sink_by_kernels():
    q, k, v = torch.randn(3, 70, 2, 16).unbind()
    options = dict(sink=torch.randn(2), local=6, window=3)
    found, expected = (
        las_attention_varlen(q, k, v, torch.tensor([0, 20, 70]), 50, impl=impl, **options)
        for impl in ("triton", "reference")
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(softcap=0.0), "softcap must be None or a finite number > 0, got 0.0"),
        (dict(sink=torch.zeros(3)), r"sink must be a tensor of shape \(2,\)"),
        (dict(sink=torch.zeros(2, dtype=torch.int32)), "sink must be a float tensor"),
        (dict(softcap=2.0, impl="triton"), "Triton kernels"),
        (dict(sink=torch.zeros(2), impl="triton"), "Triton kernels need a CUDA device"),
    ],
)
def test_wrong_options(options, message):
    x = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=message):
        las_attention(x, x, x, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sink_on_a_gpu(dtype):
    q, k, v = torch.randn(3, 2, 4, 300, 64, device="cuda", dtype=dtype).unbind()
    sink = torch.randn(4, device="cuda")
    for options in (dict(), dict(local=40), dict(is_causal=False)):
        plan = explain(q, k, v, sink=sink, window=3, **options)
        assert plan.route == "kernel" and plan.steps[-1] == "with_sink"
        found = las_attention(q, k, v, sink=sink, window=3, **options)
        exact = las_attention(
            q.double(), k.double(), v.double(), sink=sink, window=3, impl="reference", **options
        )
        assert error(found, exact) < (1e-5 if dtype == torch.float32 else 2e-2)
