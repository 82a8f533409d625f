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


def test_packed_sequences():
    q, k, v = torch.randn(3, 30, 2, 4).unbind()
    options = dict(softcap=1.5, sink=torch.randn(2), local=6)
    found = las_attention_varlen(q, k, v, torch.tensor([0, 12, 30]), 18, **options)
    pieces = [t[12:].transpose(0, 1)[None] for t in (q, k, v)]
    torch.testing.assert_close(
        found[12:], las_attention(*pieces, impl="reference", **options)[0].transpose(0, 1)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(softcap=0.0), "softcap must be None or a finite number > 0, got 0.0"),
        (dict(sink=torch.zeros(3)), r"sink must be a tensor of shape \(2,\)"),
        (dict(sink=torch.zeros(2, dtype=torch.int32)), "sink must be a float tensor"),
        (dict(softcap=2.0, impl="triton"), "Triton kernels"),
    ],
)
def test_wrong_options(options, message):
    x = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=message):
        las_attention(x, x, x, **options)
