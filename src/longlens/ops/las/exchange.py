"""A sequence split across processes: who holds which positions, and how rows travel between them.

Everything moves by one collective, an all-to-all with uneven splits: a halo, the keys that a rank
can see, or the piece of one other rank. Its adjoint is the same exchange with the two directions
swapped, so gradients go home the way the rows came.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Span = tuple[int, int]  # the first position, and the one after the last


@dataclass(frozen=True)
class Pieces:
    """The positions that each rank of a group holds: contiguous, in the order of the ranks."""

    group: ProcessGroup
    rank: int
    spans: tuple[Span, ...]

    @property
    def span(self) -> Span:
        """The positions of this rank."""
        return self.spans[self.rank]

    @property
    def total(self) -> int:
        """The length of the whole sequence."""
        return self.spans[-1][1]


def check_group(group: ProcessGroup | DeviceMesh) -> ProcessGroup:
    """The process group itself, which this process must be part of."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "group needs torch.distributed: start the script with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"group must be a mesh of one dimension, got one of {group.ndim}; "
                "pass mesh['name'] for one of them"
            )
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ValueError(
            "group must be a ProcessGroup (torch.distributed.group.WORLD for all processes) or a "
            f"DeviceMesh that this process is part of, got {group!r}"
        )
    return group


def extended(pieces: Pieces, before: int, after: int) -> list[Span]:
    """Every rank's positions, extended to both sides but not beyond the sequence."""

    def clip(position: int) -> int:
        return min(max(position, 0), pieces.total)

    return [(clip(a - before), clip(b + after)) for a, b in pieces.spans]


def known_pieces(group: ProcessGroup, lengths: Sequence[int], length: int) -> Pieces:
    """The pieces whose lengths the caller knows; `length` is what this rank holds."""
    rank, lengths = dist.get_rank(group), list(lengths)
    if len(lengths) != dist.get_world_size(group) or min(lengths, default=0) < 1:
        raise ValueError(
            f"lengths must hold {dist.get_world_size(group)} positive integers, one per rank of "
            f"the group, got {lengths}"
        )
    if lengths[rank] != length:
        raise ValueError(
            f"lengths says that rank {rank} holds {lengths[rank]} positions, but its tensors "
            f"hold {length}"
        )
    return Pieces(group, rank, tuple(pairwise(accumulate(lengths, initial=0))))


def agree(group: ProcessGroup, length: int, device: torch.device, **facts: object) -> Pieces:
    """Ask every rank for its length, and check that the `facts` of all ranks are the same.

    A difference would end in a wrong result or in ranks that wait for each other for ever; here
    every rank raises instead. Costs one exchange of a few numbers, and a synchronisation on CUDA.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    marks = [zlib.crc32(repr(fact).encode()) for fact in facts.values()]
    row = torch.tensor([[length, *marks]], device=device)
    rows = swap(row.repeat(ranks, 1), [1] * ranks, [1] * ranks, group).tolist()
    for index, (name, fact) in enumerate(facts.items(), 1):
        others = [r for r in range(ranks) if rows[r][index] != rows[rank][index]]
        if others:
            raise ValueError(
                f"every rank must have the same {name}: rank {rank} has {fact}, rank(s) "
                f"{', '.join(map(str, others))} something else"
            )
    lengths = [int(row[0]) for row in rows]
    if min(lengths) < 1:
        raise ValueError(f"every rank must hold at least one position, got lengths {lengths}")
    return known_pieces(group, lengths, length)


def start_swap(x: Tensor, incoming: list[int], outgoing: list[int], group: ProcessGroup) -> Tensor:
    """Send `outgoing[r]` rows of x to each rank r and take `incoming[r]` rows from it.

    Returns before the rows are there; `wait` for them. Not differentiable: see `swap`.
    """
    from torch.distributed._functional_collectives import all_to_all_single

    return all_to_all_single(x.contiguous(), incoming, outgoing, group)


def wait(x: Tensor) -> Tensor:
    """The rows themselves, once they have arrived."""
    from torch.distributed._functional_collectives import wait_tensor

    arrived: Tensor = wait_tensor(x)
    return arrived


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, incoming: list[int], outgoing: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.incoming, ctx.outgoing, ctx.group = incoming, outgoing, group
        return wait(start_swap(x, incoming, outgoing, group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return swap(grads[0], ctx.outgoing, ctx.incoming, ctx.group), None, None, None


def swap(x: Tensor, incoming: list[int], outgoing: list[int], group: ProcessGroup) -> Tensor:
    """The same exchange, finished and differentiable. Every rank must take part, also backward."""
    result: Tensor = _Swap.apply(x, incoming, outgoing, group)  # type: ignore[no-untyped-call]
    return result


def fetch(x: Tensor, pieces: Pieces, wanted: Sequence[Span]) -> Tensor:
    """The rows wanted[rank] of the whole sequence: (B, H, n, D) -> (B, H, wanted, D).

    Each rank passes its own rows and the same list of what every rank wants, inside the sequence.
    """

    def overlap(a: Span, b: Span) -> Span:
        first = max(a[0], b[0])
        return first, max(first, min(a[1], b[1]))

    if all(span == want for span, want in zip(pieces.spans, wanted, strict=True)):
        return x
    here = pieces.span[0]
    sent = [overlap(pieces.span, want) for want in wanted]
    taken = [overlap(span, wanted[pieces.rank]) for span in pieces.spans]
    rows = x.movedim(2, 0)
    out = swap(
        torch.cat([rows[a - here : b - here] for a, b in sent]),
        [b - a for a, b in taken],
        [b - a for a, b in sent],
        pieces.group,
    )
    return out.movedim(0, 2)


def fetch_pair(k: Tensor, v: Tensor, pieces: Pieces, wanted: list[Span]) -> tuple[Tensor, Tensor]:
    """The wanted rows of keys and values, in a single exchange."""
    both = fetch(torch.cat([k, v], dim=-1), pieces, wanted)
    k, v = both.split([k.shape[-1], v.shape[-1]], dim=-1)
    return k.contiguous(), v.contiguous()


def fetch_mask(mask: Tensor | None, pieces: Pieces, wanted: Sequence[Span]) -> Tensor | None:
    """The wanted part of a key mask (B, n), bool."""
    if mask is None:
        return None
    return fetch(mask[:, None, :, None].to(torch.uint8), pieces, wanted)[:, 0, :, 0].bool()
