"""A complex diagonal recurrence with many inputs and outputs, as S5 and LRU run it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlens.layers.base import Mixer, State, as_complex, check_step, zero_padding
from longlens.ops.numerics import full_precision, no_autocast
from longlens.ops.scan import diagonal_scan


def complex_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Real x (..., I) times complex weight (O, I), transposed: (..., O) complex."""
    return torch.complex(x @ weight.real.mT, x @ weight.imag.mT)


def real_readout(h: Tensor, weight: Tensor) -> Tensor:
    """Re(W h) for complex h (..., I) and weight (O, I), in real products: (..., O)."""
    out: Tensor = h.real @ weight.real.mT - h.imag @ weight.imag.mT
    return out


class DiagonalRecurrence(Mixer):
    """h_t = λ ⊙ h_{t-1} + B x_t, y_t = activate(Re(C h_t) + d ⊙ x_t).

    Not causal, a second C reads the same scan run from the other end; both see the present.
    """

    cost = "L"
    b: nn.Parameter  # (N, D, 2): pairs of real and imaginary parts
    skip: nn.Parameter  # d, (D,)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """λ (N,), B (N, D) and C (1 or 2, D, N), complex."""
        raise NotImplementedError

    def activate(self, y: Tensor) -> Tensor:
        """What follows the recurrence, position by position: (..., D) -> (..., D)."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        x = zero_padding(x, mask)
        with no_autocast(x):
            ratio, b, c = self.discrete()
            drive = complex_linear(full_precision(x), b)
            y = real_readout(diagonal_scan(ratio, drive), c[0])
            if not self.causal:
                back = diagonal_scan(ratio, drive.flip(1)).flip(1)
                y = y + real_readout(back, c[1])
        return self.activate(y.to(x.dtype) + self.skip.to(x.dtype) * x)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step: ((B, N) complex zeros,)."""
        check_step(self)
        return (as_complex(self.b).new_zeros(batch_size, self.b.shape[0]),)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        with no_autocast(x):
            ratio, b, c = self.discrete()
            h = ratio * state[0] + complex_linear(full_precision(x), b)
            y = real_readout(h, c[0])
        return self.activate(y.to(x.dtype) + self.skip.to(x.dtype) * x), (h,)
