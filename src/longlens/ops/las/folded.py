"""Routes `plain` and `folded`: one attention call, SDPA's or ours, on prepared inputs.

Smoothing has moved to the values, and causal decay in range into queries and keys, so that any
attention kernel serves (README.md, sections 1 and 2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call
from longlens.ops.las.eager import laid_out, one_node
from longlens.ops.las.merge_op import one_call
from longlens.ops.las.operands import separate_rows
from longlens.ops.las.plan import Plan
from longlens.ops.las.prepare import folded_inputs, narrow, prologue_steps, repeat_heads
from longlens.ops.las.transforms import functional
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.masked import safe_with


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention by one call: (B, Hq, L, Dv)."""
    out = one_node(call, plan)
    if out is not None:
        return narrow(out, call.value.shape[3])
    q, k, v, scale = folded_inputs(call, plan)
    if plan.impl == "triton":
        out, _ = kernel_attention(q, k, v, alpha=None, lag=0, scale=scale)
    else:
        out = sdpa(q, k, v, is_causal=call.is_causal, key_mask=call.key_mask, scale=scale)
    return narrow(out, call.value.shape[3])


def steps(call: Call, plan: Plan) -> list[str]:
    """The functions and kernels of `run`."""
    if plan.prologue:
        found = prologue_steps(call, fold=True)
    else:
        found = ["pool_values"] * call.pools + ["fold_square"] * (call.alpha is not None)
    if plan.impl == "triton":
        return [*found, "forward_kernel"]
    return [*found, "flash_forward" if functional() else "scaled_dot_product_attention"]


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, key_mask: Tensor | None, scale: float
) -> Tensor:
    """PyTorch's attention; a row without a key is zero."""
    mask = None if key_mask is None else key_mask[:, None, None, :]
    if functional():  # our own rule for vmap: on a CPU SDPA has none
        k, v = repeat_heads(q, k, v)
        out = one_call(q, k, v, mask=key_mask, is_causal=is_causal, scale=scale)
    else:
        options: dict[str, Any] = dict(attn_mask=mask, is_causal=is_causal, scale=scale)
        if q.is_cuda and mask is not None:
            k, v = repeat_heads(q, k, v)  # what takes a mask there takes no shared heads
        if q.shape[1] != k.shape[1]:  # a branch, since a compiler may hold the comparison symbolic
            options["enable_gqa"] = True
        q, k, v = separate_rows(q), separate_rows(k), separate_rows(v)
        with safe_with(mask, q):
            out = F.scaled_dot_product_attention(q, k, v, **options)
        if out.is_cuda and out.requires_grad:
            out = with_dense_gradient(out)
    if mask is not None and q.device.type != "cpu":  # not every kernel gives zeros here
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0)
    return out


def with_dense_gradient(out: Tensor) -> Tensor:
    """`out`, whose gradient will lie in memory as it does; `laid_out` says why."""
    if torch.compiler.is_compiling():
        return _DenseGradient.apply(out)  # type: ignore[no-untyped-call, no-any-return]
    strides = out.stride()  # a hook does the same with less to do for the host
    out.register_hook(lambda grad: laid_out(grad, strides))
    return out


class _DenseGradient(torch.autograd.Function):
    """The identity. A compiler traces this before it knows how gradients will lie in memory, but
    decides about ``contiguous`` when it does: usually there is nothing to copy.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.heads_inside = output.stride(1) < output.stride(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if ctx.heads_inside:
            return grads[0].transpose(1, 2).contiguous().transpose(1, 2)
        return grads[0].contiguous()
