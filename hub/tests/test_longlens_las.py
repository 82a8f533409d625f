"""The built kernel against the plain formula, which it carries along."""

from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel

las = get_local_kernel(Path(__file__).parents[1])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = [
    dict(window=5),
    dict(window=5, smoothing="masked", edge="renormalize"),
    dict(window=3, is_causal=False),
    dict(window=5, local=40),
    dict(window=3, local=(30, 20), is_causal=False),
]


@pytest.mark.kernels_ci
@pytest.mark.parametrize("options", CALLS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_gradients_are_those_of_the_formula(options, masked):
    torch.manual_seed(0)
    tensors = [torch.randn(2, 4, 150, 32, device=DEVICE, requires_grad=True) for _ in range(3)]
    alpha = las.decay_rates(4, bound=0.05, device=DEVICE)
    mask = torch.rand(2, 150, device=DEVICE) > 0.2 if masked else None
    found = {}
    for impl in ("auto", "reference"):
        out = las.las_attention(*tensors, alpha=alpha, key_mask=mask, impl=impl, **options)
        found[impl] = [out, *torch.autograd.grad(out.square().sum(), tensors)]
    for a, b in zip(found["auto"], found["reference"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
