"""Performer: Choromanski et al. 2020 (arXiv 2009.14794).

"Rethinking Attention with Performers" (FAVOR+). Softmax attention estimated by positive orthogonal
random features: φ(x) = exp(w·x - |x|²/2)/√F with E[φ(q)·φ(k)] = exp(q·k).

Left open by the paper, chosen here: the features are drawn once per layer and saved with it, so
the layer is a fixed function; `redraw()` draws them anew. Keys are not shifted by their maximum
(see `longlens.ops.linear.softmax_features`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.linear import LinearAttention
from longlens.ops.linear import orthogonal_gaussian, softmax_features


class Performer(LinearAttention):
    """Random-feature softmax attention, linear in L.

    Args:
        dim: D.
        num_heads: H.
        features: F random features per head; more is closer to softmax.
        bidirectional: attend to both sides.

    >>> Performer(8, num_heads=2, features=16)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(stable=True)
    projection: Tensor

    def __init__(
        self, dim: int, *, num_heads: int = 8, features: int = 64, bidirectional: bool = False
    ) -> None:
        super().__init__(dim, num_heads=num_heads, bidirectional=bidirectional)
        check_positive(features=features)
        self.register_buffer("projection", orthogonal_gaussian(features, dim // num_heads))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw the random features anew."""
        self.projection.copy_(orthogonal_gaussian(*self.projection.shape))

    def features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """Positive random features: (..., d) -> (..., F)."""
        scaled = x * x.shape[-1] ** -0.25
        return softmax_features(scaled, self.projection.to(x.dtype), is_query=is_query)
