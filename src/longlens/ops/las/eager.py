"""Eager calls of the routes `plain` and `folded` on CUDA: all that they do as one node of autograd.

Between preparation, attention and their gradients there are a handful of kernels. With a node for
each, and PyTorch's bookkeeping around it, the host takes longer for them than the device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from longlens.ops.derivatives import first_only
from longlens.ops.las.call import Call
from longlens.ops.las.plan import Plan
from longlens.ops.las.prepare import folding, prologue_arguments, scales
from longlens.ops.las.triton import attention_op, prologue_op
from longlens.ops.launching import MOST_KEPT, watched

aten = torch.ops.aten
TRITON = -2  # beside torch's numbers of its own backends, which are -1 and up
FLASH, CUDNN = SDPBackend.FLASH_ATTENTION.value, SDPBackend.CUDNN_ATTENTION.value


def one_node(call: Call, plan: Plan) -> Tensor | None:
    """The result (B, Hq, L, width), of the padded width; None where one node does not serve."""
    heads, kv_heads = call.heads
    shared = heads != kv_heads and (call.alpha is None or plan.assumed.equal_in_group)
    if (
        not (plan.prologue and scales(call, fold=True) and call.query.is_cuda)
        or call.key_mask is not None
        or shared  # keys and values, which only SDPA itself repeats
        or torch.compiler.is_compiling()
        or watched()
    ):
        return None
    kind = TRITON if plan.impl == "triton" else _backend(call)
    return run_as(kind, call, plan) if kind in (TRITON, FLASH, CUDNN) else None


def run_as(kind: int, call: Call, plan: Plan) -> Tensor:
    """A call whose queries, keys and values the prologue prepares, by attention of this kind."""
    copies, exponent, scale = folding(call, plan)
    arguments = prologue_arguments(call, fold=True, copies=copies, exponent=exponent)
    how = (kind, call.is_causal, scale)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments[:6]):
        return _Node.apply(*arguments, how)  # type: ignore[no-untyped-call, no-any-return]
    return _attend(*prologue_op.forward_pass(*arguments), *how)[0]


def _backend(call: Call) -> int:
    """The one that PyTorch's attention takes for such a call; users have switches for it."""
    q, cuda = call.query, torch.backends.cuda
    tensors = (q, call.key, call.value, call.alpha, call.taps)
    return _chosen(
        (*q.shape[:3], -(-call.width // 8) * 8), q.stride(1) < q.stride(2), q.dtype, q.device,
        call.is_causal,
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors),
        (cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
         torch.are_deterministic_algorithms_enabled(), *torch._C._get_sdp_priority_order()),
    )  # fmt: skip


@lru_cache(MOST_KEPT)
def _chosen(
    shape: tuple[int, ...], inside: bool, dtype: torch.dtype, device: torch.device, causal: bool,
    differentiable: bool, switches: tuple[Any, ...],
) -> int:  # fmt: skip
    B, heads, length, width = shape
    sizes = (B, length, heads, width) if inside else shape
    like = torch.empty(sizes, dtype=dtype, device=device, requires_grad=differentiable)
    with torch.set_grad_enabled(differentiable):
        like = like.transpose(1, 2) if inside else like
        return int(torch._fused_sdp_choice(like, like, like, is_causal=causal))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, kind: int, causal: bool, scale: float
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Attention, and what its gradient needs beside q, k, v and the result."""
    if kind == TRITON:
        numbers = [q.shape[2], 0, 0, int(causal)]
        out, lse = attention_op.forward_pass(q, k, v, None, None, None, numbers, scale)
        return out, (lse,)
    if kind == CUDNN:
        out, lse, q_bounds, k_bounds, _, _, *seeds, _ = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )
    else:
        out, lse, q_bounds, k_bounds, _, _, *seeds, _ = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False, scale=scale
        )
    return out, (lse, q_bounds, k_bounds, *seeds)


def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: tuple[Any, ...], how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    kind, causal, scale = how
    if kind == TRITON:
        numbers = [q.shape[2], 0, 0, int(causal)]
        found = attention_op.backward_pass(
            grad, None, [q, k, v, out, *kept], None, None, None, numbers, scale, False
        )
        return found[:3]
    lse, q_bounds, k_bounds, *seeds = kept
    lengths = (q_bounds, k_bounds, q.shape[2], k.shape[2])
    grad = laid_out(grad, out.stride())
    if kind == CUDNN:
        found = aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, out, lse, *seeds, None, *lengths, 0.0, causal, scale=scale
        )
    else:
        found = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, *lengths, 0.0, causal, *seeds, scale=scale
        )
    return found[0], found[1], found[2]


def laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A gradient, lying in memory as the result does, and on a boundary of 16 bytes.

    cuDNN's attention (seen with torch 2.11, cuDNN 9.19) returns wrong gradients for an upstream
    gradient that is a slice of a larger tensor, such as the gradient of a concatenation; flash
    attention stops at one that begins between boundaries.
    """
    if x.stride() == strides and x.data_ptr() % 16 == 0:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


class _Kept:
    """In place of a context, what one of two functions in a node keeps for its gradient."""

    saved_tensors: tuple[Tensor | None, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *arguments, how = inputs
        prepared = prologue_op.forward_pass(*arguments)
        out, kept = _attend(*prepared, *how)
        ctx.prologue, ctx.how, ctx.count = _Kept(), how, len(kept)
        prologue_op.keep(ctx.prologue, arguments, prepared)
        ctx.save_for_backward(*prepared, out, *kept, *ctx.prologue.saved_tensors)
        del ctx.prologue.saved_tensors  # held here they would keep the result, and it them, alive
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, out, *kept = ctx.saved_tensors
        ctx.prologue.saved_tensors = tuple(kept[ctx.count :])
        found = _attend_backward(grads[0], q, k, v, out, tuple(kept[: ctx.count]), ctx.how)
        given = prologue_op.differentiate(ctx.prologue, prologue_op.backward_pass, found)
        del ctx.prologue.saved_tensors
        return *given, None
