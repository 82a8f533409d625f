"""One node of autograd for preparation and attention: the same results, no memory kept alive."""

import gc
import weakref

import pytest
import torch

from longlens import decay_rates, las_attention
from longlens.ops.las import eager, las_attention_packed
from longlens.ops.las.call import Call, check
from longlens.ops.las.plan import Assumed, Plan
from longlens.ops.rotary import rotary_angles, rotate

PLAN = Plan("triton", "folded", assumed=Assumed(0.01), prologue=True)


@pytest.mark.kernels
@pytest.mark.kernels_short
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize("packed", [False, True])
def test_as_the_formula(packed):
    tensors = torch.randn(1, 6, 40, 16)
    alpha = decay_rates(4, 0.01).requires_grad_()
    angles = rotary_angles(torch.arange(40), 16) if packed else None
    grad, results = torch.randn(1, 4, 40, 16), []
    for one_node in (True, False):
        x = tensors.clone().requires_grad_()
        q, k, v = x.split([4, 1, 1], dim=1)
        options = dict(alpha=alpha, window=5, edge="renormalize", enable_gqa=True)
        if one_node:
            more = dict(packed=x if packed else None, angles=angles)
            out = eager.run_as(eager.TRITON, check(Call(q, k, v, **options, **more)), PLAN)
        else:
            q, k = (rotate(t, *angles) for t in (q, k)) if packed else (q, k)
            out = las_attention(q, k, v, impl="reference", **options)
        results.append((out, *torch.autograd.grad(out, [x, alpha], grad)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [24, 32, 64, 96, 128, 256])
@pytest.mark.parametrize("length", [1, 65, 300])
@pytest.mark.parametrize("inside", [True, False])
def test_every_backend_as_separate_nodes(width, length, inside, monkeypatch):
    options = dict(alpha=decay_rates(8, 0.01, device="cuda").requires_grad_(), window=5)
    shape = (2, length, 16, width) if inside else (2, 16, length, width)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    x = (x.transpose(1, 2) if inside else x).requires_grad_()
    grad = torch.randn(2, 8, length, width + 3, device="cuda", dtype=torch.bfloat16)[..., 1:-2]
    results = []
    for served in (True, False):
        if not served:
            monkeypatch.setattr("longlens.ops.las.folded.one_node", lambda call, plan: None)
        out = las_attention_packed(x, 8, 4, **options)
        results.append((out, *torch.autograd.grad(out, [x, options["alpha"]], grad)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(las_attention_packed(x, 8, 4, **options), results[1][0])


@pytest.mark.gpu
@pytest.mark.parametrize("width", [32, 64])
def test_nothing_is_kept_alive(width):
    x = torch.randn(1, 24, 64, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = las_attention_packed(x, 8, 8, alpha=decay_rates(8, device="cuda"), window=5)
    gone = weakref.ref(out)
    gc.disable()
    try:
        del out
        assert gone() is None
    finally:
        gc.enable()
