"""Bad input gets a ValueError that names the argument, what it was and what is allowed."""

import pytest
import torch

from longlens import decay_rates, las_attention
from longlens.ops.las.decode import LaSCache

Q = torch.randn(2, 4, 6, 8)
KV = torch.randn(2, 2, 6, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(query=Q.numpy()), ["query", "a tensor", "ndarray"]),
        (dict(key=Q.numpy()), ["key", "a float tensor"]),
        (dict(query=Q[0]), ["query", "4 dimensions", "(4, 6, 8)"]),
        (dict(key=torch.randn(3, 4, 6, 8)), ["key", "batch size 2", "3"]),
        (dict(key=torch.randn(2, 4, 6, 9)), ["key", "head dimension 8", "9"]),
        (dict(value=torch.randn(2, 4, 5, 8)), ["value", "(4, 6)", "(4, 5)"]),
        (dict(key=Q.double()), ["key", "dtype", "float64"]),
        (dict(query=Q.long(), key=Q.long(), value=Q.long()), ["query", "float", "int64"]),
        (dict(key=KV, value=KV), ["heads 4", "2", "batch, heads, length", "enable_gqa"]),
        (dict(key=Q[:, :3], value=Q[:, :3], enable_gqa=True), ["multiple", "4", "3"]),
        (dict(window=0), ["window", ">= 1", "0"]),
        (dict(window=2.5), ["window", "integer", "2.5"]),
        (dict(window=4, smoothing="centered"), ["window", "odd", "4"]),
        (dict(window=4, is_causal=False), ["window", "odd", "centered", "4"]),
        (dict(smoothing="smooth"), ["smoothing", "'causal', 'centered', 'masked'", "'smooth'"]),
        (dict(smoothing="masked", is_causal=False), ["masked", "is_causal=True", "False"]),
        (dict(edge="wrap"), ["edge", "renormalize", "'wrap'"]),
        (dict(chunk=0), ["chunk", ">= 1", "0"]),
        (dict(scale=float("inf")), ["scale", "finite", "inf"]),
        (dict(scale=torch.tensor(0.3, requires_grad=True)), ["scale", "gradient", "query"]),
        (dict(alpha=torch.zeros(3)), ["alpha", "(4,)", "(3,)", "(2, 4, 6, 8)"]),
        (dict(alpha=0.1), ["alpha", "tensor", "0.1"]),
        (dict(alpha=torch.zeros(4, dtype=torch.long)), ["alpha", "float", "int64"]),
        (dict(alpha=torch.tensor([0, 0, -0.5, 0])), ["alpha", ">= 0", "-0.5"]),
        (dict(alpha=torch.tensor([0, 0, float("nan"), 0])), ["alpha", "finite", "nan"]),
        (dict(alpha_max=-1.0), ["alpha_max", ">= 0", "-1.0"]),
        (dict(key_mask=torch.ones(2, 6)), ["key_mask", "bool", "(2, 6)", "float32"]),
        (dict(key_mask=torch.ones(2, 5, dtype=torch.bool)), ["key_mask", "(2, 6)", "(2, 5)"]),
        (dict(key_mask=[True]), ["key_mask", "tensor", "(2, 6)", "[True]"]),
        (dict(is_causal=None), ["is_causal", "True or False", "None"]),
        (dict(query_offset=1.5), ["query_offset", "int", "1.5"]),
        (dict(query_offset=torch.zeros(3, dtype=torch.long)), ["query_offset", "1 or 2", "(3,)"]),
        (dict(dropout_p=0.1), ["dropout_p", "0", "0.1"]),
        (dict(impl="cuda"), ["impl", "'reference', 'sdpa', 'triton'", "'cuda'"]),
    ],
)
def test_las_attention(changes, words):
    with pytest.raises(ValueError) as caught:
        las_attention(**{"query": Q, "key": Q, "value": Q, **changes})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(num_heads=0), ["num_heads", "0"]),
        (dict(num_heads=4, bound=-1.0), ["bound", ">= 0", "-1.0"]),
        (dict(num_heads=4, spacing="linear"), ["spacing", "uniform", "'linear'"]),
        (dict(num_heads=4, bound=2.0, spacing="literal"), ["bound", "(0, 1]", "2.0"]),
        (dict(num_heads=4, min=0.1, bound=0.01, spacing="geometric"), ["min", "0.1"]),
        (dict(num_heads=4, min=1e-4), ["min", "geometric"]),
    ],
)
def test_decay_rates(arguments, words):
    with pytest.raises(ValueError) as caught:
        decay_rates(**arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (dict(window=3), dict(window=3.0)),
        (dict(chunk=3), dict(chunk=3.0)),
        (dict(local=3), dict(local=3.0)),
        (dict(local=(3, 0)), dict(local=(3.0, 0))),
        (dict(query_offset=1), dict(query_offset=1.0)),
    ],
)
def test_a_wrong_type_is_named_after_an_equal_number_was_right(right, wrong):
    """Checked calls are remembered by their arguments, and 3.0 equals 3."""
    las_attention(Q, Q, Q, **right)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        las_attention(Q, Q, Q, **wrong)


def test_decay_rates_are_what_the_readings_say():
    for spacing in ("uniform", "literal", "geometric"):
        rates = decay_rates(8, 1e-3, spacing)
        assert rates[0] == 0 and rates.dtype == torch.float32 and (rates[1:] > 0).all()
        assert torch.equal(decay_rates(1, 1e-3, spacing), torch.zeros(1))
    survival = torch.exp(-decay_rates(5, 0.7).double())
    torch.testing.assert_close(survival.diff(), survival.diff()[:1].expand(4), atol=1e-6, rtol=0)
    literal = torch.exp(-decay_rates(5, 0.5, "literal").double()[1:])
    torch.testing.assert_close(literal, 0.5 * torch.tensor([4.0, 3, 2, 1]).double() / 4)
    torch.testing.assert_close(decay_rates(4, 0.8, "geometric"), torch.tensor([0.0, 0.2, 0.4, 0.8]))
    torch.testing.assert_close(
        decay_rates(4, 1.0, "geometric", min=0.01), torch.tensor([0.0, 0.01, 0.1, 1.0])
    )
    assert decay_rates(3, 2000.0).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(key=Q[0]), ["4 dimensions", "(4, 6, 8)"]),
        (dict(value=Q[:, :, :3]), ["value", "(4, 6)", "(4, 3)"]),
        (dict(key_mask=torch.ones(2, 6)), ["key_mask", "bool", "(2, 6)", "float32"]),
        (dict(key_mask=torch.ones(2, 5, dtype=torch.bool)), ["key_mask", "(2, 6)", "(2, 5)"]),
        (dict(local=(3, 1)), ["local", "right is 0", "(3, 1)"]),
    ],
)
def test_a_cache(changes, words):
    with pytest.raises(ValueError) as caught:
        LaSCache(**{"key": Q, "value": Q, **changes})
    for word in words:
        assert word in str(caught.value)


def test_a_learned_scale_serves_where_no_gradient_is_asked_for():
    scale = torch.tensor(0.3, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(las_attention(Q, Q, Q, scale=scale), las_attention(Q, Q, Q, scale=0.3))
    with pytest.raises(ValueError, match="gradient"):  # checked calls are remembered
        las_attention(Q, Q, Q, scale=scale)
    with torch.no_grad(), pytest.raises(ValueError, match="scale must be"):
        las_attention(Q, Q, Q, scale=scale.neg_())
