"""With a mask, PyTorch's attention is never cuDNN's: its gradient can be NaN there."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import longlens
from longlens import las_attention
from longlens.ops.masked import safe_with

on_cuda = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)  # what a call asks its query for
MASK = torch.ones(1, 1, 1, 4, dtype=torch.bool)


def switches():
    cuda = torch.backends.cuda
    return (cuda.cudnn_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())


def test_cudnn_is_off_where_there_is_a_mask_and_on_again_afterwards():
    before = switches()
    with safe_with(MASK, on_cuda):
        assert switches() == (False, True, True)
    assert switches() == before
    with safe_with(None, on_cuda):
        assert switches() == before


@pytest.mark.parametrize(
    ("chosen", "inside"),
    [
        (SDPBackend.MATH, (False, False, True)),
        (SDPBackend.EFFICIENT_ATTENTION, (False, True, False)),
        (SDPBackend.CUDNN_ATTENTION, (False, False, True)),  # nothing else is left
    ],
)
def test_the_other_switches_stay_as_users_set_them(chosen, inside):
    with sdpa_kernel(chosen), safe_with(MASK, on_cuda):
        assert switches() == inside


def test_a_compiler_takes_it_as_one_graph():
    q = torch.randn(1, 2, 4, 8, requires_grad=True)

    def attend(q, mask):
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]), safe_with(mask, q):
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, MASK), attend(q, MASK))


def masked_calls(tree):
    """Calls of PyTorch's attention that may have a mask, each with whether it is guarded."""

    def walk(node, guarded):
        if isinstance(node, ast.With):
            names = [ast.unparse(item.context_expr) for item in node.items]
            guarded = guarded or any(name.startswith("safe_with(") for name in names)
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        attends = called.endswith(".scaled_dot_product_attention")
        if attends and any(k.arg in ("attn_mask", None) for k in node.keywords):
            yield node, guarded
        for child in ast.iter_child_nodes(node):
            yield from walk(child, guarded)

    return walk(tree, False)


def test_every_masked_call_of_the_package_is_guarded():
    found = []
    for folder in ("ops", "layers", "models", "hf"):
        for path in (Path(longlens.__file__).parent / folder).rglob("*.py"):
            for call, guarded in masked_calls(ast.parse(path.read_text())):
                assert guarded, f"{path}:{call.lineno} needs `with safe_with(mask, query)`"
                found.append(path.name)
    assert {"folded.py", "alibi.py", "mega.py", "local.py", "bigbird.py", "luna.py"} <= set(found)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("length", [64, 192, 704, 768])
def test_gradients_where_cudnns_are_not_finite(length, compiled):
    # all scores are about -120, so that exp(-log-sum-exp) is infinite; a mask of real keys alone
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 64, device="cuda") * s for s in (0.1, 0.1, 1.0))
    q[..., 0], k[..., 0] = 1.0, -120 * 8.0
    tensors = [t.bfloat16().requires_grad_() for t in (q, k, v)]
    mask = torch.ones(1, length, dtype=torch.bool, device="cuda")
    upstream = torch.randn(1, 2, length, 64, device="cuda").bfloat16()

    def attend(*tensors):
        return las_attention(*tensors, alpha=None, is_causal=False, key_mask=mask)

    torch.compiler.reset()
    run = torch.compile(attend, fullgraph=True) if compiled else attend
    found = torch.autograd.grad(run(*tensors), tensors, upstream)
    exact = [t.detach().float().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(F.scaled_dot_product_attention(*exact), exact, upstream.float())
    for x, y in zip(found, expected, strict=True):
        assert x.isfinite().all()
        # k is rounded to steps of 4 where it is 960; the other columns have the signal
        assert (x.float() - y)[..., 1:].abs().max() <= 0.05 * y[..., 1:].abs().max()
