"""The route of a single query, as decoding takes it, against the oracle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longlens import decay_rates, explain, las_attention
from tests.ops.las.oracle import oracle


@given(
    offsets=st.sampled_from([None, 3, 10, 40, [0], [12], [-2, 5]]),
    smoothing=st.sampled_from(["causal", "masked"]),
    window=st.sampled_from([1, 3, 9, 201]),
    edge=st.sampled_from(["zero", "renormalize"]),
    chunk=st.sampled_from([None, 4, 100]),
    group=st.sampled_from([1, 3]),
    rate=st.sampled_from([None, 0.1, 30.0]),
    masked=st.booleans(),
)
def test_one_query_equals_the_oracle(offsets, smoothing, window, edge, chunk, group, rate, masked):
    q = torch.randn(2, 2 * group, 1, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 17, 8, dtype=torch.float64)
    alpha = None if rate is None else decay_rates(2 * group, rate).double()
    mask = torch.rand(2, 17) > 0.3 if masked else None
    if masked:
        v = v.masked_fill(~mask[:, None, :, None], torch.nan)
    reading = dict(window=window, smoothing=smoothing, edge=edge, chunk=chunk)
    tensor = isinstance(offsets, list)
    options = dict(
        alpha=alpha, key_mask=mask, enable_gqa=True, **reading,
        query_offset=torch.tensor(offsets) if tensor else offsets,
    )  # fmt: skip
    if chunk is None:
        assert explain(q, k, v, **options).route == "row"
    out = las_attention(q, k, v, **options)
    numpy = [None if t is None else t.numpy() for t in (q, k, v, alpha, mask)]
    expected = oracle(
        *numpy[:3], alpha=numpy[3], key_mask=numpy[4], query_offset=offsets, **reading
    )
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-10, atol=1e-12)


def test_centered_smoothing_looks_ahead_and_takes_another_route():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 9, 8)
    assert explain(q, k, k, window=3, smoothing="centered", query_offset=4).route == "merged"
    assert explain(q, k, k, window=1, smoothing="centered", query_offset=4).route == "row"
    assert explain(q, k, k, is_causal=False, query_offset=4).route == "plain"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_query_is_differentiable_in_low_precision(dtype):
    q, k, v = (torch.randn(1, 2, n, 8, dtype=dtype, requires_grad=True) for n in (1, 9, 9))
    alpha = decay_rates(2, 0.3).requires_grad_()
    las_attention(q, k, v, alpha=alpha, window=3).sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v, alpha)) and alpha.grad[1] != 0
