"""LaS attention traced: compiled for any length, exported, as ONNX, without data."""

import io

import pytest
import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from longlens import LaSAttention, decay_rates, explain, las_attention

# In range SDPA does it in one call; everything else is the formula in an exported program.
IN_RANGE = {
    "default": dict(),
    "renormalize": dict(edge="renormalize", window=40),
    "rotary-gqa": dict(rotary=True, num_kv_heads=2),
    "learned": dict(learned_alpha=True),
    "only-smooth-two-sided": dict(bound=0.0, causal=False),
}
FORMULA = {
    "out-of-range": dict(bound=3.0),
    "two-sided": dict(causal=False),
    "masked": dict(smoothing="masked", window=3),
    "chunk": dict(chunk=16),
}
ALL = IN_RANGE | FORMULA
LENGTHS = (2, 3, 20, 33, 70)


def layer(name, **options):
    return LaSAttention(16, 4, **ALL[name], **options)


def export(mixer, strict):
    length = torch.export.Dim("length", min=2, max=1000)
    example = (torch.randn(2, 20, 16, dtype=mixer.qkv.weight.dtype),)
    return torch.export.export(mixer, example, dynamic_shapes=({1: length},), strict=strict)


def some(names):
    """Those names, and all others as slow tests."""
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in ALL]


@pytest.mark.parametrize("name", ALL)
def test_exports_for_any_length(name):
    check_export(name, strict=False)


@pytest.mark.parametrize("name", some(["default", "two-sided"]))
def test_exports_strictly_for_any_length(name):
    check_export(name, strict=True)


def check_export(name, strict):
    if name == "rotary-gqa" and torch.__version__.startswith("2.11"):
        pytest.skip("torch 2.11 refuses grouped heads of any length: it compares 4·L with 8·L")
    mixer = layer(name).double()
    program = export(mixer, strict)
    run = program.module()
    for length in LENGTHS:
        x = torch.randn(2, length, 16, dtype=torch.float64)
        torch.testing.assert_close(run(x), mixer(x), rtol=0, atol=1e-12)
    operators = {str(node.target) for node in program.graph.nodes}
    assert not any("longlens" in operator for operator in operators)
    assert any("scaled_dot_product" in operator for operator in operators) == (name in IN_RANGE)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11
@pytest.mark.parametrize("name", ["default", "two-sided"])
def test_an_exported_program_is_saved_and_trained_on(name):
    mixer = layer(name).double()
    file = io.BytesIO()
    torch.export.save(export(mixer, False), file)
    file.seek(0)
    run = torch.export.load(file).module()
    x = torch.randn(2, 31, 16, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(run(x).square().sum(), x),
        torch.autograd.grad(mixer(x).square().sum(), x),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_exports_within_its_own_error(dtype):
    mixer = layer("default").to(dtype)
    x = torch.randn(2, 50, 16, dtype=dtype)
    exact = layer("default")
    exact.load_state_dict(mixer.state_dict())
    with torch.no_grad():
        found, eager, true = export(mixer, False).module()(x), mixer(x), exact(x.float())
    allowed = 2 * float((eager.float() - true).abs().max())
    assert float((found.float() - true).abs().max()) <= allowed


def test_queries_and_keys_of_their_own_lengths_export():
    class Cross(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("alpha", decay_rates(2, 0.1).double())

        def forward(self, q, k, v):
            return las_attention(q, k, v, alpha=self.alpha, alpha_max=0.1, window=3)

    def draw(queries, keys):
        return tuple(torch.randn(1, 2, n, 4, dtype=torch.float64) for n in (queries, keys, keys))

    queries, keys = (torch.export.Dim(name, min=2, max=300) for name in ("queries", "keys"))
    shapes = ({2: queries}, {2: keys}, {2: keys})
    cross = Cross()
    run = torch.export.export(cross, draw(5, 9), dynamic_shapes=shapes).module()
    for inputs in (draw(5, 9), draw(9, 9), draw(12, 7), draw(2, 200)):
        torch.testing.assert_close(run(*inputs), cross(*inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", some(["default"]))
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_onnx_for_any_length(name):
    import onnxruntime

    mixer = layer(name).eval()
    length = torch.export.Dim("length", min=2, max=1000)
    program = torch.onnx.export(
        mixer, (torch.randn(2, 20, 16),), dynamo=True, dynamic_shapes=({1: length},), verbose=False
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for length in LENGTHS:
        x = torch.randn(2, length, 16)
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), mixer(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", some(["default", "out-of-range"]))
def test_compiles_for_any_length(name):
    torch.compiler.reset()
    mixer = layer(name).double()
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (20, 33, 70):
        x = torch.randn(2, length, 16, dtype=torch.float64, requires_grad=True)
        inputs = [x, *mixer.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x).square().sum(), inputs),
            torch.autograd.grad(mixer(x).square().sum(), inputs),
        )


def test_numbers_may_change_in_compiled_code():
    torch.compiler.reset()
    q = torch.randn(1, 2, 30, 4, dtype=torch.float64)
    alpha = decay_rates(2, 0.1).double()

    def run(q, alpha_max, scale):
        return las_attention(q, q, q, alpha=alpha, alpha_max=alpha_max, scale=scale, window=3)

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for alpha_max, scale in ((0.1, 0.5), (50.0, 0.9)):
        torch.testing.assert_close(compiled(q, alpha_max, scale), run(q, alpha_max, scale))


def test_torch_func_inside_compiled_code():
    q, t = (torch.randn(2, 1, 2, 9, 4, dtype=torch.float64) for _ in range(2))
    alpha = decay_rates(2, 0.1).double()

    def run(q):
        return las_attention(q, q, q, alpha=alpha, is_causal=False)

    for function in (
        vmap(run),
        grad(lambda q: vmap(run)(q).square().sum()),
        lambda q: jvp(vmap(run), (q,), (t,))[1],
    ):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q), function(q))


def test_tangents_never_vanish_in_compiled_code():
    from torch.autograd import forward_ad

    torch.compiler.reset()
    q = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    alpha = decay_rates(2, 0.1).double()

    def run(q):
        return las_attention(q, q, q, alpha=alpha, is_causal=False)

    compiled = torch.compile(run, backend="aot_eager")
    compiled(q)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(q, q))).tangent
    torch.testing.assert_close(found, jvp(run, (q,), (q,))[1])
    torch.compiler.reset()
    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    with forward_ad.dual_level(), pytest.raises(Exception, match=r"do not go through|dual tensor"):
        whole(forward_ad.make_dual(q, q))


def test_torch_func_around_compiled_code_raises():
    torch.compiler.reset()
    q = torch.randn(2, 1, 2, 9, 4)
    compiled = torch.compile(
        lambda q: las_attention(q, q, q, window=3), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match="functorch"):
        vmap(compiled)(q)


@pytest.mark.parametrize("name", ALL)
def test_torch_func_on_the_layer(name):
    """Gradients of each sample, an ensemble, and a forward-mode derivative."""
    mixer = layer(name).double()
    x = torch.randn(3, 25, 16, dtype=torch.float64)
    parameters = dict(mixer.named_parameters())

    def loss(parameters, x):
        return functional_call(mixer, parameters, (x[None],)).square().sum()

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for n in range(3):
        one = torch.autograd.grad(mixer(x[n : n + 1]).square().sum(), mixer.parameters())
        for expected, each in zip(one, found.values(), strict=True):
            torch.testing.assert_close(each[n], expected)

    layers = [layer(name).double() for _ in range(2)]
    stacked, buffers = stack_module_state(layers)
    outs = vmap(lambda p, b: functional_call(mixer, (p, b), (x,)))(stacked, buffers)
    torch.testing.assert_close(outs, torch.stack([each(x) for each in layers]))

    tangent = jvp(mixer, (x,), (x,))[1]
    step = 1e-6
    difference = (mixer(x + step * x) - mixer(x - step * x)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_meta_tensors_give_shapes(name):
    mixer = layer(name)
    y = mixer.to("meta")(torch.randn(2, 20, 16, device="meta", requires_grad=True))
    assert y.shape == (2, 20, 16) and y.is_meta
    y.sum().backward()
    assert mixer.qkv.weight.grad.shape == mixer.qkv.weight.shape
    with torch.device("meta"):
        made = layer(name)
        assert made(torch.randn(2, 20, 16)).is_meta


def test_meta_tensors_take_the_same_route_as_real_ones():
    q = torch.randn(1, 2, 20, 4)
    alpha = decay_rates(2, 0.1)
    for options in (dict(), dict(is_causal=False), dict(window=3, smoothing="masked")):
        plans = [
            explain(q.to(d), q.to(d), q.to(d), alpha=alpha.to(d), alpha_max=0.1, **options)
            for d in ("cpu", "meta")
        ]
        assert plans[0] == plans[1]
