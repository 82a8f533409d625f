"""Writing the values of subexpressions down, given ones in training and the model's own afterwards.

Shapes: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longlens.tasks.listops import CLOSE, PAD
from longlens.tasks.scratchpad import WRITTEN

PASSES = 32  # at most
USUAL_PASSES = 12  # of a trained model: about as many as a tree has levels

Forward = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(inputs (B, L), mask) -> the answer (B, C), and logits of the next token (B, L, V)."""


def write_values(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Put the value that each closing bracket carries after it, as a token; but not the root's.

    Args:
        tokens: (B, L) expressions with room (``tasks.scratchpad.with_room``). A bracket is
            CLOSE + value, of an expression without values CLOSE.

    Returns:
        (B, L) with plain brackets and a value after each, and (B, L): at every bracket, the root's
        too, the value that belongs after it, elsewhere 0.

    >>> write_values(torch.tensor([[12, 3, 11, 5, 8, 19, 1, 19, 0]]))  # [MAX 2 [MIN 4 7 ]4 0 ]4
    (tensor([[12,  3, 11,  5,  8, 15, 20,  1, 15]]), tensor([[ 0,  0,  0,  0,  0, 20,  0,  0, 20]]))
    """
    length = tokens.shape[1]
    closes = tokens >= CLOSE
    closed = closes.cumsum(1)
    place = torch.arange(length, device=tokens.device) + closed - closes.long()
    place = torch.where(tokens == PAD, length, place)  # a column more takes what is not kept
    values = torch.where(closes, tokens + (WRITTEN - CLOSE), 0)
    root = closes & (closed == closed[:, -1:])
    empty = tokens.new_full((len(tokens), length + 1), PAD)
    written = empty.scatter(1, place, tokens.clamp(max=CLOSE))
    written.scatter_(1, torch.where(closes & ~root, place + 1, length), values)
    predicted = empty.scatter(1, torch.where(closes, place, length), values)
    return written[:, :-1], predicted[:, :-1]


def answer(
    forward: Forward,
    inputs: Tensor,
    mask: Tensor | None,
    on_any_rank: Callable[[bool], bool] = bool,
) -> Tensor:
    """The model's answer after it has written all values itself.

    All of them are predicted at once and put in their places, until none changes any more: in a
    causal model that is what writing them one by one from left to right gives (Jacobi decoding,
    Song et al. 2021), in about as many passes as the tree has levels.

    What still changes after ``PASSES`` of them stays as it is then.

    Args:
        forward: the model, which must not see ahead.
        inputs: (B, L) from :func:`write_values`; which values it has does not matter.
        mask: (B, L) or None.
        on_any_rank: whether something is so on any rank; all make the same number of passes, as a
            model in shards needs.

    Returns:
        (B, C).
    """
    places = (inputs == CLOSE).roll(1, 1) & (inputs != PAD)
    places[:, 0] = False
    for _ in range(PASSES):
        outputs, tokens = forward(inputs, mask)
        values = WRITTEN + tokens[..., WRITTEN : WRITTEN + 10].argmax(-1)
        written = torch.where(places, values.roll(1, 1), inputs)
        if not on_any_rank(not torch.equal(written, inputs)):
            break
        inputs = written
    return outputs
