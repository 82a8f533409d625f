"""The frame of every long-convolution layer: kernel, skip connection, activation, projection.

A layer of this family is y = mix(GELU(k * x + d ⊙ x)); what differs from paper to paper is where
the kernel k comes from. Kernels are modules of their own, so that gated layers (GSS, H3) can use
them without the frame.

Shapes: B batch, L length, D channels, N modes per channel, M directions (1 or 2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.base import Mixer, OutputMix, State, check_positive, check_step, zero_padding
from longlens.ops.conv import fft_conv
from longlens.ops.numerics import full_precision
from longlens.ops.ssm import vandermonde


class Kernel(nn.Module):
    """Makes convolution kernels of any length: ``kernel(length) -> (M, D, length)``.

    The first of the M kernels looks at the present and the past, the second at the future. A tap
    must not depend on ``length``: a padded batch and a single example share their kernels.
    """

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        raise NotImplementedError


class DiagonalKernel(Kernel):
    """Kernels of diagonal state-space models, K_l = Re Σ_n c_n r_n^l, and their recurrence."""

    def modes(self) -> tuple[Tensor, Tensor]:
        """Coefficients c (M, D, N) and log-ratios log r (D, N), both complex."""
        raise NotImplementedError

    def forward(self, length: int) -> Tensor:
        """The first ``length`` taps, (M, D, length)."""
        return vandermonde(*self.modes(), length)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step: ((B, D, N) complex zeros,)."""
        _, log_ratios = self.modes()
        return (log_ratios.new_zeros(batch_size, *log_ratios.shape),)

    def step(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of h ← r h + u, y = Re Σ c h: u (B, D) -> y (B, D)."""
        coefficients, log_ratios = self.modes()
        h = torch.exp(log_ratios) * state[0] + full_precision(u)[..., None]
        return (coefficients[0] * h).real.sum(-1).to(u.dtype), (h,)


class LongConvolution(Mixer):
    """Convolve with the kernels of ``kernel_type``, add a skip, activate, project.

    Args:
        dim: D.
        bidirectional: use a second kernel that looks at the future.
        output: "glu", "linear" or "none", see :class:`~longlens.layers.base.OutputMix`.
        options: those of ``kernel_type``, except for ``directions``.
    """

    cost = "L log L"
    kernel_type: type[Kernel]
    """Makes (M, D, L) kernels; M = 2 where ``bidirectional``."""

    def __init__(
        self, dim: int, *, bidirectional: bool = False, output: str = "glu", **options: Any
    ) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.causal = not bidirectional
        self.kernel = self.kernel_type(dim, directions=1 + bidirectional, **options)
        self.skip = nn.Parameter(torch.randn(dim))
        self.mix = OutputMix(dim, output)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)
        k = self.kernel(x.shape[1])
        y = fft_conv(x, k[0], None if self.causal else k[1])
        out: Tensor = self.mix(y + self.skip.to(x.dtype) * x)
        return out


class RecurrentConvolution(LongConvolution):
    """A long convolution whose kernel is also a recurrence: adds ``step``."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step, for ``batch_size`` sequences."""
        check_step(self)
        state: State = self.kernel.initial_state(batch_size)  # type: ignore[operator]
        return state

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step in O(1) memory: x (B, D) -> y (B, D), equal to forward at that position."""
        state = self.initial_state(x.shape[0]) if state is None else state
        y, state = self.kernel.step(x, state)  # type: ignore[operator]
        return self.mix(y + self.skip.to(x.dtype) * x), state
