"""Heads: from the backbone's output (B, L, D) to what a task asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlens.models.backbone import pool


class ClassificationHead(nn.Module):
    """One vector of logits, or of regression values, per sequence: (B, L, D) -> (B, C).

    Args:
        dim: D.
        outputs: C.
        pooling: "mean", "last" or "cls"; "none": values at every position, (B, L, C).

    >>> ClassificationHead(8, 3)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, dim: int, outputs: int, *, pooling: str = "mean") -> None:
        super().__init__()
        self.pooling = pooling
        self.project = nn.Linear(dim, outputs)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, C)."""
        out: Tensor = self.project(pool(x, mask, self.pooling))
        return out


class MatchingHead(nn.Module):
    """Two encoded sequences to one vector of logits, from [a, b, a·b, a-b] of their vectors.

    Args:
        dim: D.
        outputs: C.
        pooling: "mean", "last" or "cls".

    >>> MatchingHead(8, 2)(torch.randn(6, 5, 8)).shape
    torch.Size([3, 2])
    """

    def __init__(self, dim: int, outputs: int, *, pooling: str = "mean") -> None:
        super().__init__()
        self.pooling = pooling
        self.hidden = nn.Linear(4 * dim, dim)
        self.project = nn.Linear(dim, outputs)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (2B, L, D), the first and second of each pair in turn, mask (2B, L) -> (B, C)."""
        a, b = pool(x, mask, self.pooling).view(-1, 2, x.shape[-1]).unbind(1)
        features = torch.cat([a, b, a * b, a - b], dim=-1)
        out: Tensor = self.project(torch.relu(self.hidden(features)))
        return out


class TokenHead(nn.Module):
    """Logits over the vocabulary at every position: (B, L, D) -> (B, L, V).

    Args:
        dim: D.
        vocab_size: V.
        weight: share this (V, D) weight, that of the embedding; None: one of its own.

    >>> TokenHead(8, 5)(torch.randn(2, 4, 8)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(self, dim: int, vocab_size: int, *, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(dim, vocab_size)
        if weight is not None:
            self.project.weight = weight

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D) -> (B, L, V); the mask is not needed."""
        out: Tensor = self.project(x)
        return out
