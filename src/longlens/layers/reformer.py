"""Reformer: Kitaev, Kaiser & Levskaya 2020 (arXiv 2001.04451).

"Reformer: The Efficient Transformer". Queries and keys are one projection. Keys have unit length,
so that a score is q_i·q_j/|q_j|, with no further 1/√d. Random rotations, of each head's own, hash
them into buckets; inside each bucket, in order of position, chunk c attends to chunks c and c-1. A
position attends to itself only where it sees nothing else. Several rounds of hashing are merged by
their log-sum-exp, a pair seen in n rounds counting 1/n in each.

Left open by the paper, chosen here: chunks are aligned to the start of each bucket, where the paper
cuts the sorted sequence as a whole and so lets later tokens move the boundaries of earlier ones;
aligned, the causal layer is strictly causal and padding changes nothing. The 1/n is the paper's;
the authors' later code leaves it out, and lets a chunk attend to other buckets in it. The number of
buckets is an option, not a function of the length. Rotations are drawn once per layer and saved
with it, where the authors' code draws them at every call; `redraw()` draws them anew.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longlens.layers.base import Aspects, check_positive
from longlens.layers.heads import MultiHead
from longlens.ops.numerics import full_precision, no_autocast

SELF_SCORE = -1e5  # below any real score, above a forbidden one


class Reformer(MultiHead):
    """Attention within hash buckets, linear in L for a fixed number of buckets.

    Args:
        dim: D.
        num_heads: H.
        num_buckets: buckets per round, 1 or even.
        chunk: positions per chunk; a query sees at most 2·chunk keys a round.
        rounds: independent hashes.
        bidirectional: attend to both sides.

    >>> Reformer(8, num_heads=2, num_buckets=4, chunk=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    cost = "L"
    aspects = Aspects(stable=True)
    rotations: Tensor

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 8,
        num_buckets: int = 16,
        chunk: int = 32,
        rounds: int = 2,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, bidirectional=bidirectional, share_qk=True)
        check_positive(num_buckets=num_buckets, chunk=chunk, rounds=rounds)
        if num_buckets > 1 and num_buckets % 2:
            raise ValueError(f"num_buckets must be 1 or even, got {num_buckets}")
        self.num_buckets, self.chunk = num_buckets, chunk
        shape = (num_heads, rounds, dim // num_heads, num_buckets // 2)
        self.register_buffer("rotations", torch.randn(shape))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw the random rotations anew."""
        self.rotations.normal_()

    def hash(self, q: Tensor, mask: Tensor | None) -> Tensor:
        """Bucket of every position in every round: (B, H, L, d) -> (B, H, R, L), int64.

        Padding has a bucket of its own, after all others.
        """
        rotated = torch.einsum("bhld,hrdn->bhrln", q, self.rotations.to(q.dtype))
        if self.num_buckets == 1:
            buckets = torch.zeros(rotated.shape[:-1], dtype=torch.int64, device=q.device)
        else:
            buckets = torch.cat([rotated, -rotated], dim=-1).argmax(-1)
        if mask is not None:
            buckets = buckets.masked_fill(~mask[:, None, None], self.num_buckets)
        return buckets

    def slots(self, buckets: Tensor) -> tuple[Tensor, int]:
        """Where every position goes when each bucket starts a chunk of its own.

        Returns:
            slot (B, H, R, L) and the number of slots, a multiple of ``chunk``.
        """
        length = buckets.shape[-1]
        position = torch.arange(length, device=buckets.device)
        order = torch.argsort(buckets * length + position, dim=-1)
        ordered = buckets.gather(-1, order)
        names = torch.arange(self.num_buckets + 1, device=buckets.device)
        counts = (buckets[..., None] == names).sum(-2)
        room = (counts + self.chunk - 1) // self.chunk * self.chunk
        shift = (room.cumsum(-1) - room) - (counts.cumsum(-1) - counts)
        placed = position + shift.gather(-1, ordered)
        slot = torch.empty_like(placed).scatter(-1, order, placed)
        return slot, (-(-length // self.chunk) + self.num_buckets + 1) * self.chunk

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Q (= k before normalisation), v (B, H, L, d), mask (B, L) or None -> (B, H, L, d)."""
        with no_autocast(v):
            return self._attend(full_precision(q), full_precision(v), mask).to(v.dtype)

    def _attend(self, q: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        length, width = q.shape[2:]
        rounds, chunk = self.rotations.shape[1], self.chunk
        buckets = self.hash(q.detach(), mask)
        slot, total = self.slots(buckets)
        where = torch.arange(length, device=q.device).expand_as(slot)
        table = slot.new_full((*slot.shape[:-1], total), length).scatter(-1, slot, where)

        def pick(t: Tensor, index: Tensor) -> Tensor:
            """Rows of t (B, H, R or 1, L, ·) at index (B, H, R, S), zeros at index L."""
            t = F.pad(t, (0, 0, 0, 1)).expand(-1, -1, rounds, -1, -1)
            return t.gather(3, index[..., None].expand(*index.shape, t.shape[-1]))

        def chunks(t: Tensor) -> Tensor:  # (B, H, R, S, ·) -> (B, H, R, n, c, ·)
            return t.unflatten(3, (-1, chunk))  # type: ignore[no-any-return]

        def with_previous(t: Tensor, fill: int) -> Tensor:  # … -> (B, H, R, n, 2c, ·)
            before = F.pad(t[:, :, :, :-1], (0, 0, 0, 0, 1, 0), value=fill)
            return torch.cat([before, t], dim=4)

        query = chunks(pick(q[:, :, None], table))
        key = with_previous(chunks(pick(F.normalize(q, dim=-1)[:, :, None], table)), 0)
        value = with_previous(chunks(pick(v[:, :, None], table)), 0)
        # What decides who sees whom: bucket and chunk in every round, moved along like the rows.
        home = torch.cat([buckets, slot // chunk], dim=2).transpose(2, 3)[:, :, None]
        home = F.pad(home, (0, 0, 0, 1), value=-1).expand(-1, -1, rounds, -1, -1)
        home = home.gather(3, table[..., None].expand(*table.shape, 2 * rounds))
        query_home, key_home = chunks(home), with_previous(chunks(home), -1)
        query_at = chunks(table[..., None])
        key_at = with_previous(chunks(table[..., None]), length)[..., 0][..., None, :]

        met = torch.zeros((), device=q.device)
        for r in range(rounds):
            mine, theirs = query_home[..., r, None], key_home[..., None, :, r]
            ahead = query_home[..., rounds + r, None] - key_home[..., None, :, rounds + r]
            met = met + ((mine == theirs) & (ahead >= 0) & (ahead <= 1)).to(q.dtype)
        this_round = torch.arange(rounds, device=q.device).view(1, 1, -1, 1, 1, 1)
        mine = query_home[..., :rounds].gather(-1, this_round.expand(*query_home.shape[:-1], 1))
        theirs = key_home[..., :rounds].gather(-1, this_round.expand(*key_home.shape[:-1], 1))
        allowed = (mine == theirs[..., 0][..., None, :]) & (key_at < length)
        if self.causal:
            allowed = allowed & (key_at <= query_at)

        scores = query @ key.mT - torch.log(met.clamp_min(1))
        scores = scores.masked_fill(key_at == query_at, SELF_SCORE)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        mass = torch.logsumexp(scores, dim=-1, keepdim=True)
        out = torch.exp(scores - mass) @ value
        out, mass = (t.flatten(3, 4) for t in (out, mass))
        back = slot[..., None]
        out = out.gather(3, back.expand(*slot.shape, width))
        weight = torch.softmax(mass.gather(3, back), dim=2)
        return (weight * out).sum(2)
