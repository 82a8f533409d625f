"""LaS attention over a split sequence, one piece of keys at a time: memory like a piece.

In step t every rank attends to the piece of the rank t places before it, and the results are merged
by their log-sum-exp. The backward pass makes the same round: each step's own operators take the
merged output and log-sum-exp, and the gradients of a visiting piece are sent home.

Smoothing needs neighbours. For `causal` and `centered` they come as a halo of raw values, and a
piece is (keys, pooled values) of the rank's own positions. For `masked` a query sees complete
windows only p = P//2 behind it, so there each piece lies p positions behind the queries of its
rank: then all windows it needs end where the rank's own positions end, and both the piece and the
band of the last p keys follow from a halo of 2p positions before. Nothing comes from ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.derivatives import first_only
from longlens.ops.las.call import Call
from longlens.ops.las.checks import read_alpha
from longlens.ops.las.exchange import (
    Pieces,
    Span,
    extended,
    fetch_mask,
    fetch_pair,
    start_swap,
    wait,
)
from longlens.ops.las.merge_op import partial_attention, partial_backward
from longlens.ops.las.parts import Parts
from longlens.ops.las.prepare import pad_heads, repeat_heads
from longlens.ops.las.routes import WIDEST_BAND
from longlens.ops.las.smoothing import pool_values, reach


def ring_attention(call: Call, pieces: Pieces) -> Tensor:
    """LaS attention of this rank's queries over the keys of all ranks: (B, Hq, n, Dv)."""
    _check(call)
    lag = call.window // 2 if call.smoothing == "masked" else 0
    before, after = reach(call.window, call.smoothing)
    halos, spans = extended(pieces, before + lag, after - lag), extended(pieces, lag, -lag)
    q, k, v = pad_heads(call.query, call.key, call.value)
    k, v = fetch_pair(k, v, pieces, halos)
    near_mask = fetch_mask(call.key_mask, pieces, halos)
    pooled = pool_values(v, call.window, call.smoothing, call.edge, near_mask)
    first, (start, stop) = halos[pieces.rank][0], spans[pieces.rank]
    own = slice(start - first, stop - first)

    alpha_max = call.alpha_max
    if call.alpha is not None and alpha_max is None:
        alpha_max, _ = read_alpha(call.alpha, k.shape[1])
    round_ = _Round(
        pieces=pieces,
        spans=spans,
        is_causal=call.is_causal,
        window=call.window,
        lag=lag,
        edge=call.edge,
        scale=call.scale,
        alpha_max=alpha_max,
        mask=fetch_mask(call.key_mask, pieces, [(0, pieces.total)] * len(spans)),
        near_mask=near_mask,
        near_first=first,
    )
    near = (k, v) if lag else (None, None)
    out: Tensor = _Ring.apply(  # type: ignore[no-untyped-call]
        round_, q, k[:, :, own], pooled[:, :, own], call.alpha, *near
    )
    return out[..., : call.value.shape[3]]


def _check(call: Call) -> None:
    device, dtype = call.query.device.type, call.query.dtype
    if device not in ("cpu", "cuda") or (device == "cuda" and dtype == torch.float64):
        raise ValueError(
            f"exchange='ring' needs a fused attention operator, and PyTorch has none for {dtype} "
            f"on {device}; use 'gather'"
        )
    if call.chunk is not None:
        raise ValueError(
            f"exchange='ring' does not take chunk, got chunk={call.chunk}: a rank needs no keys "
            "but those of its own blocks, which is what 'gather' fetches then"
        )
    if call.local is not None:
        raise ValueError(
            f"exchange='ring' does not take local, got local={call.local}: a rank needs no keys "
            "but those of its own window, which is what 'gather' fetches then"
        )
    if call.smoothing == "masked" and call.window // 2 > WIDEST_BAND:
        raise ValueError(
            f"exchange='ring' takes smoothing='masked' up to window={2 * WIDEST_BAND + 1}, got "
            f"{call.window}; use 'gather'"
        )


@dataclass(frozen=True)
class _Round:
    """What stays the same in every step. `spans` are the positions of each rank's keys."""

    pieces: Pieces
    spans: list[Span]
    is_causal: bool
    window: int
    lag: int  # how far the keys of a piece lie behind the queries of its rank
    edge: str
    scale: float
    alpha_max: float | None
    mask: Tensor | None  # (B, total)
    near_mask: Tensor | None
    near_first: int  # the position of the halo's first row

    def visits(self, packed: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """(step, owner, rows) of every piece that this rank sees, the next one already on its way.

        `packed` are this rank's own rows, (n, B, Hkv, D + Dv).
        """
        here, ranks = self.pieces.rank, len(self.spans)
        coming = packed
        for step in range(ranks):
            rows = wait(coming) if step else packed
            if step + 1 < ranks:
                taken, sent = self._splits(step + 1)
                coming = start_swap(packed[: sum(sent)], taken, sent, self.pieces.group)
            yield step, (here - step) % ranks, rows

    def send_home(self, step: int, grad: Tensor) -> Tensor:
        """Give the gradient of a visiting piece back; returns that of the own piece."""
        taken, sent = self._splits(step)
        return wait(start_swap(grad, sent, taken, self.pieces.group))

    def _splits(self, step: int) -> tuple[list[int], list[int]]:
        """How many rows come from, and go to, each rank in this step."""
        here, ranks = self.pieces.rank, len(self.spans)
        taken, sent = [0] * ranks, [0] * ranks
        owner, reader = (here - step) % ranks, (here + step) % ranks
        if self._sees(here, owner):
            taken[owner] = self.spans[owner][1] - self.spans[owner][0]
        if self._sees(reader, here):
            sent[reader] = self.spans[here][1] - self.spans[here][0]
        return taken, sent

    def _sees(self, reader: int, owner: int) -> bool:
        return owner <= reader or not self.is_causal

    def parts(
        self, owner: int, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None,
        near_k: Tensor | None, near_v: Tensor | None,
    ) -> Parts:  # fmt: skip
        """The parts of one piece of keys; with the own piece also the band of `masked`."""
        (start, stop), (first, last) = self.pieces.span, self.spans[owner]
        k, v = repeat_heads(q, k, v)
        mask = None if self.mask is None else self.mask[:, first:last]
        found = Parts(alpha, self.alpha_max, self.scale, mask)
        if k.shape[2] == 0:
            pass
        elif owner > self.pieces.rank:
            found.keys_after(q, k, v, row=0, gap=first - stop, keys=0)
        elif owner < self.pieces.rank or (alpha is None and not self.is_causal):
            found.keys_before(q, k, v, row=0, gap=start - last, keys=0)
        else:
            found.among_keys(q, k, v, offset=start - first, lag=self.lag, causal=self.is_causal)
        if owner == self.pieces.rank and near_k is not None and near_v is not None:
            near_k, near_v = repeat_heads(q, near_k, near_v)
            band = Parts(alpha, self.alpha_max, self.scale, self.near_mask)
            offset = start - self.near_first
            band.band(q, near_k, near_v, offset, self.window, self.edge)
            found.items += band.items
        found.rows = max(found.rows, q.shape[2])
        return found


class _Ring(torch.autograd.Function):
    """Saves what one piece needs; the other pieces visit a second time in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, ring: _Round, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None,
        near_k: Tensor | None, near_v: Tensor | None,
    ) -> Tensor:  # fmt: skip
        n = q.shape[2]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = torch.zeros_like(q, dtype=wide)
        lse = q.new_full(q.shape[:3], float("-inf"), dtype=wide)
        packed = torch.cat([k, v], dim=-1).movedim(2, 0).contiguous()
        for _, owner, rows in ring.visits(packed):
            parts = ring.parts(owner, q, *_unpack(rows), alpha, near_k, near_v)
            if not parts.items:
                continue
            part_out, part_lse = partial_attention(parts.items, parts.rows)
            part_out, part_lse = part_out[:, :, :n], part_lse[:, :, :n]
            merged = torch.logaddexp(lse, part_lse)
            safe = merged.nan_to_num(neginf=0.0)  # rows that have seen no key yet
            out *= torch.exp(lse - safe)[..., None]
            out += part_out * torch.exp(part_lse - safe)[..., None]
            lse = merged
        out = out.to(q.dtype)
        ctx.ring = ring
        ctx.save_for_backward(q, packed, alpha, near_k, near_v, out, lse)
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ring: _Round = ctx.ring
        q, packed, alpha, near_k, near_v, out, lse = ctx.saved_tensors
        d_q, d_packed = (torch.zeros_like(t, dtype=lse.dtype) for t in (q, packed))
        d_alpha = None if alpha is None else torch.zeros_like(alpha)
        d_near: tuple[Tensor | None, ...] = (None, None)
        for step, owner, rows in ring.visits(packed):
            inputs = (q, *_unpack(rows), alpha, near_k, near_v)
            found = _step_gradients(ring, owner, inputs, grads[0], out, lse)
            visitor = torch.zeros_like(rows)
            for total, share in zip((d_q, *_unpack(visitor), d_alpha), found[:4], strict=True):
                if total is not None and share is not None:
                    total += share
            if step == 0:
                d_near = found[4:]
            del found  # before more rows arrive
            arrived = ring.send_home(step, visitor) if step else visitor
            d_packed[: len(arrived)] += arrived  # nothing arrives where nobody saw the piece
        return None, d_q.to(q.dtype), *_unpack(d_packed.to(q.dtype)), d_alpha, *d_near


def _unpack(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(n, B, H, 2·D) -> key and value (B, H, n, D)."""
    k, v = rows.movedim(0, 2).chunk(2, dim=-1)
    return k, v


def _step_gradients(
    ring: _Round,
    owner: int,
    inputs: tuple[Tensor | None, ...],
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor | None, ...]:
    """One piece's share of the gradients of q, k, v, alpha and the halo's k and v; None for zero.

    Folding and the repetition of heads are differentiated by autograd, the attention between them
    by its own operators, which take the merged output and log-sum-exp.
    """
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
        if (alpha := inputs[3]) is not None:
            leaves[3] = alpha.detach().requires_grad_(alpha.requires_grad)
        parts = ring.parts(owner, *leaves)  # type: ignore[arg-type]
    if not parts.items:
        return (None,) * len(inputs)
    extra = parts.rows - grad.shape[2]
    if extra:  # rows that pad the last block
        grad, out = (F.pad(t, (0, 0, 0, extra)) for t in (grad, out))
        lse = F.pad(lse, (0, extra), value=float("-inf"))
    grads = partial_backward(parts.items, grad, out, lse)
    tensors = [t for part, own in parts.items for t in own[: part.tensors - part.masked]]
    pairs = [(t, g) for t, g in zip(tensors, grads, strict=True) if t.requires_grad]
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    shares = iter(
        torch.autograd.grad([t for t, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    )
    return tuple(next(shares) if t is not None and t.requires_grad else None for t in leaves)
