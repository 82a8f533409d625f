"""The family on a CUDA device: within twice the error of the formula, and in a graph."""

import pytest
import torch
from torch.nn import functional as F

from longlens.ops.family import decay_attention, explain_decay, smoothing_taps

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
    case = Case(1, 2, 1, 200, 200, 32, 32, parts, rate, False, 5)
    tensors, _, grad = case.tensors(dtype)
    results = []
    for impl, kind in (("reference", torch.float64), ("reference", dtype), ("auto", dtype)):
        wide = torch.promote_types(kind, torch.float32)
        inputs = {
            n: t.to("cuda", kind if n in ("query", "key", "value") else wide).requires_grad_()
            for n, t in tensors.items()
        }
        out = decay_attention(**inputs, impl=impl)
        grads = torch.autograd.grad(out, list(inputs.values()), grad.to("cuda", kind))
        results.append(dict(zip(("out", *inputs), (out.detach(), *grads), strict=True)))
    exact, plain, fast = results
    for name, true in exact.items():
        factor = 2 if name in ("out", "query", "key", "value") or dtype != torch.float32 else 10
        allowed = factor * max(error(plain[name].double(), true), 12 * torch.finfo(dtype).eps)
        assert error(fast[name].double(), true) <= allowed, name


def test_a_cuda_graph_of_forward_and_backward():
    q, k, v = (
        torch.randn(2, 4, 256, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    forget = F.logsigmoid(torch.randn(2, 4, 256, device="cuda") + 4).requires_grad_()
    taps = smoothing_taps(4, 5).cuda()
    assert explain_decay(q, k, v, log_forget=forget).route == "folded"

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
