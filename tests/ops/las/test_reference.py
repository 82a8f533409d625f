"""The reference is the specification, so it is checked against a second reading of the text."""

import numpy as np
import torch
from hypothesis import given, settings

from longlens import las_attention, las_weights

from .cases import cases, error
from .oracle import oracle


def check_definition(case):
    q, k, v, alpha, mask, _ = case.tensors()
    found = las_attention(
        q, k, v, alpha=alpha, key_mask=mask, enable_gqa=True, impl="reference", **case.options
    )
    arrays = {"alpha": alpha, "key_mask": mask}
    arrays = {name: None if t is None else t.numpy() for name, t in arrays.items()}
    expected = oracle(q.numpy(), k.numpy(), v.numpy(), **arrays, **case.options)
    assert error(found, torch.from_numpy(expected)) < 1e-12


@settings(max_examples=60)
@given(cases(lengths=(1, 2, 3, 7, 13)))
def test_reference_is_the_definition(case):
    check_definition(case)


def test_a_row_worked_by_hand():
    # Equal scores: query 3 gives 1/4 to each key, and each key 1/3 to itself and its neighbours.
    q = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    row = {
        name: las_weights(q, q, window=3, smoothing=name, is_causal=causal, edge=edge)[0, 0, 3] * 12
        for name, causal, edge in (
            ("causal", True, "zero"),
            ("centered", True, "zero"),
            ("masked", True, "renormalize"),
        )
    }
    np.testing.assert_allclose(row["causal"], [3, 3, 2, 1], atol=1e-12)
    np.testing.assert_allclose(row["centered"], [2, 3, 3, 2], atol=1e-12)
    # renormalize: keys 0 and 3 have two receivers each, keys 1 and 2 three
    np.testing.assert_allclose(row["masked"], [1.5 + 1, 1.5 + 2, 1.5 + 2, 1.5 + 1], atol=1e-12)


def test_decay_multiplies_the_score_before_the_softmax():
    q = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    weights = las_weights(q, q, alpha=torch.tensor([np.log(2.0)]), scale=1.0)[0, 0, 1]
    np.testing.assert_allclose(weights, np.exp([0.5, 1.0]) / np.exp([0.5, 1.0]).sum(), atol=1e-7)


def test_renormalized_rows_sum_to_one():
    q, k = torch.randn(2, 2, 20, 4).double(), torch.randn(2, 2, 20, 4).double()
    mask = torch.rand(2, 20) > 0.3
    for smoothing in ("causal", "centered", "masked"):
        weights = las_weights(
            q, k, window=5, smoothing=smoothing, edge="renormalize", key_mask=mask
        )
        has_key = mask.cumsum(-1)[:, None] > 0
        torch.testing.assert_close(weights.sum(-1), has_key.double().expand(2, 2, 20))


def test_weights_times_values_is_the_output():
    q, k, v = (torch.randn(1, 2, 15, 4).double() for _ in range(3))
    options = dict(window=3, smoothing="masked", alpha=torch.tensor([0.1, 0.2]), chunk=6)
    torch.testing.assert_close(las_weights(q, k, **options) @ v, las_attention(q, k, v, **options))


def test_the_default_device_is_that_of_no_tensor_here():
    q = torch.randn(1, 2, 9, 4)
    options = dict(window=3, edge="renormalize")
    exact = las_weights(q, q, **options)
    with torch.device("meta"):  # as torch.set_default_device("cuda"), with a model left on the CPU
        found = las_weights(q, q, **options)
    assert torch.equal(found, exact)
