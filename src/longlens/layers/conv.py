"""Short convolution: Miralles-González, Huertas-Tato, Martín & Camacho 2025 (arXiv 2501.14850).

"On the locality bias and results in the Long Range Arena". A depth-wise convolution of a few taps
and a point-wise projection: a layer that cannot see further than its kernel. What it reaches on a
"long-range" task is what the task does not need long range for, so it is the audit's model.

Left open by the paper, chosen here: GELU between the two; an even kernel looks one step further
back than ahead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import Mixer, State, check_positive, check_step, zero_padding


class ShortConv(Mixer):
    """Depth-wise convolution over a window, then a point-wise projection.

    Args:
        dim: D.
        kernel_size: taps, the whole receptive field.
        bidirectional: centre the window on each position; else it ends there.

    >>> ShortConv(8, kernel_size=3)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"

    def __init__(self, dim: int, *, kernel_size: int = 5, bidirectional: bool = True) -> None:
        super().__init__()
        check_positive(dim=dim, kernel_size=kernel_size)
        self.causal = not bidirectional
        self.receptive_field = kernel_size
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, groups=dim)
        self.pointwise = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        size = self.depthwise.kernel_size[0]
        ahead = 0 if self.causal else (size - 1) // 2
        x = zero_padding(x, mask).transpose(1, 2)
        y = self.depthwise(F.pad(x, (size - 1 - ahead, ahead)))
        out: Tensor = self.pointwise(F.gelu(y.transpose(1, 2)))
        return out

    def initial_state(self, batch_size: int) -> State:
        """The last kernel_size - 1 inputs, oldest first: ((B, D, kernel_size - 1),)."""
        check_step(self)
        weight = self.depthwise.weight
        return (weight.new_zeros(batch_size, weight.shape[0], weight.shape[-1] - 1),)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        window = torch.cat([state[0], x[..., None].to(state[0].dtype)], dim=-1)
        y = self.depthwise(window)[..., 0]
        return self.pointwise(F.gelu(y)), (window[..., 1:],)
