"""LSTM: Hochreiter & Schmidhuber 1997 (Neural Computation 9:1735).

"Long Short-Term Memory", with the forget gate of Gers et al. 2000, as everyone uses it.
"""

from __future__ import annotations

from longlens.layers.base import Aspects
from longlens.layers.recurrent import RecurrentNetwork


class LSTM(RecurrentNetwork):
    """Long short-term memory.

    Args:
        dim: D.
        bidirectional: a second network reads from the end.

    >>> import torch
    >>> LSTM(8)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(stable=True, gating=True)

    def __init__(self, dim: int, *, bidirectional: bool = False) -> None:
        super().__init__(dim, "lstm", bidirectional=bidirectional)
