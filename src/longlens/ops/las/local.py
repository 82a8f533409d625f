"""Routes `local` and `sliding`: a sliding window, by fused calls.

Smoothing averages the values before the softmax is cut to the window, so a window changes nothing
but which keys are seen. Cut into blocks of n = left + 1, a query sees of its own block the keys up
to itself, and of the block before it those that its own place has not passed yet: a strict triangle
that is causal when read backwards. So two fused calls of n × n a block compute exactly the window,
and the keys after the query are the same seen from the other end (README.md, section 6). CUDA's
flash operator knows windows itself: there one call on folded inputs does all (`sliding`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call
from longlens.ops.las.decay import FOLD_RANGE, fold, fold_square
from longlens.ops.las.flash import FLASH
from longlens.ops.las.folded import with_dense_gradient
from longlens.ops.las.merge_op import merged_attention
from longlens.ops.las.operands import operator_ready
from longlens.ops.las.parts import Parts, sink_part
from longlens.ops.las.plan import Assumed, Plan, no_operator
from longlens.ops.las.prepare import (
    folded_inputs,
    narrow,
    pooled_inputs,
    prologue_steps,
    repeat_heads,
)
from longlens.ops.las.transforms import exporting


def refusal(call: Call, assumed: Assumed) -> str | None:
    """Why `run` does not serve a call; None: it does."""
    if call.local is None:
        return "no sliding window"
    if call.formula or exporting() or isinstance(call.query_offset, Tensor):
        return "static positions and first derivatives only, and no export"
    if call.banded:
        return "no masked smoothing inside a sliding window"
    widest, queries = max(call.local) + 1, call.query.shape[2]
    if call.query_offset < 0 or call.query_offset + queries > call.key.shape[2]:
        return "queries must lie among the keys"
    if 2 * queries < widest:
        return "fewer queries than half a window"
    if call.alpha is not None:
        limit = FOLD_RANGE[call.query.dtype]
        if assumed.alpha_max is None or assumed.alpha_max * widest > limit:
            return "decay out of range inside a window"
    return no_operator(call)


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention inside a sliding window, of queries that lie among the keys: (B, Hq, L, Dv)."""
    query, key, value, mask = pooled_inputs(call)
    key, value = repeat_heads(query, key, value)
    parts = LocalParts(call.alpha, plan.assumed.alpha_max, call.scale, mask)
    left, right = call.local
    parts.up_to_query(query, key, value, call.query_offset, left + 1)
    if right:
        parts.after_query(query, key, value, call.query_offset, right)
    if call.sink is not None:
        parts.items.append(sink_part(call.sink, parts.items, parts.rows))
    out = merged_attention(parts.items, parts.rows)[:, :, : query.shape[2]]
    return narrow(out, call.value.shape[3])


def steps(call: Call, plan: Plan) -> list[str]:
    """The functions of `run`."""
    (left, right), L = call.local, call.query.shape[2]
    earlier = left > 0 and (call.query_offset > 0 or left + 1 < L)
    folds = 1 + (right > 1)
    calls = 1 + earlier + (right > 0) + (right > 1)
    return [
        *["pool_values"] * call.pools, *["fold_square"] * (folds if call.alpha is not None else 0),
        *["flash_forward"] * calls, *["band_forward"] * (call.sink is not None),
    ]  # fmt: skip


def run_sliding(call: Call, plan: Plan) -> Tensor:
    """The same by CUDA's flash operator, for what `folded` could serve without a window."""
    *tensors, scale = folded_inputs(call, plan)
    q, k, v = (operator_ready(t).transpose(1, 2) for t in tensors)
    left, right = call.local
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False, scale=scale,
        window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    if out.requires_grad:
        out = with_dense_gradient(out)
    return narrow(out.transpose(1, 2), call.value.shape[3])


def sliding_steps(call: Call, plan: Plan) -> list[str]:
    """The kernels of `run_sliding`."""
    return [*prologue_steps(call, fold=True), "_flash_attention_forward"]


class LocalParts(Parts):
    """The parts of a sliding window; n is the number of positions in a block."""

    def up_to_query(self, q: Tensor, k: Tensor, v: Tensor, offset: int, n: int) -> None:
        """Keys at distances 0 … n-1 before each query."""
        q = _blocks(q, n)
        groups = q.shape[2]
        self._own_keys(q, *self._keys(k, v, offset, groups, n, after=False), lag=0, period=n)
        first = 0 if offset else 1  # the first block may have no keys before it
        if n == 1 or first == groups:
            return
        k, v, mask = self._keys(k, v, offset + (first - 1) * n, groups - first, n, after=False)
        q, k, v = q[:, :, first:, : n - 1], k[:, :, :, 1:], v[:, :, :, 1:]
        mask = None if mask is None else mask[:, :, 1:].flip(2)
        if self.alpha is not None:  # distances from the query to the border, and on to the key
            place = torch.arange(1, n, device=q.device)
            q, k = fold(q, self.alpha, place), fold(k, self.alpha, n - 1 - place)
        self._add(
            FLASH, [t.flip(3) for t in (q, k, v)], base=first * n, period=n, causal=True,
            mask=mask, flipped=True,
        )  # fmt: skip

    def after_query(self, q: Tensor, k: Tensor, v: Tensor, offset: int, n: int) -> None:
        """Keys at distances 1 … n after each query."""
        q = _blocks(q, n)
        groups = q.shape[2]
        if n > 1:
            own_k, own_v, mask = self._keys(k, v, offset, groups, n, after=True)
            rows = (q[:, :, :, :-1], own_k[:, :, :, 1:], own_v[:, :, :, 1:])
            mask = None if mask is None else mask[:, :, 1:].flip(2)
            q_flipped, k_flipped, v_flipped = (t.flip(3) for t in rows)
            self._own_keys(q_flipped, k_flipped, v_flipped, mask, lag=1, period=n)
        k, v, mask = self._keys(k, v, offset + n, groups, n, after=True)
        if self.alpha is not None:
            place = torch.arange(n, device=q.device)
            q, k = fold(q, self.alpha, n - place), fold(k, self.alpha, place)
        self._add(FLASH, [q, k, v], base=0, causal=True, mask=mask)

    def _own_keys(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, lag: int, period: int
    ) -> None:
        """Each block's own keys: row i sees j <= i at distances i + lag - j; backwards if lag."""
        scale = None
        if self.alpha is not None:
            assert self.alpha_max is not None
            q, k, scale = fold_square(q, k, self.alpha, self.alpha_max, self.scale, lag)
        self._add(
            FLASH, [q, k, v], base=0, period=period, causal=True, mask=mask, scale=scale,
            flipped=lag > 0,
        )  # fmt: skip

    def _keys(
        self, k: Tensor, v: Tensor, start: int, groups: int, n: int, *, after: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Blocks of keys, values and mask from position `start` on, which may lie before the first.

        Beyond the last key are zeros; with `after` queries may look there, so a mask hides them.
        """
        S = k.shape[2]
        first, last = min(max(start, 0), S), min(start + groups * n, S)
        before = max(0, -start)
        pad = (before, groups * n - before - (last - first))
        mask = self.key_mask
        if mask is None and (pad[0] or (after and pad[1])):
            mask = torch.ones(k.shape[0], S, dtype=torch.bool, device=k.device)
        if mask is not None:
            mask = F.pad(mask[:, first:last], pad).unflatten(1, (groups, n))
        k, v = (F.pad(t[:, :, first:last], (0, 0, *pad)).unflatten(2, (groups, n)) for t in (k, v))
        return k, v, mask


def _blocks(q: Tensor, n: int) -> Tensor:
    """(B, H, L, D) -> (B, H, G, n, D), with rows of zeros at the end."""
    blocks: Tensor = F.pad(q, (0, 0, 0, -q.shape[2] % n)).unflatten(2, (-1, n))
    return blocks
