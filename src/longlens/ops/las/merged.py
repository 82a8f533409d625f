"""Route `merged`: attention over parts that fold in range, merged by their log-sum-exp.

It serves everything with static positions that is not one call: a prefix and a square (a KV cache),
decay out of range or two-sided, `masked` smoothing, a key mask under a causal mask (README.md,
sections 3 to 5). `parts.py` cuts, `flash.py` computes, `merge_op.py` differentiates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call
from longlens.ops.las.flash import BAND, FLASH, TILE
from longlens.ops.las.merge_op import merged_attention
from longlens.ops.las.parts import Parts, sink_part
from longlens.ops.las.plan import Plan
from longlens.ops.las.prepare import narrow, pooled_inputs, repeat_heads, zero_rows

STEPS = {FLASH: "flash_forward", TILE: "tile_forward", BAND: "band_forward"}


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention over parts: (B, Hq, L, Dv)."""
    outs = []
    for rows, parts in _stretches(call, plan):
        if parts is None:
            first = call.query[:, :, :rows]
            others = (call.key, call.value, call.alpha, call.sink)
            outs.append(zero_rows(first, call.value.shape[3], *others))
        else:
            out = merged_attention(parts.items, parts.rows)[:, :, :rows]
            outs.append(narrow(out, call.value.shape[3]))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def steps(call: Call, plan: Plan) -> list[str]:
    """The functions of `run`, from cutting tensors that hold nothing."""
    empty = replace(call)
    for name in ("query", "key", "value", "alpha", "key_mask", "sink"):
        if (tensor := getattr(call, name)) is not None:
            setattr(empty, name, tensor.detach().to("meta"))
    found = ["pool_values"] * call.pools
    for _, parts in _stretches(empty, plan):
        kinds = [] if parts is None else [part for part, _ in parts.items]
        squares = sum(part.causal and part.kind == FLASH for part in kinds)
        found += ["fold_square"] * (squares if call.alpha is not None else 0)
        found += [STEPS[part.kind] for part in kinds]
    return found


def _stretches(call: Call, plan: Plan) -> Iterator[tuple[int, Parts | None]]:
    """Rows before the first key, among the keys and beyond them differ: their number and parts."""
    for rows, parts in _parted(call, plan):
        if parts is not None and call.sink is not None:
            parts.items.append(sink_part(call.sink, parts.items, parts.rows))
        yield rows, parts


def _parted(call: Call, plan: Plan) -> Iterator[tuple[int, Parts | None]]:
    assert not isinstance(call.query_offset, Tensor)
    q, k, v, mask = pooled_inputs(call)
    k, v = repeat_heads(q, k, v)
    offset, L, S = call.query_offset, q.shape[2], k.shape[2]
    start = min(max(-offset, 0), L)
    stop = min(max(S - offset, start), L)

    def parts() -> Parts:
        return Parts(call.alpha, plan.assumed.alpha_max, call.scale, mask)

    if start and call.is_causal:
        yield start, None
    elif start:
        early = parts()
        early.keys_after(q[:, :, :start], k, v, row=0, gap=-offset - start, keys=0)
        yield start, early
    if stop > start:
        among, rows = parts(), q[:, :, start:stop]
        lag = call.window // 2 if call.smoothing == "masked" else 0
        among.among_keys(rows, k, v, offset=offset + start, lag=lag, causal=call.is_causal)
        if lag:
            raw = F.pad(call.value[:, :, :S], (0, v.shape[-1] - call.value.shape[-1]))
            (raw,) = repeat_heads(q, raw)
            among.band(rows, k, raw, offset + start, call.window, call.edge)
        yield stop - start, among
    if stop < L:
        late = parts()
        late.keys_before(q[:, :, stop:], k, v, row=0, gap=offset + stop - S, keys=0)
        yield L - stop, late
