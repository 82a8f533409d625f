"""What is promised about numbers: positive scales, full-precision scores, no NaN in range."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from longlens import las_attention
from longlens.ops.las import las_attention_varlen
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.decode import LaSCache

from .cases import error

ROOT = Path(__file__).parents[3]
Q = torch.randn(2, 4, 6, 8)


@pytest.mark.parametrize("scale", [0.0, -0.5, float("inf"), float("nan")])
def test_a_scale_is_positive(scale):
    k = v = torch.randn(6, 4, 8)
    for call in (
        lambda: las_attention(Q, Q, Q, scale=scale),
        lambda: las_attention_varlen(k, k, v, torch.tensor([0, 6]), 6, scale=scale),
        lambda: LaSCache(Q, Q).attend(Q[:, :, :1], scale=scale),
    ):
        with pytest.raises(ValueError, match=f"scale must be None or a finite number > 0.*{scale}"):
            call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decoding_has_scores_in_full_precision(dtype):
    """Logits of a standard deviation of 16: a score in bfloat16 would be off by up to 0.25."""
    q = (16 * torch.randn(1, 4, 1, 64)).to(dtype)
    k, v = (torch.randn(1, 4, 2000, 64).to(dtype) for _ in range(2))
    true = scaled_dot_product_attention(q.double(), k.double(), v.double())
    allowed = 2 * error(scaled_dot_product_attention(q, k, v), true)
    assert allowed < 0.05
    assert error(LaSCache(k, v).attend(q), true) <= allowed
    assert error(las_attention(q, k, v), true) <= allowed
    assert error(las_attention(q, k, v, query_offset=torch.tensor([1999])), true) <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiles_and_rows_have_scores_in_full_precision(dtype):
    """Decay out of range, and positions in a tensor; logits as above."""
    q = (16 * torch.randn(1, 2, 200, 64)).to(dtype)
    k, v = (torch.randn(1, 2, 200, 64).to(dtype) for _ in range(2))
    alpha = torch.tensor([0.0, 5.0])
    true = las_attention(*(t.double() for t in (q, k, v)), alpha=alpha, impl="reference")
    plain = scaled_dot_product_attention(q[:, :1], k[:, :1], v[:, :1], is_causal=True)
    allowed = 4 * error(plain, true[:, :1])
    assert allowed < 0.1
    assert error(las_attention(q, k, v, alpha=alpha), true) <= allowed
    rows = las_attention(q, k, v, alpha=alpha, query_offset=torch.tensor([0]))
    assert error(rows, true) <= allowed


@pytest.mark.parametrize("options", [dict(alpha=torch.tensor([5.0])), dict(window=69)])
def test_float16_scores_beyond_its_largest_number(options):
    q = torch.full((1, 1, 80, 8), 2000.0, dtype=torch.float16, requires_grad=True)
    v = torch.randn(1, 1, 80, 8, dtype=torch.float16)
    out = las_attention(q, q, v, smoothing="masked", **options)
    assert out.isfinite().all()
    assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("which", range(5), ids=["query", "key", "value", "alpha", "sink"])
@pytest.mark.parametrize(
    "options",
    [dict(query_offset=-9), dict(query_offset=-9, chunk=4), dict(query_offset=-9, window=3)],
)
def test_without_a_visible_key_the_output_keeps_its_graph(options, which):
    tensors = [Q.clone(), Q.clone(), Q.clone(), torch.full((4,), 0.1), torch.zeros(4)]
    tensors[which].requires_grad_()
    q, k, v, alpha, sink = tensors
    for queries in (6, 1):
        out = las_attention(q[:, :, :queries], k, v, alpha=alpha, sink=sink, **options)
        assert torch.equal(out, torch.zeros_like(out))
        assert torch.equal(
            torch.autograd.grad(out.sum(), tensors[which])[0], torch.zeros_like(tensors[which])
        )


def test_without_any_key_the_output_keeps_its_graph():
    q, k, v = Q.clone().requires_grad_(), *(torch.randn(2, 4, 0, 8, requires_grad=True),) * 2
    out = las_attention(q, k, v, is_causal=False)
    assert out.shape == Q.shape and not out.any()
    assert all(not g.any() for g in torch.autograd.grad(out.sum(), (q, k)))


def test_nothing_to_attend_to_keeps_the_graph_of_a_sink():
    for queries, keys in ((0, 5), (5, 0)):
        q, k, sink = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4), torch.zeros(2)
        out = las_attention(q, k, k, sink=sink.requires_grad_())
        assert not torch.autograd.grad(out.sum(), sink)[0].any()
    x, sink = torch.randn(0, 2, 4), torch.zeros(2, requires_grad=True)
    out = las_attention_varlen(x, x, x, torch.tensor([0]), 0, sink=sink)
    assert not torch.autograd.grad(out.sum(), sink)[0].any()


def test_a_cache_without_a_token_gives_zeros():
    mask = torch.tensor([[False] * 6, [True] * 6])
    out = LaSCache(Q, Q, key_mask=mask).attend(Q[:, :, :1])
    assert torch.equal(out[0], torch.zeros_like(out[0])) and out.isfinite().all()
    assert not LaSCache(Q[:, :, :0], Q[:, :, :0]).attend(Q[:, :, :1]).any()


@pytest.mark.parametrize("options", [dict(), dict(is_causal=False), dict(query_offset=2)])
def test_masked_keys_take_no_part_whatever_they_hold(options):
    k, v = Q.clone(), Q.clone()
    mask = torch.arange(6).expand(2, 6) < 4
    k[:, :, 4:], v[:, :, 4:] = float("nan"), float("inf")
    for alpha in (None, torch.full((4,), 0.1)):
        found = las_attention(Q, k, v, alpha=alpha, key_mask=mask, **options)
        expected = las_attention(Q, Q, Q, alpha=alpha, key_mask=mask, **options)
        assert torch.equal(found, expected)


def test_many_sequences_go_in_shares(monkeypatch):
    """CUDA's operators take 65,535; on a CPU the same code takes three at a time."""
    q, k, v = (torch.randn(5, 2, 9, 4, requires_grad=True) for _ in range(3))
    mask = torch.rand(5, 9) > 0.3
    options = dict(alpha=torch.tensor([0.0, 0.1]), key_mask=mask)
    out = las_attention(q, k, v, **options)
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    monkeypatch.setattr("longlens.ops.las.flash.MOST_SEQUENCES", 3)
    again = las_attention(q, k, v, **options)
    assert torch.equal(out, again)
    for found, expected in zip(torch.autograd.grad(again.sum(), (q, k, v)), grads, strict=True):
        assert torch.equal(found, expected)


LARGEST = {torch.float64: 1e150, torch.float32: 1e18, torch.bfloat16: 1e18, torch.float16: 6e4}
ROUTES = {
    "folded": dict(),
    "merged, masked keys": dict(key_mask=torch.arange(64).expand(1, 64) > 2),
    "merged, two-sided": dict(is_causal=False),
    "merged, masked smoothing": dict(smoothing="masked", window=5),
    "merged, an offset": dict(query_offset=1),
    "rows": dict(query_offset=torch.tensor([0])),
}


@pytest.mark.parametrize("share", [0.5, 0.999, 1.001])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", LARGEST)
def test_extreme_queries_and_keys_at_the_end_of_the_range(dtype, route, share):
    """Ordinary scores of huge queries and tiny keys, or the other way round, match the reference.

    The budget is the error that the reference in float64 makes of inputs rounded once more.
    """
    largest, n = LARGEST[dtype], 64
    alpha = torch.tensor([FOLD_RANGE[dtype] * share / n])
    small = max(1 / largest, torch.finfo(dtype).smallest_normal)
    for query_size, key_size in ((largest / 8, small), (small, largest / 8)):
        q, k, v = (torch.randn(1, 1, n, 16).double() for _ in range(3))
        q, k, v = (q * query_size).to(dtype), (k * key_size).to(dtype), v.to(dtype)
        exact = [t.double() for t in (q, k, v)]
        options = dict(ROUTES[route], alpha=alpha, scale=1.0)
        true = las_attention(*exact, impl="reference", **options)
        found = las_attention(q, k, v, **options)
        eps = torch.finfo(dtype).eps
        moved = [t * (1 + eps * torch.randn_like(t)) for t in exact]
        allowed = 4 * error(las_attention(*moved, impl="reference", **options), true)
        assert error(found, true) <= max(allowed, 16 * eps)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", LARGEST)
def test_the_largest_numbers_that_are_promised_give_finite_results(dtype, route):
    alpha = torch.tensor([FOLD_RANGE[dtype] / 64])
    signs = (torch.randn(1, 1, 64, 16).double().sign() for _ in range(2))
    q, k = ((LARGEST[dtype] * sign).to(dtype) for sign in signs)
    v = torch.randn(1, 1, 64, 16).to(dtype)
    assert las_attention(q, k, v, alpha=alpha, **ROUTES[route]).isfinite().all()


def test_float32_keeps_its_digits_at_the_end_of_the_range():
    """Scores near the diagonal are not off by the rounding of α times half the length, 36."""
    q, k, v = (torch.randn(8, 2, 99, 16) for _ in range(3))
    q, k, alpha = 16 * q, 16 * k, torch.tensor([72.0, 50.0]) / 99
    true = las_attention(q.double(), k.double(), v.double(), alpha=alpha, impl="reference")
    plain = las_attention(q, k, v, alpha=alpha, impl="reference")
    assert error(las_attention(q, k, v, alpha=alpha), true) <= 2 * error(plain, true)


def test_the_range_of_the_fold_is_the_same_wherever_it_is_written():
    assert FOLD_RANGE[torch.float32] == FOLD_RANGE[torch.bfloat16]
    limit = f"{FOLD_RANGE[torch.float32]:g}"
    for page, words in {
        "src/longlens/ops/las/README.md": f"up to α·L = {limit} in float32 and bfloat16",
        "src/longlens/ops/las/sharded.py": f"must be in range ({limit} in float32 and bfloat16)",
        "docs/long_sequences.md": f"sequence at most {limit} (bfloat16, float32)",
    }.items():
        assert words in (ROOT / page).read_text(), page
