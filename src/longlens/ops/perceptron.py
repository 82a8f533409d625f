"""y = GELU(x W₁ᵀ + b₁) W₂ᵀ + b₂, with GELU and its derivative inside the matrix products on a GPU.

Opaque to ``torch.compile``, which multiplies first and applies GELU in a pass of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from longlens.ops.launching import DTYPES, INSTALLED, INTERPRETED, on_device

TILE = {"BM": 128, "BN": 128, "BK": 64, "STAGES": 3}
WARPS = 8


def perceptron_reference(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The formula: x (..., D), w1 (N, D), b1 (N), w2 (E, N), b2 (E) -> (..., E).

    GELU is its tanh form: within 5e-4 of the exact one, and a third faster on a GPU.

    >>> one = torch.ones(1, 1)
    >>> perceptron_reference(one, one, one[0], one, one[0])
    tensor([[2.9546]])
    """
    return F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)


def has_kernels(x: Tensor, dtype: torch.dtype, hidden: int) -> bool:
    """Whether the kernels take x (..., D) in that dtype for a hidden layer of that width.

    On a GPU in half precision, and only where it was measured: Hopper.

    >>> has_kernels(torch.ones(2, 64), torch.float64, 128)
    False
    """
    if not INSTALLED or dtype not in DTYPES or x.shape[-1] % TILE["BK"] or hidden % TILE["BN"]:
        return False
    if not x.is_cuda:
        return INTERPRETED
    return dtype != torch.float32 and torch.cuda.get_device_capability(x.device) >= (9, 0)


def _launch(x: Tensor, w: Tensor, bias: Tensor | None, h: Tensor) -> tuple[Tensor, Tensor | None]:
    """The kernel on x (M, K): forward with a bias, which fills h, backward without."""
    from longlens.ops.perceptron_kernels import product_gelu_kernel

    rows, (width, hidden) = len(x), (x.shape[1], h.shape[1])
    backward = bias is None
    expected = (width, hidden) if backward else (hidden, width)
    if w.shape != expected:
        raise ValueError(f"weight must have shape {expected}, got {tuple(w.shape)}")
    if width % TILE["BK"] or hidden % TILE["BN"]:
        raise ValueError(
            f"x must have a multiple of {TILE['BK']} columns and h of {TILE['BN']}, got {width} "
            f"and {hidden}"
        )
    tiles = -(-rows // TILE["BM"])
    out = torch.empty_like(h)
    sums = x.new_empty(tiles, hidden, dtype=torch.float32) if backward else None
    if rows:
        with on_device(x):
            product_gelu_kernel[(tiles * (hidden // TILE["BN"]),)](
                x.contiguous(), w.contiguous(), bias, h, out, sums, rows, N=hidden, K=width,
                TRANSPOSED=not backward, BACKWARD=backward, num_warps=WARPS, **TILE,
            )  # fmt: skip
    return out, sums


@torch.library.custom_op("longlens::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """X (M, K), weight (N, K), bias (N) -> h = x weightᵀ + bias and GELU(h), both (M, N)."""
    h = x.new_empty(len(x), len(weight))
    out, _ = _launch(x, weight, bias, h)
    return h, out


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    h = x.new_empty(x.shape[0], weight.shape[0])
    return h, torch.empty_like(h)


@torch.library.custom_op("longlens::gelu_backward", mutates_args=())
def gelu_backward(grad: Tensor, weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Grad (M, K), weight (K, N), h (M, N) -> g = (grad weight) · GELU'(h), and its sums (N)."""
    out, sums = _launch(grad, weight, None, h.contiguous())
    assert sums is not None
    return out, sums.sum(0)


@gelu_backward.register_fake
def _(grad: Tensor, weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape[1], dtype=torch.float32)


@register_flop_formula([torch.ops.longlens.linear_gelu, torch.ops.longlens.gelu_backward])
def _flops(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    """The product's; both take (M, K) and a weight of K · N numbers."""
    return 2 * x[0] * weight[0] * weight[1]


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        h, activity = linear_gelu(x, w1, b1)
        ctx.save_for_backward(x, w1, w2, h, activity)
        return torch.addmm(b2, activity, w2.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, w1, w2, h, activity = ctx.saved_tensors
        inner, to_b1 = gelu_backward(grad, w2, h)
        return inner @ w1, inner.t() @ x, to_b1.to(w1.dtype), grad.t() @ activity, grad.sum(0)


def perceptron(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """``perceptron_reference``, by kernels where there are some for such inputs.

    >>> x, w = torch.ones(2, 3, 8), torch.ones(8, 8)
    >>> perceptron(x, w, w[0], w, w[0]).shape
    torch.Size([2, 3, 8])
    """
    low = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if low else x.dtype
    if not torch.is_grad_enabled() or not has_kernels(x, dtype, len(w1)):
        return perceptron_reference(x, w1, b1, w2, b2)
    rows, *weights = (t.to(dtype) for t in (x.flatten(0, -2), w1, b1, w2, b2))
    out: Tensor = _Perceptron.apply(rows, *weights)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)
