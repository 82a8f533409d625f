"""Packed sequences: bounds are checked, sequences may be empty, none sees another."""

import pytest
import torch

from longlens import las_attention
from longlens.ops.las import las_attention_varlen

X = torch.randn(10, 2, 4)


@pytest.mark.parametrize(
    ("bounds", "longest", "words"),
    [
        ([1, 10], 10, ["cu_seqlens", "start at 0", "got 1"]),
        ([0, 9], 10, ["cu_seqlens", "end at", "10", "got 0 and 9"]),
        ([0, 11], 11, ["cu_seqlens", "end at", "10", "11"]),
        ([0, 7, 4, 10], 10, ["cu_seqlens", "not decrease", "7 before 4"]),
        ([0, -3, 10], 13, ["cu_seqlens", "not decrease", "0 before -3"]),
        ([0, 3, 10], 5, ["max_seqlen", "got 5", "7"]),
        ([], 5, ["cu_seqlens", "N+1 integers", "(0,)"]),
        ([0.0, 10.0], 10, ["cu_seqlens", "integers", "float"]),
        ([False, True], 10, ["cu_seqlens", "integers", "bool"]),
        ([0, 10], -1, ["max_seqlen", ">= 0", "-1"]),
    ],
)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_wrong_bounds(bounds, longest, words, impl):
    with pytest.raises(ValueError) as caught:
        las_attention_varlen(X, X, X, torch.tensor(bounds), longest, impl=impl)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(key=X[:, :1]), ["value", "heads"]),
        (dict(key=X[:, :1], value=X[:, :1]), ["heads", "enable_gqa"]),
        (dict(value=X.double()), ["value", "dtype"]),
        (dict(alpha=torch.zeros(3)), ["alpha", "(2,)"]),
        (dict(key=X[:9]), ["key", "10 tokens", "(9, 2, 4)"]),
    ],
)
def test_wrong_tensors(changes, words):
    arguments = dict(query=X, key=X, value=X, cu_seqlens=torch.tensor([0, 10]), max_seqlen=10)
    with pytest.raises(ValueError) as caught:
        las_attention_varlen(**arguments | changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 0, 0]])
@pytest.mark.parametrize("longest", [0, 5])
def test_an_empty_pack(bounds, longest):
    x = torch.randn(0, 2, 4, requires_grad=True)
    value = torch.randn(0, 2, 3, requires_grad=True)
    out = las_attention_varlen(x, x, value, torch.tensor(bounds), longest, window=3)
    assert out.shape == (0, 2, 3)
    assert all(g.shape == t.shape for g, t in zip(torch.autograd.grad(out.sum(), (x, value)),
                                                  (x, value), strict=True))  # fmt: skip


def test_empty_sequences_among_others():
    options = dict(alpha=torch.tensor([0.0, 0.3]), window=3)
    found = las_attention_varlen(X, X, X, torch.tensor([0, 0, 4, 4, 10, 10]), 6, **options)
    for start, stop in ((0, 4), (4, 10)):
        piece = X[start:stop].transpose(0, 1)[None]
        expected = las_attention(piece, piece, piece, impl="reference", **options)
        torch.testing.assert_close(found[start:stop], expected[0].transpose(0, 1))


def test_nothing_leaks_into_another_sequence():
    x = X.clone()
    x[5:] = float("nan")
    found = las_attention_varlen(x, x, x, torch.tensor([0, 5, 10]), 8, alpha=torch.ones(2))
    clean = las_attention_varlen(X, X, X, torch.tensor([0, 5, 10]), 8, alpha=torch.ones(2))
    assert torch.equal(found[:5], clean[:5])


def test_compiled_code_checks_the_bounds_where_it_runs():
    def attend(x, bounds):
        return las_attention_varlen(x, x, x, bounds, 10)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    bounds = torch.tensor([0, 4, 10])
    torch.testing.assert_close(compiled(X, bounds), attend(X, bounds))
    with pytest.raises(RuntimeError, match="cu_seqlens must rise"):
        compiled(X, torch.tensor([0, 11, 10]))


def test_bounds_in_a_list_are_named():
    with pytest.raises(ValueError, match=r"cu_seqlens must be a tensor .* got \[0, 10\]"):
        las_attention_varlen(X, X, X, [0, 10], 10)
