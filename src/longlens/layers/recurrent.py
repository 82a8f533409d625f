"""LSTM: Hochreiter & Schmidhuber 1997 (Neural Computation 9:1735), and GRU: Cho et al. 2014.

"Long Short-Term Memory", with the forget gate of Gers et al. 2000, as everyone uses it, and
"Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation"
(arXiv 1406.1078).

Left open by the second paper, chosen here: the reset gate multiplies the recurrent product with its
bias (as cuDNN does), not the state before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects, Mixer, State, check_positive, check_step, zero_padding
from longlens.ops.numerics import full_precision, no_autocast
from longlens.ops.rnn import GATES, rnn, rnn_step


class RecurrentNetwork(Mixer):
    """A recurrent layer whose state is as wide as its input.

    Args:
        dim: D.
        bidirectional: a second network reads from the end; a projection joins the two.
    """

    cost = "L"
    aspects = Aspects(stable=True, gating=True)
    kind: str

    def __init__(self, dim: int, *, bidirectional: bool = False) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.causal = not bidirectional
        gates, bound = GATES[self.kind] * dim, dim**-0.5

        def draw(*shape: int) -> nn.Parameter:  # the usual initialisation of these layers
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        def network() -> nn.ParameterList:
            return nn.ParameterList([draw(gates, dim), draw(gates, dim), draw(gates), draw(gates)])

        self.forwards = network()
        if bidirectional:
            self.backwards = network()
            self.join = nn.Linear(2 * dim, dim)

    def _read(self, x: Tensor, weights: nn.ParameterList, order: Tensor | None) -> Tensor:
        """Run over x (B, L, D) in the given order of positions, and put results back in place."""
        if order is None:
            return rnn(self.kind, x, list(weights))
        index = order[..., None].expand_as(x)
        y = rnn(self.kind, torch.gather(x, 1, index), list(weights))
        return torch.zeros_like(y).scatter(1, index, y)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        if mask is None:
            ahead = None
            back = torch.arange(x.shape[1] - 1, -1, -1, device=x.device).expand(x.shape[:2])
        else:
            # Real tokens first, in order; padding comes after them and touches nothing.
            x = zero_padding(x, mask)
            position = torch.arange(x.shape[1], device=x.device)
            ahead = torch.argsort(position + x.shape[1] * ~mask, dim=1)
            back = torch.argsort(-position + 2 * x.shape[1] * ~mask, dim=1)
        y = self._read(x, self.forwards, ahead)
        if self.causal:
            return y
        out: Tensor = self.join(torch.cat([y, self._read(x, self.backwards, back)], dim=-1))
        return out

    def initial_state(self, batch_size: int) -> State:
        """Zeros: (h,) for a GRU, (h, c) for an LSTM, each (B, D)."""
        check_step(self)
        weight = self.forwards[1]
        zeros = weight.new_zeros(batch_size, weight.shape[1])
        return (zeros, zeros) if self.kind == "lstm" else (zeros,)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x (B, D) -> y (B, D)."""
        state = self.initial_state(x.shape[0]) if state is None else state
        with no_autocast(x):
            weights = [full_precision(w) for w in self.forwards]
            wide = [full_precision(h) for h in state]
            state = tuple(rnn_step(self.kind, full_precision(x), wide, weights))
        return state[0].to(x.dtype), state


class LSTM(RecurrentNetwork):
    """Long short-term memory.

    >>> LSTM(8)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kind = "lstm"


class GRU(RecurrentNetwork):
    """Gated recurrent unit.

    >>> GRU(8)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    kind = "gru"
