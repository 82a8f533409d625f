"""Cut LaS attention into parts that fold in range, for `merged.merged_attention`.

Two observations carry this file. A block of keys that lies wholly before (or after) a block of
queries folds about the border between them with factors of at most 1, whatever α is: what
underflows has score 0, which is the right limit. And a causal square is two half-size squares plus
one such block, so halving leads down to squares small enough to fold about their own middle, or
small enough to hold their scores explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.decay import FOLD_RANGE, decay_factor, fold, fold_square
from longlens.ops.las.flash import BAND, FLASH, TILE, Part, value_of
from longlens.ops.las.smoothing import window_count, window_sum

TILE_SIZE = 64  # explicit diagonal tiles, where no fold is in range


class Parts:
    """Collects the parts of one call. All tensors have the query's number of heads."""

    def __init__(
        self,
        alpha: Tensor | None,
        alpha_max: float | None,
        scale: float,
        key_mask: Tensor | None,
    ) -> None:
        self.alpha = alpha
        self.alpha_max = alpha_max
        self.scale = scale
        self.key_mask = key_mask
        self.items: list[tuple[Part, list[Tensor]]] = []
        self.rows = 0

    def _add(
        self,
        kind: int,
        tensors: list[Tensor],
        *,
        base: int,
        period: int = 0,
        first: int = 0,
        causal: bool = False,
        mask: Tensor | None = None,
        flipped: bool = False,
        scale: float | None = None,
    ) -> None:
        """Append a part whose tensors are (B, H, G, n, ·); its mask is (B, G, keys)."""
        groups, n = tensors[0].shape[2:4]
        period = period or n
        part = Part(
            kind, base, period, first, causal, mask is not None, flipped,
            self.scale if scale is None else scale,
        )  # fmt: skip
        self.items.append((part, tensors if mask is None else [*tensors, mask]))
        self.rows = max(self.rows, base + groups * period)

    def _block(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, q_distance: Tensor,
        k_distance: Tensor, *, base: int, period: int = 0, first: int = 0,
    ) -> None:  # fmt: skip
        """Every query sees every key; the distance splits into two parts, both at least 0."""
        if self.alpha is not None:
            q, k = fold(q, self.alpha, q_distance), fold(k, self.alpha, k_distance)
        self._add(FLASH, [q, k, v], mask=mask, base=base, period=period, first=first)

    def keys_before(
        self, q: Tensor, k: Tensor, v: Tensor, *, row: int, gap: int, keys: int
    ) -> None:
        """All keys of k come before all queries of q, `gap` positions lying between.

        `row` is the result's row of the first query, `keys` the position of the first key.
        """
        i, j = (torch.arange(t.shape[2], device=q.device) for t in (q, k))
        self._block(
            q[:, :, None], k[:, :, None], v[:, :, None], self._mask(keys, k.shape[2]),
            i + (gap + 1), j.flip(0), base=row,
        )  # fmt: skip

    def keys_after(self, q: Tensor, k: Tensor, v: Tensor, *, row: int, gap: int, keys: int) -> None:
        """All keys of k come after all queries of q."""
        i, j = (torch.arange(t.shape[2], device=q.device) for t in (q, k))
        self._block(
            q[:, :, None], k[:, :, None], v[:, :, None], self._mask(keys, k.shape[2]),
            i.flip(0), j + (gap + 1), base=row,
        )  # fmt: skip

    def _mask(self, first: int, count: int) -> Tensor | None:
        """The key mask of `count` keys as one group: (B, 1, count)."""
        if self.key_mask is None:
            return None
        return self.key_mask[:, None, first : first + count]

    def among_keys(
        self, q: Tensor, k: Tensor, v: Tensor, *, offset: int, lag: int, causal: bool
    ) -> None:
        """Queries at offset … offset+L-1, inside 0 … S-1; causal ones see j <= position - lag."""
        L, S = q.shape[2], k.shape[2]
        if not causal and self.alpha is None:  # nothing tells keys apart
            whole = [t[:, :, None] for t in (q, k, v)]
            self._add(FLASH, whole, mask=self._mask(0, S), base=0)
            return
        skipped = max(0, lag - offset)  # these rows see no key at all
        if skipped < L:
            n = L - skipped
            split = offset - lag + skipped  # the square's first key
            q, square = q[:, :, skipped:], slice(split, split + n)
            if split:
                self.keys_before(q, k[:, :, :split], v[:, :, :split], row=skipped, gap=lag, keys=0)
            self._square(
                q, k[:, :, square], v[:, :, square], row=skipped, key=split, lag=lag, causal=causal
            )
            if not causal and split + n < S:
                rest = slice(split + n, None)
                self.keys_after(q, k[:, :, rest], v[:, :, rest], row=skipped, gap=0, keys=split + n)

    def _square(
        self, q: Tensor, k: Tensor, v: Tensor, *, row: int, key: int, lag: int, causal: bool
    ) -> None:
        """As many queries as keys; row i lies `lag` ahead of key i, and sees j <= i if causal."""
        n = q.shape[2]
        if not causal and self._folds(n, q.dtype):
            self._triangles(q, k, v, row=row, key=key)
            return
        size, explicit = self._diagonal_size(n, q.dtype, causal)
        levels = max(0, math.ceil(math.log2(n / size)))
        size = -(-n // 2**levels)
        extra = size * 2**levels - n
        mask = None if self.key_mask is None else self.key_mask[:, key : key + n]
        if extra:
            if mask is None and not causal:
                mask = torch.ones(q.shape[0], n, dtype=torch.bool, device=q.device)
            q, k, v = (F.pad(t, (0, 0, 0, extra)) for t in (q, k, v))
            mask = None if mask is None else F.pad(mask, (0, extra))

        def blocks(t: Tensor, size: int) -> Tensor:
            view: Tensor = t.unflatten(2, (-1, size))
            return view

        def mask_blocks(size: int) -> Tensor | None:
            return None if mask is None else mask.unflatten(1, (-1, size))

        self._diagonal(
            blocks(q, size), blocks(k, size), blocks(v, size), mask_blocks(size),
            row=row, lag=lag, causal=causal, explicit=explicit,
        )  # fmt: skip
        for level in range(levels):  # the blocks beside the diagonal, at every scale
            half = size * 2**level
            qs, ks, vs = (blocks(t, 2 * half) for t in (q, k, v))
            ms = mask_blocks(2 * half)
            early, late = slice(0, half), slice(half, None)
            up = torch.arange(half, device=q.device)
            down = up.flip(0)
            self._block(
                qs[:, :, :, late], ks[:, :, :, early], vs[:, :, :, early],
                None if ms is None else ms[:, :, early],
                up + (lag + 1), down, base=row, period=2 * half, first=half,
            )  # fmt: skip
            if not causal:
                self._block(
                    qs[:, :, :, early], ks[:, :, :, late], vs[:, :, :, late],
                    None if ms is None else ms[:, :, late],
                    down, up + 1, base=row, period=2 * half,
                )  # fmt: skip

    def _folds(self, n: int, dtype: torch.dtype) -> bool:
        """Whether a causal square of n positions folds about its middle."""
        if self.alpha is None or self.alpha_max is None:
            return False
        return self.alpha_max * n <= FOLD_RANGE[dtype]

    def _triangles(self, q: Tensor, k: Tensor, v: Tensor, *, row: int, key: int) -> None:
        """A two-sided square in range: up to the diagonal, and beyond it seen backwards.

        Read from its end, the strict upper triangle is causal again: row i' of the flipped queries
        0 … n-2 sees the flipped keys n-1 … 1 up to j' = i', at distances i' + 1 - j'.
        """
        n = q.shape[2]
        mask = self._mask(key, n)
        fold: dict[str, Any] = dict(row=row, causal=True, explicit=False)
        self._diagonal(q[:, :, None], k[:, :, None], v[:, :, None], mask, lag=0, **fold)
        if n > 1:
            qf, kf, vf = (t.flip(2)[:, :, None] for t in (q[:, :, :-1], k[:, :, 1:], v[:, :, 1:]))
            mf = None if mask is None else mask[:, :, 1:].flip(2)
            self._diagonal(qf, kf, vf, mf, lag=1, flipped=True, **fold)

    def _diagonal_size(self, n: int, dtype: torch.dtype, causal: bool) -> tuple[int, bool]:
        """The largest diagonal block, and whether its scores must be explicit."""
        if self.alpha is None:
            return n, False
        if causal and self.alpha_max is not None:
            largest = math.floor(FOLD_RANGE[dtype] / self.alpha_max) if self.alpha_max else n
            if largest >= min(n, TILE_SIZE):
                return min(n, largest), False
        return min(n, TILE_SIZE), True

    def _diagonal(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, row: int, lag: int,
        causal: bool, explicit: bool, flipped: bool = False,
    ) -> None:  # fmt: skip
        if self.alpha is None:
            self._add(FLASH, [q, k, v], base=row, causal=True, mask=mask)
        elif not explicit:
            assert self.alpha_max is not None
            q, k, scale = fold_square(q, k, self.alpha, self.alpha_max, self.scale, lag)
            self._add(
                FLASH, [q, k, v], base=row, causal=True, mask=mask, scale=scale, flipped=flipped
            )
        else:
            i = torch.arange(q.shape[3], device=q.device)
            distance = (i[:, None] + lag - i).abs().flatten()
            decay = decay_factor(self.alpha, distance, q.dtype).view(-1, i.numel(), i.numel())
            self._add(TILE, [q, k, v, decay], base=row, causal=causal, mask=mask)

    def band(
        self, q: Tensor, k: Tensor, raw: Tensor, offset: int, window: int, edge: str,
        left: int | None = None,
    ) -> None:  # fmt: skip
        """The last p keys of every query, whose windows `masked` smoothing cuts at the query.

        With `left`, only those at distances up to it.

        Key position - r has the window position-r-p … position: a trailing average of the raw
        values, of length p + r + 1, read at the query's position.
        """
        L, p = q.shape[2], window // 2
        here = slice(offset, offset + L)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        mask = self.key_mask
        if mask is not None:
            raw = raw.masked_fill(~mask[:, None, :, None], 0)
        raw = raw.to(wide)
        for r in range(min(p, offset + L, p if left is None else left + 1)):
            total = window_sum(raw, p + r, 0)
            count = window_count(raw, p + r, 0, mask) if edge == "renormalize" else float(window)
            value = (total / count)[:, :, here].to(q.dtype)
            key = F.pad(k, (0, 0, r, 0))[:, :, here]
            score = (q.to(wide) * key).sum(-1) * self.scale
            if self.alpha is not None:
                score = score * torch.exp(-self.alpha.to(wide) * r)[:, None]
            position = torch.arange(offset, offset + L, device=q.device)
            present = position >= r
            if mask is not None:
                present = present & F.pad(mask, (r, 0))[:, None, here]
            score = score.masked_fill(~present, float("-inf"))
            self._add(BAND, [score[:, :, None], value[:, :, None]], base=0)


def sink_part(sink: Tensor, items: Sequence[Any], rows: int) -> tuple[Part, list[Tensor]]:
    """Beside other parts: a key that every row sees, with a score (H,) and nothing to give."""
    value = value_of(*items[0])  # (B, H, G, n, width)
    B, H, width = value.shape[0], value.shape[1], value.shape[-1]
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    score = sink.to(wide)[None, :, None, None].expand(B, -1, 1, rows)
    nothing = value.new_zeros(()).expand(B, H, 1, rows, width)
    return Part(BAND, 0, rows, 0, False, False, False, 1.0), [score, nothing]
