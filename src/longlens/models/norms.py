"""Normalisations over (B, L, D) that padding does not influence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlens.layers.registry import unknown


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
    >>> norm(x, torch.tensor([[True, True, False]]))[0, :2].flatten().round()
    tensor([-1.,  1.], grad_fn=<RoundBackward0>)
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
        wide = x.to(self.running_mean.dtype)
        if self.training:
            real = torch.ones_like(wide[..., :1]) if mask is None else mask[..., None].to(wide)
            count = real.sum().clamp_min(1)
            mean = (wide * real).sum((0, 1)) / count
            var = ((wide - mean).square() * real).sum((0, 1)) / count
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                unbiased = var * count / (count - 1).clamp_min(1)
                self.running_var.lerp_(unbiased, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        y = (wide - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y.to(x.dtype)


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


def build_norm(name: str, dim: int) -> nn.Module:
    """One of "layer", "rms" and "batch", as a module ``(x, mask) -> x``.

    >>> build_norm("layr", 4)
    Traceback (most recent call last):
    ValueError: unknown norm 'layr'; did you mean 'layer'? known: 'batch', 'layer', 'rms'
    """
    if name == "layer":
        return PositionNorm(nn.LayerNorm(dim))
    if name == "rms":
        return PositionNorm(nn.RMSNorm(dim, eps=1e-6))
    if name == "batch":
        return MaskedBatchNorm(dim)
    raise unknown("norm", name, ("layer", "rms", "batch"))
