"""float32, bfloat16 and float16: errors within a budget taken from the data, and never a NaN."""

import pytest
import torch

from longlens.ops.family import decay_attention
from longlens.ops.las import las_attention, las_attention_varlen, las_weights
from longlens.ops.las.decode import LaSCache

from .cases import Case, over_budget

READINGS = [
    dict(is_causal=True, smoothing="causal", window=5),
    dict(is_causal=True, smoothing="masked", window=5),
    dict(is_causal=True, smoothing="centered", window=3, edge="renormalize"),
    dict(is_causal=False, smoothing="centered", window=5),
    dict(is_causal=True, smoothing="causal", window=1, chunk=32),
]
HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("rate", [1e-3, 0.05, 1.0, 50.0])
@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_error_budget(reading, rate, dtype):
    for length, masked, seed in ((33, True, 1), (130, False, 2), (300, False, 3)):
        case = Case(2, 2, 2, length, length, 32, 32, rate, masked, seed, reading)
        assert over_budget(case, "sdpa", dtype) == []


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 30.0])
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.02, 0.6, 50.0, 1e4])
def test_finite_input_gives_finite_output(rate, scale, dtype):
    for length in (1, 2, 130, 1030):
        q, k, v = (
            (scale * torch.randn(1, 2, length, 8)).to(dtype).requires_grad_() for _ in range(3)
        )
        for options in (
            dict(),
            dict(is_causal=False),
            dict(smoothing="masked", window=5),
            dict(chunk=100),
        ):
            alpha = torch.tensor([0.0, rate], requires_grad=True)
            out = las_attention(q, k, v, **{"alpha": alpha, "window": 3, **options})
            grads = torch.autograd.grad(out.float().square().mean(), (q, k, v, alpha))
            assert all(t.isfinite().all() for t in (out, *grads)), (length, options)


@pytest.mark.parametrize("causal", [True, False])
def test_float16_does_not_overflow_where_the_result_is_finite(causal):
    q = torch.zeros(1, 1, 300, 8, dtype=torch.float16)
    q[..., 0] = 60_000.0
    k = torch.zeros_like(q)
    k[..., 0] = 1e-4
    for rate in (0.015, 0.5):
        out = las_attention(q, k, q, alpha=torch.tensor([rate]), is_causal=causal)
        assert out.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        dict(),  # folded
        dict(queries=1),  # a row
        dict(softcap=50.0),  # rows
        dict(query_offset=torch.tensor([0])),
        dict(alpha=torch.tensor([0.0, 40.0])),  # merged, with tiles of explicit scores
        dict(window=9, smoothing="masked"),  # merged, with a band
        dict(impl="reference"),
    ],
    ids=lambda options: "-".join(options) or "folded",
)
def test_autocast_rounds_inputs_and_no_scores(options):
    q, k, v = (3 * torch.randn(1, 2, 200, 32).bfloat16() for _ in range(3))
    options = dict(alpha=torch.tensor([0.0, 0.01])) | options
    q = q[:, :, : options.pop("queries", None)]
    expected = las_attention(q, k, v, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = las_attention(q.float(), k.float(), v.float(), **options)
    assert torch.equal(found, expected)


def test_autocast_rounds_no_scores_of_a_cache_and_no_weights():
    q, k, v = (3 * torch.randn(1, 2, 200, 32).bfloat16() for _ in range(3))
    last, cache = q[:, :, -1:], LaSCache(k, v)
    expected = cache.attend(last), las_weights(q, k)
    with torch.autocast("cpu", torch.bfloat16):
        found = cache.attend(last), las_weights(q, k)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_autocast_leaves_float64_alone():
    """As it does in SDPA; the inputs were rounded to bfloat16."""
    q, k, v = (torch.randn(1, 2, 60, 8, dtype=torch.float64) for _ in range(3))
    rates, bounds = torch.tensor([0.0, 0.1], dtype=torch.float64), torch.tensor([0, 20, 60])
    packed = [t[0].transpose(0, 1) for t in (q, k, v)]
    for run in (
        lambda: las_attention(q, k, v, alpha=rates, window=3),
        lambda: las_weights(q, k, alpha=rates),
        lambda: las_attention_varlen(*packed, bounds, 40, alpha=rates),
        lambda: LaSCache(k, v).attend(q[:, :, -1:], alpha=rates),
        lambda: decay_attention(q, k, v, slopes=rates, taps=rates[:, None] + 0.3),
    ):
        expected = run()
        with torch.autocast("cpu", torch.bfloat16):
            found = run()
        assert found.dtype == torch.float64 and torch.equal(found, expected)


def test_rows_without_a_key_are_zero():
    q, k, v = (torch.randn(2, 2, 6, 4, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0], mask[1, :2] = False, False
    for options in (
        dict(),
        dict(alpha=torch.tensor([0.0, 0.1])),
        dict(window=3, smoothing="masked"),
    ):
        out = las_attention(q, k, v, key_mask=mask, **options)
        assert torch.equal(out[0], torch.zeros_like(out[0]))
        assert torch.equal(out[1, :, :2], torch.zeros_like(out[1, :, :2]))
        assert out[1, :, 2:].abs().min() > 0
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_empty_sequences(queries, keys):
    q, k = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
    for impl in ("reference", "sdpa"):
        out = las_attention(q, k, k, window=3, impl=impl)
        assert out.shape == (1, 2, queries, 4) and not out.any()


@pytest.mark.parametrize("rate", [0.2, 3.0])
@pytest.mark.parametrize("options", READINGS, ids=lambda r: f"{r['smoothing']}-{r['window']}")
def test_the_default_dtype_does_not_round_positions(options, rate):
    q, k, v = (torch.randn(1, 2, 300, 16) for _ in range(3))
    alpha = torch.tensor([0.0, rate])
    exact = las_attention(q, k, v, alpha=alpha, **options)
    torch.set_default_dtype(torch.bfloat16)
    try:
        out = las_attention(q, k, v, alpha=alpha, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-6)
