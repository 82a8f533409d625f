"""Derivatives of every kind and torch.func, on every route: as the reference, or one clear line."""

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from longlens import decay_rates, explain, las_attention
from longlens.ops.las import las_attention_sharded
from longlens.ops.las.transforms import exporting

SLOW, FAST = decay_rates(4, 0.05).double(), decay_rates(4, 90.0).double()
# Every route, with the options that lead to it.
ROUTES = {
    "row": dict(alpha=SLOW, window=3),
    "plain": dict(window=3),
    "plain-masked": dict(is_causal=False, masked=True),
    "folded": dict(alpha=SLOW),
    "folded-smooth": dict(alpha=SLOW, window=4, edge="renormalize"),
    "merged-two-sided": dict(alpha=SLOW, is_causal=False),
    "merged-tiles": dict(alpha=FAST, window=3),
    "merged-masked": dict(alpha=SLOW, masked=True),
    "merged-band": dict(alpha=SLOW, window=5, smoothing="masked"),
    "rows": dict(alpha=SLOW, query_offset=torch.tensor([3])),
    "chunk": dict(alpha=SLOW, window=3, chunk=4),
}
routes = pytest.mark.parametrize("route", ROUTES)


def call(route, device="cpu"):
    """The fast and the reference's function of query, key, value and rates; and these tensors."""
    options = {
        name: option.to(device) if isinstance(option, torch.Tensor) else option
        for name, option in ROUTES[route].items()
    }
    alpha, masked = options.pop("alpha", None), options.pop("masked", False)
    if masked:
        options["key_mask"] = torch.rand(1, 9, device=device) > 0.3
    queries = 1 if route == "row" else 9
    q = torch.randn(1, 4, queries, 4, dtype=torch.float64, device=device)
    k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64, device=device) for _ in range(2))

    def run(impl, q, k, v, alpha=None):
        return las_attention(q, k, v, alpha=alpha, enable_gqa=True, impl=impl, **options)

    inputs = (q, k, v) if alpha is None else (q, k, v, alpha)
    found = explain(q, k, v, alpha=alpha, enable_gqa=True, **options).route
    assert device != "cpu" or found == route.split("-")[0] or route == "chunk"
    return (lambda *x: run("auto", *x)), (lambda *x: run("reference", *x)), inputs


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def summed(function):
    return lambda *inputs: (
        function(*inputs) * torch.linspace(-1, 2, 4, device=inputs[0].device)
    ).sum()


def stacked(inputs):
    return [torch.stack([t, 0.5 * t, t.flip(1) if t.ndim > 1 else t]) for t in inputs]


@routes
def test_forward_mode(route):
    fast, exact, inputs = call(route)
    tangents = tuple(torch.randn_like(t) for t in inputs)
    same(jvp(fast, inputs, tangents), jvp(exact, inputs, tangents))
    with forward_ad.dual_level():  # the older interface
        duals = [forward_ad.make_dual(*pair) for pair in zip(inputs, tangents, strict=True)]
        found, expected = (forward_ad.unpack_dual(f(*duals)) for f in (fast, exact))
    assert found.tangent is not None and float(found.tangent.abs().max()) > 0.01
    same(found.tangent, expected.tangent)


@routes
def test_a_tangent_of_one_input_alone(route):
    fast, exact, inputs = call(route)
    for place in range(len(inputs)):

        def only(x, function, place=place):
            return function(*inputs[:place], x, *inputs[place + 1 :])

        tangent = torch.randn_like(inputs[place])
        found, expected = (
            jvp(lambda x, f=f: only(x, f), (inputs[place],), (tangent,))[1] for f in (fast, exact)
        )
        same(found, expected)


@routes
def test_reverse_mode_of_torch_func(route):
    fast, exact, inputs = call(route)
    places = tuple(range(len(inputs)))
    same(grad(summed(fast), places)(*inputs), grad(summed(exact), places)(*inputs))
    same(jacrev(fast, places)(*inputs), jacrev(exact, places)(*inputs))
    out, pull = vjp(fast, *inputs)
    same(pull(torch.ones_like(out)), vjp(exact, *inputs)[1](torch.ones_like(out)))


@routes
def test_jacobians_and_hessians(route):
    fast, exact, inputs = call(route)
    same(jacfwd(fast)(*inputs), jacfwd(exact)(*inputs))
    same(hessian(summed(fast))(*inputs), hessian(summed(exact))(*inputs))
    twice = [grad(lambda *x, f=f: grad(summed(f))(*x).square().sum()) for f in (fast, exact)]
    same(twice[0](*inputs), twice[1](*inputs))


@routes
def test_vmap(route):
    fast, exact, inputs = call(route)
    many = stacked(inputs)
    same(vmap(fast)(*many), torch.stack([exact(*x) for x in zip(*many, strict=True)]))
    per_sample = vmap(grad(summed(fast), tuple(range(len(inputs)))))(*many)
    one_by_one = [
        grad(summed(exact), tuple(range(len(inputs))))(*x) for x in zip(*many, strict=True)
    ]
    same(per_sample, tuple(torch.stack(g) for g in zip(*one_by_one, strict=True)))


@routes
def test_vmap_over_some_inputs_and_other_dimensions(route):
    fast, exact, inputs = call(route)
    q = torch.stack([inputs[0], -inputs[0]], dim=2)
    dims = (2, *[None] * (len(inputs) - 1))
    found = vmap(fast, dims)(q, *inputs[1:])
    same(found, torch.stack([exact(s * inputs[0], *inputs[1:]) for s in (1, -1)]))
    nested = vmap(vmap(fast, dims), (0, *dims[1:]))(torch.stack([q, 2 * q]), *inputs[1:])
    same(nested[0], found)
    learned = len(inputs) - 1  # the rates of each sample, or the values
    per_sample = vmap(grad(summed(fast), learned), dims)(q, *inputs[1:])
    same(
        per_sample,
        torch.stack([grad(summed(exact), learned)(s * inputs[0], *inputs[1:]) for s in (1, -1)]),
    )


def test_vmap_over_key_masks():
    q = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64)
    masks = torch.rand(3, 1, 9) > 0.3
    for options in (dict(alpha=SLOW[:2]), dict(is_causal=False), dict(alpha=FAST[:2])):
        found = vmap(lambda q, m, o=options: las_attention(q, q, q, key_mask=m, **o))(q, masks)
        for n in range(3):
            expected = las_attention(
                q[n], q[n], q[n], key_mask=masks[n], impl="reference", **options
            )
            same(found[n], expected)


def test_torch_func_keeps_the_fused_kernels_and_says_where_it_does_not():
    q = torch.randn(1, 4, 300, 4, dtype=torch.float64)
    routes = []

    def note(q):
        routes.append(explain(q, q, q, alpha=SLOW))
        return las_attention(q, q, q, alpha=SLOW)

    vmap(note)(q[None])
    grad(summed(note))(q)
    jvp(note, (q,), (q,))
    grad(lambda q: grad(summed(note))(q).sum())(q[:, :, :5])
    assert [plan.route for plan in routes] == ["folded", "folded", "rows", "rows"]
    assert "forward-mode" in str(routes[2])


@pytest.mark.parametrize("route", ["plain", "folded", "merged-tiles", "merged-two-sided"])
def test_a_second_backward_pass_raises_one_line(route):
    fast, _, inputs = call(route)
    leaves = [t.clone().requires_grad_() for t in inputs]
    first = torch.autograd.grad(fast(*leaves).square().sum(), leaves, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        torch.autograd.grad(first[0].sum(), leaves)
    assert "derivative" in str(caught.value) and "\n" not in str(caught.value)


def test_a_tangent_of_a_sink_alone():
    q, sink = torch.randn(1, 2, 8, 4).double(), torch.zeros(2).double()
    found = []
    for impl in ("auto", "reference"):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(sink, torch.ones_like(sink))
            out = las_attention(q, q, q, alpha=SLOW[:2], sink=dual, impl=impl)
            found.append(forward_ad.unpack_dual(out).tangent)
    same(*found)


def test_parts_refuse_forward_mode():
    from longlens.ops.las.flash import FLASH, Part
    from longlens.ops.las.merge_op import merged_attention

    part = Part(FLASH, 0, 8, 0, True, False, False, 0.5)
    q = torch.randn(1, 2, 1, 8, 4)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        merged_attention([(part, [forward_ad.make_dual(q, q), q, q])], 8)


def test_split_sequences_refuse_transforms():
    q = torch.randn(1, 2, 8, 4)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        las_attention_sharded(forward_ad.make_dual(q, q), q, q, group=None)
    with pytest.raises(NotImplementedError, match="transforms"):
        vmap(lambda q: las_attention_sharded(q, q, q, group=None))(q[None])


def test_every_row_of_the_table_names_its_test():
    tests = Path(__file__).parents[2]
    page = (tests.parent / "docs" / "reliability.md").read_text()
    table = page.split("### Transforms")[1].split("\n\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    there = {
        name
        for folder in ("ops/las", "layers")
        for file in (tests / folder).glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    named = [re.fullmatch(r"`(test_\w+)`", row.split("|")[-2].strip()) for row in rows]
    assert len(rows) >= 15 and all(found and found[1] in there for found in named)


@pytest.mark.gpu
@routes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(route, dtype):
    """As on a CPU, up to the precision of the dtype."""
    fast, exact, inputs = call(route, "cuda")
    low = tuple(t.to(dtype) if t.ndim == 4 else t.float() for t in inputs)
    wide = tuple(t.double() for t in low)
    allowed = 1e-4 if dtype == torch.float32 else 0.1

    def near(found, expected):
        torch.testing.assert_close(found.double(), expected, rtol=allowed, atol=allowed)

    near(jvp(fast, low, low)[1], jvp(exact, wide, wide)[1])
    near(grad(summed(fast))(*low), grad(summed(exact))(*wide))
    many = stacked(low)
    expected = torch.stack([exact(*(t.double() for t in x)) for x in zip(*many, strict=True)])
    near(vmap(fast)(*many), expected)


def test_compiling_is_not_exporting():
    """Else compiled models would get the plain formula: torch 2.11 says so inside torch.compile."""
    seen = []

    def call(x):
        seen.append(exporting())
        return x + 1

    torch.compile(call, backend="eager")(torch.ones(2))
    assert seen == [False]
