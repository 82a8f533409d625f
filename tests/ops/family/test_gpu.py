"""The family on a CUDA device: within twice the error of the formula, and in a graph."""

import pytest
import torch
from torch.nn import functional as F

from longlens.ops.family import decay_attention, explain_decay, smoothing_taps

from ..las.test_plan import recorded
from .test_family import Case, error

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "parts",
    [
        ("log_gate",),
        ("log_forget",),
        ("slopes",),
        ("taps", "alpha"),
        ("sink", "slopes"),
        ("power",),
    ],
)
@pytest.mark.parametrize("rate", [1e-3, 0.1, 3.0])
def test_within_twice_the_error_of_the_formula(parts, rate, dtype):
    assert over_budget(Case(1, 2, 1, 200, 200, 32, 32, parts, rate, False, 5), dtype) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [8, 40, 64, 96, 128, 256])
@pytest.mark.parametrize(("queries", "keys", "masked"), [(300, 300, False), (70, 200, True)])
@pytest.mark.parametrize(
    "parts", [("log_forget", "slopes"), ("slopes", "sink", "taps"), ("power", "log_forget")]
)
def test_levels_in_the_kernel(parts, queries, keys, masked, width, dtype):
    """Every width of tiles, blocks that are not full, masks, groups, fewer queries than keys."""
    case = Case(2, 2, 2, queries, keys, width, width, parts, 0.05, masked, 7)
    assert over_budget(case, dtype) == []


@pytest.mark.parametrize("rate", [0.1, 3.0])
def test_learned_slopes_on_both_sides(rate):
    case = Case(1, 2, 1, 200, 200, 32, 32, ("slopes",), rate, False, 5)
    case.options = dict(is_causal=False)
    assert over_budget(case, torch.bfloat16) == []


@pytest.mark.parametrize("width", [12, 64, 128])
@pytest.mark.parametrize("parts", [("log_gate", "taps"), ("log_gate", "log_forget")])
def test_gates_in_one_pass(parts, width):
    case = Case(2, 2, 2, 300, 300, width, width, parts, 0.01, False, 8)
    assert over_budget(case, torch.bfloat16) == []


def over_budget(case, dtype):
    tensors, mask, grad = case.tensors(dtype)
    mask = None if mask is None else mask.cuda()
    results = []
    for impl, kind in (("reference", torch.float64), ("reference", dtype), ("auto", dtype)):
        wide = torch.promote_types(kind, torch.float32)
        inputs = {
            n: t.to("cuda", kind if n in ("query", "key", "value") else wide).requires_grad_()
            for n, t in tensors.items()
        }
        options = dict(key_mask=mask, enable_gqa=True, impl=impl, **case.options)
        with pytest.MonkeyPatch.context() as patch:
            if (impl, kind) == ("reference", dtype):  # a budget is of the formula in one dtype
                patch.setattr("longlens.ops.family.reference.running", lambda g: g.cumsum(2))
            out = decay_attention(**inputs, **options)
        grads = torch.autograd.grad(out, list(inputs.values()), grad.to("cuda", kind))
        results.append(dict(zip(("out", *inputs), (out.detach(), *grads), strict=True)))
    exact, plain, fast = results
    over = []
    for name, true in exact.items():
        factor = 2 if name in ("out", "query", "key", "value") or dtype != torch.float32 else 10
        allowed = factor * max(error(plain[name].double(), true), 12 * torch.finfo(dtype).eps)
        if not error(fast[name].double(), true) <= allowed:
            over.append((name, error(fast[name].double(), true), allowed))
    return over


def test_explain_names_the_kernels_that_run():
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    forget = F.logsigmoid(torch.randn(2, 4, 256, device="cuda") + 4)
    gate = -1e-3 * torch.rand(2, 4, 256, 64, device="cuda")
    for options, last in (
        (dict(log_forget=forget), "added_forward"),
        (dict(power=torch.ones(4, device="cuda")), "added_forward"),
        (dict(log_gate=gate, rate_max=1e-3), "scaled_dot_product_attention"),
        (dict(log_gate=gate, rate_max=1e-3, log_forget=forget), "added_forward"),
    ):
        plan = explain_decay(q, k, v, **options)
        assert plan.steps[-1] == last
        assert recorded(lambda o=options: decay_attention(q, k, v, **o), ()) == list(plan.steps)


def test_a_cuda_graph_of_forward_and_backward():
    q, k, v = (
        torch.randn(2, 4, 256, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    forget = F.logsigmoid(torch.randn(2, 4, 256, device="cuda") + 4).requires_grad_()
    taps = smoothing_taps(4, 5).cuda()
    assert explain_decay(q, k, v, log_forget=forget).route == "kernel"

    def step():
        out = decay_attention(q, k, v, log_forget=forget, taps=taps)
        return torch.autograd.grad(out.float().sum(), (q, forget))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * float(b.abs().max()))


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize(("parts", "rate"), [(("slopes",), 3.0), (("log_forget",), 0.3)])
def test_far_keys_are_not_visited(parts, rate, width):
    case = Case(1, 1, 2, 2200, 2500, width, width, parts, rate, False, 9)
    assert over_budget(case, torch.bfloat16) == []
