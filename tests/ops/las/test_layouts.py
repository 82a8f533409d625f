"""A result depends on the values of its inputs alone, never on how they lie in memory."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longlens import LaSAttention, las_attention
from longlens.ops.las import las_attention_packed, las_attention_varlen
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.flash import flash_backward, flash_forward
from longlens.ops.las.operands import operator_ready
from longlens.ops.rotary import rotary_angles

from .cases import cases, error
from .layouts import LAYOUTS, SAME_VALUES, laid_out

OTHER_WAYS = [
    dict(key_mask=torch.arange(100).view(2, 50) % 7 > 0),
    dict(query_offset=3),
    dict(is_causal=False),
    dict(window=5, smoothing="masked"),
]
layouts = st.sampled_from(LAYOUTS)


def repeat(impl, q, k, v, grad, alpha=None, **options):
    """Output and gradients."""
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    if alpha is not None:
        inputs.append(alpha.detach().requires_grad_())
        options["alpha"] = inputs[3]
    out = las_attention(*inputs[:3], impl=impl, **options)
    grads = torch.autograd.grad(out, inputs, grad, allow_unused=True, materialize_grads=True)
    return out.detach(), *grads


@pytest.mark.parametrize("options", OTHER_WAYS, ids=lambda o: next(iter(o)))
def test_a_transposed_tensor(options):
    x = torch.randn(2, 2, 8, 50).transpose(2, 3)
    alpha = torch.tensor([0.0, 0.1])
    expected = las_attention(x, x, x, alpha=alpha, impl="reference", **options)
    for _ in range(3):  # what lies in memory differs from call to call
        found = las_attention(x, x, x, alpha=alpha, **options)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [7, 50, 130])
def test_a_layer_with_narrow_heads_and_one_sequence(length):
    layer = LaSAttention(4, num_heads=2, rotary=True, causal=False)
    x = torch.randn(1, length, 4)
    found = layer(x)
    torch.testing.assert_close(found.double(), layer.double()(x.double()), atol=1e-5, rtol=0)


@given(
    case=cases(lengths=(1, 2, 13, 65, 131)),
    width=st.integers(1, 300),
    value_width=st.integers(1, 300),
    kinds=st.tuples(*[layouts] * 5),
    alpha_kind=st.sampled_from(["dense", "every other column", "odd offset", "expanded columns"]),
)
@settings(max_examples=60)
def test_every_route_takes_every_layout(case, width, value_width, kinds, alpha_kind):
    case.width, case.value_width, case.batch = width, value_width, min(case.batch, 2)
    q, k, v, alpha, mask, grad = case.tensors()
    q, k, v, grad = (laid_out(t, kind) for t, kind in zip((q, k, v, grad), kinds, strict=False))
    alpha = alpha if alpha is None else laid_out(alpha[None], alpha_kind)[0]
    mask = mask if mask is None else laid_out(mask, kinds[4])
    options = dict(case.options, key_mask=mask, enable_gqa=True)
    expected = repeat("reference", q, k, v, grad, alpha, **options)
    for found, true in zip(repeat("sdpa", q, k, v, grad, alpha, **options), expected, strict=True):
        assert error(found, true) < 1e-10


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, st.integers(1, 70), st.integers(1, 300)),
    keys=st.integers(1, 70),
    kinds=st.tuples(*[layouts] * 5),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    causal=st.booleans(),
)
@settings(max_examples=60)
def test_the_operators_below_sdpa(shape, keys, kinds, dtype, causal):
    """The same numbers whatever the layout: the kernels see no difference."""
    n, m, queries, width = shape
    keys = queries if causal else keys
    sizes = [queries, keys, keys, queries]
    q, k, v, grad = (
        laid_out(torch.randn(n, m, size, width).to(dtype), kind)
        for size, kind in zip(sizes, kinds, strict=False)
    )
    dense = [t.clone(memory_format=torch.contiguous_format) for t in (q, k, v, grad)]
    out, lse = flash_forward(q, k, v, causal, None, 0.3)
    true_out, true_lse = flash_forward(*dense[:3], causal, None, 0.3)
    allowed = 16 * torch.finfo(dtype).eps
    assert error(out, true_out.double()) <= allowed
    assert error(lse, true_lse.double()) <= allowed
    strange = laid_out(true_out, kinds[4] if kinds[4] in SAME_VALUES else "transposed")
    found = flash_backward(grad, q, k, v, strange, true_lse, causal, None, 0.3)
    expected = flash_backward(dense[3], *dense[:3], true_out, true_lse, causal, None, 0.3)
    for g, true in zip(found, expected, strict=True):
        assert error(g, true.double(), vanished=1.0) <= allowed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_ready_is_not_copied(layout):
    x = laid_out(torch.randn(2, 3, 20, 16), layout)
    ready = operator_ready(x)
    assert torch.equal(ready, x)
    fine = x.stride(-1) == 1 and x.stride(-2) >= 16
    assert (ready is x) == fine


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding(layout):
    k, v, q = torch.randn(3, 2, 2, 20, 8)
    k, v = laid_out(k, layout), laid_out(v, layout)
    q = laid_out(q[:, :, -2:], layout)[:, :, -1:]
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, :3] = False
    alpha = torch.tensor([0.3, 0.0]).flip(0).expand(2, 2).T[0]
    for options in (dict(), dict(key_mask=laid_out(mask, "transposed"))):
        cache = LaSCache(k, v, window=3, **options)
        found = cache.attend(q, alpha=alpha)
        expected = las_attention(q, k, v, alpha=alpha, window=3, impl="reference", **options)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_sequences(layout):
    q, k, v = (laid_out(torch.randn(1, 30, 3, 8), layout)[0] for _ in range(3))
    bounds = torch.tensor([[0, 7, 10, 11, 30]] * 2).int().T.contiguous()[:, 0]
    alpha = torch.tensor([0.0, 0.1, 0.5])
    found = las_attention_varlen(q, k, v, bounds, 19, alpha=alpha, window=3)
    for start, stop in pairwise(bounds.tolist()):
        piece = [t[start:stop].transpose(0, 1)[None] for t in (q, k, v)]
        expected = las_attention(*piece, alpha=alpha, window=3, impl="reference")
        torch.testing.assert_close(
            found[start:stop], expected[0].transpose(0, 1), atol=1e-5, rtol=0
        )


def side_inputs(device="cpu"):
    """α, a mask, angles and bounds as no kernel reads them without help."""
    alpha = laid_out(torch.tensor([[0.0, 0.02, 0.1, 1.0]], device=device), "every other column")[0]
    mask = laid_out(torch.arange(80, device=device).view(2, 40) % 5 > 0, "transposed")
    angles = [laid_out(t, "transposed") for t in rotary_angles(torch.arange(40, device=device), 16)]
    bounds = torch.tensor([[0, 7, 10, 40]] * 2, device=device).int().T.contiguous()[:, 0]
    return alpha, mask, angles, bounds


def check_side_inputs_of_kernels(device):
    alpha, mask, angles, bounds = side_inputs(device)
    x = torch.randn(2, 12, 40, 16, device=device)
    for options in (dict(is_causal=False), dict(window=3), dict(window=3, edge="renormalize")):
        options |= dict(alpha=alpha, key_mask=mask)
        found = las_attention_packed(x, 4, 4, angles=angles, impl="triton", **options)
        expected = las_attention_packed(x, 4, 4, angles=angles, impl="reference", **options)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    q, k, v = (laid_out(t, "transposed") for t in x.unflatten(1, (3, 4)).transpose(0, 1)[:, 0])
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    found = las_attention_varlen(q, k, v, bounds, 30, alpha=alpha, window=3, impl="triton")
    expected = las_attention_varlen(q, k, v, bounds, 30, alpha=alpha, window=3, impl="reference")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    k, v = x.unflatten(1, (3, 4)).unbind(1)[:2]
    cache = LaSCache(k, v, window=3, key_mask=torch.arange(40, device=device).expand(2, 40) > 3)
    found = cache.attend(k[:, :, -1:], alpha=alpha, impl="triton")
    torch.testing.assert_close(found, cache.attend(k[:, :, -1:], alpha=alpha), atol=1e-5, rtol=0)


@pytest.mark.kernels
@pytest.mark.kernels_short
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_side_inputs_of_kernels():
    check_side_inputs_of_kernels("cpu")


@pytest.mark.gpu
def test_side_inputs_of_kernels_on_a_gpu():
    check_side_inputs_of_kernels("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 7, 32, 64, 100, 256, 300])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_on_a_gpu(layout, width, dtype):
    """Every route of both implementations, and misaligned rows under vector loads.

    Some inputs are ill-conditioned whatever their layout (the terms of α's gradient cancel, equal
    columns make scores large), so the budget grows with the error of the same values, dense.
    """
    eps = torch.finfo(dtype).eps
    for options in (dict(window=3), *OTHER_WAYS):
        options = {n: o.cuda() if isinstance(o, torch.Tensor) else o for n, o in options.items()}
        inputs = torch.randn(4, 2, 2, 50, width).cuda().to(dtype)
        inputs = [laid_out(t, layout) for t in inputs]
        dense = [t.clone(memory_format=torch.contiguous_format) for t in inputs]
        alpha = torch.tensor([[0.0, 0.1]]).expand(2, 2).T[:, 0].cuda()
        true = repeat("reference", *(t.double() for t in dense), alpha, **options)
        for impl in ("sdpa", "auto"):
            found = repeat(impl, *inputs, alpha, **options)
            usual = repeat(impl, *dense, alpha, **options)
            for name, mine, same, exact in zip("oqkvα", found, usual, true, strict=True):
                # Where all rows are equal, the gradient of α all but vanishes: what is left is
                # the rounding of 50² products, each times a distance.
                vanished = 50.0**2 if name == "α" and layout == "expanded rows" else 1.0
                allowed = max(40 * eps, 2 * error(same, exact, vanished))
                assert error(mine, exact, vanished) < allowed, (impl, name, list(options))
