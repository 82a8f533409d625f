"""ListOps: digits drawn anew, such that every operator keeps its value.

No operator depends on all that its digits are. What its value may rest on is held, whatever its
nested arguments are worth, and all else is drawn as ListOps draws it, given that. Nothing is
evaluated, and no label is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.tasks.listops import CLOSE, DIGIT, OPERATOR
from longlens.training.augment.slots import RANDOM_BITS, SLOT, Slots, slots_of, sort_rows

MIN, MAX, MED, SM = range(OPERATOR, CLOSE)


def redraw_digits(tokens: Tensor, noise: Tensor) -> Tensor:
    """Draw digits anew by ``noise``, 31 random bits for each: (B, L), (B, L) -> (B, L).

    ``[MIN 4 7 [SM 1 2 ] ]`` may become ``[MIN 4 9 [SM 6 7 ] ]``: the smallest digit of a MIN is
    held, the largest of a MAX, of a MED those that may lie in the middle, of an SM the sum modulo
    10. An expression whose brackets do not match is left as it is.

    >>> tokens = torch.tensor([[11, 5, 8, 14, 2, 3, 15, 15]])  # [MIN 4 7 [SM 1 2 ] ]
    >>> noise = torch.tensor([[0, 0, (1 << 31) - 1, 0, 1 << 30, 0, 0, 0]])
    >>> redraw_digits(tokens, noise).tolist()  # [MIN 4 9 [SM 5 8 ] ]
    [[11, 5, 10, 14, 6, 9, 15, 15]]
    """
    slots = slots_of(tokens)
    value = tokens.gather(1, slots.position) - DIGIT
    drawn = noise.gather(1, slots.position)
    digit = slots.node & ~slots.opens & (slots.family > 0) & slots.whole
    new = torch.where(
        slots.operator == SM,
        _same_sum(slots, value, digit, drawn),
        _same_middle(slots, value, digit, drawn),
    )
    new = torch.where(digit, new, value) + DIGIT
    return torch.empty_like(tokens).scatter_(1, slots.position, new)


def _totals(slots: Slots, terms: Tensor) -> Tensor:
    """Sums (B, L + 1) of terms (B, L) over each family, in the order of families."""
    batch, length = terms.shape
    sums = torch.zeros(batch, length + 1, dtype=torch.long, device=terms.device)
    return sums.scatter_add_(1, slots.family, terms.long())


def _same_sum(slots: Slots, value: Tensor, digit: Tensor, drawn: Tensor) -> Tensor:
    """Any digits, but for the last of a family, which keeps its sum modulo 10."""
    digits = _totals(slots, digit)
    seen = digit.cumsum(1) - (digits.cumsum(1) - digits).gather(1, slots.family)  # of the family
    free = seen < digits.gather(1, slots.family)
    new = 10 * drawn >> RANDOM_BITS
    change = _totals(slots, torch.where(digit & free, value - new, 0)).gather(1, slots.family)
    return torch.where(free, new, (value + change) % 10)


def _same_middle(slots: Slots, value: Tensor, digit: Tensor, drawn: Tensor) -> Tensor:
    """Digits below and above the ranks on which an operator's value may rest.

    Digits are ranked within their family by value, equal ones by place. A MIN rests on the lowest
    rank and a MAX on the highest. Of n arguments a MED takes those of rank (n - 1) // 2 and n // 2;
    each nested one may lie below them, so that their ranks among the digits may be lower by as many
    as are nested. The digits of these ranks are held. One of a lower rank becomes any digit that
    comes before the lowest of them, one of a higher rank any that comes after the highest.
    """
    batch, length = value.shape
    place = torch.arange(length, device=value.device).expand(batch, length)
    digits = _totals(slots, digit)
    first = (digits.cumsum(1) - digits).gather(1, slots.family)  # of the family, among all digits
    count = digits.gather(1, slots.family)
    arguments = _totals(slots, slots.node).gather(1, slots.family)

    low, high = (arguments - 1) // 2 - (arguments - count), arguments // 2
    low = torch.where(slots.operator == MED, low.clamp(min=0), 0)
    high = torch.where(slots.operator == MED, torch.minimum(high, count - 1), 0)
    low, high = (torch.where(slots.operator == MAX, count - 1, rank) for rank in (low, high))

    key = torch.where(digit, (slots.family << 4) + value, length << 4)
    ranked = sort_rows((key << 16) + place) & SLOT  # places by family and rank, the rest last
    rank = torch.empty_like(value).scatter_(1, ranked, place) - first
    lowest, highest = (
        ranked.gather(1, (first + held).clamp(0, length - 1)) for held in (low, high)
    )
    most = value.gather(1, lowest) - (place > lowest).long()
    least = value.gather(1, highest) + (place < highest).long()
    down = (most + 1) * drawn >> RANDOM_BITS
    up = least + ((10 - least) * drawn >> RANDOM_BITS)
    return torch.where(rank < low, down, torch.where(rank > high, up, value))
