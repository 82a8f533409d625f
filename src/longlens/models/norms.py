"""Normalisations over (B, L, D) that padding does not influence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.registry import unknown
from longlens.ops.derivatives import first_only
from longlens.ops.norm import (
    column_moments,
    has_kernels,
    moments_reference,
    scaled_sums,
    scaled_sums_reference,
)


class _Standardise(torch.autograd.Function):
    """Rows (N, D) to mean 0 and variance 1 over the real ones, times a weight, plus a bias.

    Moments (3, D) are those of x, as ``moments_reference`` returns them. The backward pass is
    written out, two passes over memory where autograd takes six; on a GPU its sums are kernels.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, moments: Tensor, real: Tensor | None, weight: Tensor, bias: Tensor,
        eps: float,
    ) -> Tensor:  # fmt: skip
        mean, var, count = moments.unbind()
        rate = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, real, weight, mean, rate, count)
        out = (x.to(weight.dtype) - mean) * rate * weight + bias
        # torch 2.11 compiles an out.to(x.dtype) that changes nothing to zero gradients
        return out if out.dtype == x.dtype else out.to(x.dtype)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, real, weight, mean, rate, count = ctx.saved_tensors
        wide = (x.to(weight.dtype) - mean) * rate
        if has_kernels(x, weight):
            to_bias, to_weight = scaled_sums(grad, x, mean, rate).unbind()
        else:
            given = (grad.to(wide), x.to(wide), mean, rate)
            to_bias, to_weight = scaled_sums_reference(*given).unbind()
        grad = grad.to(wide)
        shared = (to_bias + wide * to_weight) / count  # what statistics pass on, to real rows
        to_rows = grad - (shared if real is None else shared * real)
        return (to_rows * (rate * weight)).to(x.dtype), None, None, to_weight, to_bias, None


class MaskedBatchNorm(nn.Module):
    """Batch normalisation per channel whose statistics count real tokens only.

    Under data parallelism every process uses the statistics of its own part of the batch, as
    ``nn.BatchNorm1d`` does.

    Args:
        dim: D.
        momentum: weight of the newest batch in the running statistics.
        eps: added to the variance.

    >>> norm = MaskedBatchNorm(1)
    >>> x = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> norm(x, torch.tensor([[True, True, False]]))[0, :2].flatten().round().tolist()
    [-1.0, 1.0]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        if not self.training:
            y = (x.to(self.weight.dtype) - self.running_mean) * torch.rsqrt(
                self.running_var + self.eps
            )
            return (y * self.weight + self.bias).to(x.dtype)
        real = None if mask is None else mask.reshape(-1, 1)
        rows = x.flatten(0, 1)
        with torch.no_grad():
            if has_kernels(rows, self.weight):
                moments = column_moments(rows, real)
            else:
                moments = moments_reference(rows.to(self.weight.dtype), real)
            mean, var, count = moments.unbind()
            spread = var * count / (count - 1).clamp_min(1)
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(spread.to(self.running_var), self.momentum)
        out: Tensor = _Standardise.apply(  # type: ignore[no-untyped-call]
            rows, moments, real, self.weight, self.bias, self.eps
        )
        return out.view_as(x)


class PositionNorm(nn.Module):
    """A norm that sees one position at a time and so never sees padding.

    Args:
        norm: maps (..., D) to (..., D).

    >>> PositionNorm(nn.RMSNorm(4))(torch.ones(1, 2, 4)).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D) -> (B, L, D); the mask is not needed."""
        out: Tensor = self.norm(x)
        return out


class ScaleNorm(nn.Module):
    """Every position divided by its root mean square, times one learned number.

    ScaleNorm (Nguyen & Salazar 2019, arXiv 1910.05895) in MEGA's parametrisation, in which the
    number starts at 1; theirs divides by the length of the vector and starts at √D.

    Args:
        eps: added to the mean square.

    >>> ScaleNorm()(torch.tensor([3.0, -3.0])).detach()
    tensor([ 1.0000, -1.0000])
    """

    def __init__(self, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (rate * self.scale)).to(x.dtype)


def build_norm(name: str, dim: int) -> nn.Module:
    """One of "layer", "rms", "scale" and "batch", as a module ``(x, mask) -> x``.

    >>> build_norm("layr", 4)
    Traceback (most recent call last):
    ValueError: unknown norm 'layr'; did you mean 'layer'? known: 'batch', 'layer', 'rms', 'scale'
    """
    if name == "layer":
        return PositionNorm(nn.LayerNorm(dim))
    if name == "rms":
        return PositionNorm(nn.RMSNorm(dim, eps=1e-6))
    if name == "scale":
        return PositionNorm(ScaleNorm())
    if name == "batch":
        return MaskedBatchNorm(dim)
    raise unknown("norm", name, ("layer", "rms", "scale", "batch"))
