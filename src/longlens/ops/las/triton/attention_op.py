"""The attention kernels as a PyTorch operator with gradients of q, k, v and α, and of both outputs.

Shapes as in `las_attention`; values come pooled. The log-sum-exp is an output too, so that further
keys can be merged in by ordinary differentiable code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlens.ops.las.triton.prologue_op import dense_rows, strides


class Blocks(NamedTuple):
    """Tile sizes and launch settings of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


def _forward_blocks(width: int, wide: bool) -> Blocks:
    if wide:
        return Blocks(64, 32, 4, 2) if width <= 64 else Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(128, 64, 4, 3)
    return Blocks(128, 64, 8, 3) if width <= 128 else Blocks(64, 32, 4, 2)


def _query_blocks(width: int, wide: bool) -> Blocks:
    if wide:
        return Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(128, 64, 8, 2)
    return Blocks(128, 64, 8, 2) if width <= 128 else Blocks(64, 32, 4, 1)


def _key_blocks(width: int, wide: bool) -> Blocks:
    if wide:
        return Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(64, 128, 8, 2)
    return Blocks(64, 128, 8, 2) if width <= 128 else Blocks(32, 64, 4, 1)


def _settings(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, mask: Tensor | None,
    bounds: Tensor | None, offset: int, lag: int, causal: bool, scale: float, blocks: Blocks,
) -> dict[str, Any]:  # fmt: skip
    """What all kernels take by name."""
    import triton

    D, DV = q.shape[3], v.shape[3]
    S = k.shape[2]
    return dict(
        alpha=alpha, mask=mask, cu=bounds, mask_b=0 if mask is None else mask.stride(0),
        lse_b=q.shape[1] * q.shape[2], lse_h=q.shape[2], L=q.shape[2], S=S, offset=offset, lag=lag,
        scale=scale, GROUP=q.shape[1] // k.shape[1], D=D, DV=DV,
        BD=max(16, triton.next_power_of_2(D)), BDV=max(16, triton.next_power_of_2(DV)),
        BM=blocks.queries, BN=blocks.keys, CAUSAL=causal, HAS_ALPHA=alpha is not None,
        HAS_MASK=mask is not None, VARLEN=bounds is not None,
        # float32 stays float32: three TF32 products make up one
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps, num_stages=blocks.stages,
        **strides(q=q, k=k, v=v),
    )  # fmt: skip


def _even(S: int, blocks: Blocks, bounds: Tensor | None) -> bool:
    return bounds is None and S % blocks.keys == 0


def _like(x: Tensor, width: int) -> Tensor:
    """An output as x, with another width, in x's order of heads and positions."""
    B, heads, length = x.shape[:3]
    if x.stride(1) < x.stride(2):
        return x.new_empty(B, length, heads, width).transpose(1, 2)
    return x.new_empty(B, heads, length, width)


def _sequences(q: Tensor, bounds: Tensor | None) -> int:
    return q.shape[0] if bounds is None else bounds.shape[0] - 1


@torch.library.custom_op("longlens::las_kernel", mutates_args=())
def las_kernel(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, mask: Tensor | None,
    bounds: Tensor | None, longest: int, offset: int, lag: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention (B, Hq, L, Dv) and its log-sum-exp (B, Hq, L), float32.

    `bounds` (N+1,) cuts one long row into N sequences of at most `longest` tokens (B is 1 then);
    a causal query sees keys up to its position minus `lag`.
    """
    import triton

    from longlens.ops.las.triton.forward import forward_kernel

    out = _like(q, v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    blocks = _forward_blocks(max(q.shape[3], v.shape[3]), q.dtype == torch.float32)
    settings = _settings(q, k, v, alpha, mask, bounds, offset, lag, causal, scale, blocks)
    heads = q.shape[1]
    grid = (triton.cdiv(longest, blocks.queries), _sequences(q, bounds) * heads)
    with torch.cuda.device_of(q):
        forward_kernel[grid](
            q, k, v, out, lse, **settings, **strides(o=out), H=heads,
            EVEN=_even(k.shape[2], blocks, bounds),
        )  # fmt: skip
    return out, lse


@las_kernel.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, mask: Tensor | None,
    bounds: Tensor | None, longest: int, offset: int, lag: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("longlens::las_kernel_backward", mutates_args=())
def las_kernel_backward(
    grad: Tensor, grad_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    alpha: Tensor | None, mask: Tensor | None, bounds: Tensor | None, longest: int, offset: int,
    lag: int, causal: bool, scale: float, alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and α's by row (B, Hq, L) where asked for (else of length 0)."""
    import triton

    from longlens.ops.las.triton.backward import delta_kernel, key_kernel, query_kernel

    dq, dk, dv = _like(q, q.shape[3]), _like(k, k.shape[3]), _like(v, v.shape[3])
    q, k, v, grad = dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(grad)
    grad_lse = grad_lse.contiguous()
    heads, n, width = q.shape[1], q.shape[2], max(q.shape[3], v.shape[3])
    wide = q.dtype == torch.float32
    delta, lse_2 = torch.empty_like(lse), torch.empty_like(lse)
    rates = q.new_empty(lse.shape if alpha_gradient else 0, dtype=torch.float32)
    count = _sequences(q, bounds)
    with torch.cuda.device_of(q):
        delta_kernel[(triton.cdiv(n, 64), q.shape[0] * heads)](
            out, grad, lse, grad_lse, delta, lse_2, **strides(o=out, g=grad), L=n, H=heads,
            DV=v.shape[3], BDV=max(16, triton.next_power_of_2(v.shape[3])), BM=64,
        )  # fmt: skip
        blocks = _query_blocks(width, wide)
        settings = _settings(q, k, v, alpha, mask, bounds, offset, lag, causal, scale, blocks)
        query_kernel[(triton.cdiv(longest, blocks.queries), count * heads)](
            q, k, v, grad, lse_2, delta, dq, rates, **settings, **strides(do=grad, dq=dq), H=heads,
            EVEN=_even(k.shape[2], blocks, bounds), ALPHA_GRADIENT=alpha_gradient,
        )  # fmt: skip
        blocks = _key_blocks(width, wide)
        settings = _settings(q, k, v, alpha, mask, bounds, offset, lag, causal, scale, blocks)
        keys = longest if bounds is not None else k.shape[2]
        key_kernel[(triton.cdiv(keys, blocks.keys), count * k.shape[1])](
            q, k, v, grad, lse_2, delta, dk, dv, **settings, **strides(do=grad, dk=dk, dv=dv),
            K_HEADS=k.shape[1],
        )  # fmt: skip
    return dq, dk, dv, rates


@las_kernel_backward.register_fake
def _(
    grad: Tensor, grad_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    alpha: Tensor | None, mask: Tensor | None, bounds: Tensor | None, longest: int, offset: int,
    lag: int, causal: bool, scale: float, alpha_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grads = (_like(t, t.shape[3]) for t in (q, k, v))
    return *grads, q.new_empty(lse.shape if alpha_gradient else 0, dtype=torch.float32)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, alpha, mask, bounds, *ctx.numbers = inputs
    ctx.alpha_gradient = alpha is not None and alpha.requires_grad
    ctx.save_for_backward(q, k, v, *output, alpha, mask, bounds)


def _backward(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
    q, k, v, out, lse, alpha, mask, bounds = ctx.saved_tensors
    dq, dk, dv, rates = las_kernel_backward(
        grad, grad_lse, q, k, v, out, lse, alpha, mask, bounds, *ctx.numbers, ctx.alpha_gradient
    )
    d_alpha = rates.sum((0, 2)).to(alpha.dtype) if ctx.alpha_gradient else None
    return dq, dk, dv, d_alpha, *[None] * 7


las_kernel.register_autograd(_backward, setup_context=_setup)
