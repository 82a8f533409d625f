"""ListOps: the arguments of every operator in a new random order (all four are symmetric)."""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.training.augment.base import Transform
from longlens.training.augment.digits import redraw_digits
from longlens.training.augment.slots import RANDOM_BITS, SLOT, slots_of, sort_rows


class ShuffleArguments(Transform):
    """Shuffle the arguments of every operator of every expression; values and labels stay.

    ``[MAX 2 9 [MIN 4 7 ] 0 ]`` may become ``[MAX [MIN 7 4 ] 0 2 9 ]``. Every order of every
    operator's arguments is equally likely, independently of all others. Padding stays where it is;
    an expression whose brackets do not match (one that was cut) is left as it is.

    Args:
        redraw: also draw digits anew, see :func:`longlens.training.augment.digits.redraw_digits`.

    >>> tokens = torch.tensor([[12, 3, 10, 11, 5, 8, 15, 1, 15, 0]])
    >>> shuffled = ShuffleArguments()(tokens, None, torch.Generator().manual_seed(1))
    >>> sorted(shuffled[0].tolist()) == sorted(tokens[0].tolist()), shuffled[0, 0], shuffled[0, -1]
    (True, tensor(12), tensor(0))
    """

    def __init__(self, *, redraw: bool = False) -> None:
        super().__init__()
        self.redraw = redraw

    def noise(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw what :meth:`transform` needs: (B, L) or (B, L, 2) int64 random numbers."""
        shape = (*inputs.shape, 2) if self.redraw else inputs.shape
        return torch.randint(1 << RANDOM_BITS, shape, generator=generator, device=inputs.device)

    def transform(self, inputs: Tensor, mask: Tensor | None, noise: Tensor) -> Tensor:
        """(B, L) tokens -> (B, L); a pure function of its arguments."""
        if not self.redraw:
            return shuffle_arguments(inputs, noise)
        return redraw_digits(shuffle_arguments(inputs, noise[..., 0]), noise[..., 1])


def shuffle_arguments(tokens: Tensor, noise: Tensor) -> Tensor:
    """Reorder the arguments of every operator by rising ``noise``: (B, L), (B, L) -> (B, L).

    A *node* is a digit or an operator with all that belongs to it; its size is its number of
    tokens. Two sorts place all nodes of all levels at once:

    1. By (level, position) the arguments of an operator lie side by side, and an operator's closing
       bracket follows directly after the operator: sizes and families can be read off.
    2. By (family, noise) every family is in its new order, in the same slots as before.

    In either order the sizes of the nodes before a node in its family say where it starts, and as
    a family keeps its slots, so does the difference of the running sums over *all* nodes: how far
    the node moves within its parent. A token moves by the sum of these over the nodes that hold it,
    which is one more running sum, up at each node's first token and down after its last.
    """
    batch, length = tokens.shape
    slots = slots_of(tokens)
    slot_opens, slot_closes, slot_node, family = slots.opens, slots.closes, slots.node, slots.family
    position = torch.arange(length, device=tokens.device).expand(batch, length)
    next_position = slots.position.roll(-1, 1)
    size = torch.where(slot_opens, next_position - slots.position + 1, 1) * slot_node

    # The slot itself in the lowest bits: sorted keys carry their order, and none are equal.
    order = sort_rows((((family << RANDOM_BITS) + noise) << 16) + position) & SLOT
    before = size.cumsum(1) - size
    new_size = size.gather(1, order)
    new_before = torch.empty_like(size).scatter_(1, order, new_size.cumsum(1) - new_size)
    moves = (new_before - before) * slot_node

    # Back to positions; an operator's last token is its bracket, a digit's the digit itself.
    ends_here = torch.where(slot_closes, moves.roll(1, 1), moves * ~slot_opens)
    up = torch.empty_like(moves).scatter_(1, slots.position, moves)
    down = torch.empty_like(moves).scatter_(1, slots.position, ends_here)
    shift = up.cumsum(1) - (down.cumsum(1) - down)
    moved = position + torch.where(slots.whole, shift, 0)
    return torch.empty_like(tokens).scatter_(1, moved, tokens)
