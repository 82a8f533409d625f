"""GRU: Cho et al. 2014 (arXiv 1406.1078).

"Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation".

Left open by the paper, chosen here: the reset gate multiplies the recurrent product with its bias
(as cuDNN does), not the state before it.
"""

from __future__ import annotations

from longlens.layers.base import Aspects
from longlens.layers.recurrent import RecurrentNetwork


class GRU(RecurrentNetwork):
    """Gated recurrent unit.

    Args:
        dim: D.
        bidirectional: a second network reads from the end.

    >>> import torch
    >>> GRU(8)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    aspects = Aspects(stable=True, gating=True)

    def __init__(self, dim: int, *, bidirectional: bool = False) -> None:
        super().__init__(dim, "gru", bidirectional=bidirectional)
