"""Route `rows`: the reference on blocks of rows, recomputed in backward.

For positions that only the device knows, very wide `masked` windows, derivatives that no fused
kernel has: memory is linear in the number of keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longlens.ops.las.call import Call
from longlens.ops.las.plan import Plan
from longlens.ops.las.reference import reference
from longlens.ops.las.smoothing import reach
from longlens.ops.las.transforms import exporting, functional
from longlens.ops.numerics import full_precision

ROW_BLOCK = 128  # rows that are held at a time


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention in float32 at least: half precision would round scores."""
    dtype = call.query.dtype
    q, k, v = (full_precision(t) for t in (call.query, call.key, call.value))

    def block(rows: Tensor, first: int, k: Tensor, v: Tensor, alpha: Tensor | None) -> Tensor:
        seen, offset = _window(call, first, rows.shape[2])
        mask = None if call.key_mask is None else call.key_mask[:, seen]
        own = replace(
            call, query=rows, key=k[:, :, seen], value=v[:, :, seen], alpha=alpha, key_mask=mask,
            query_offset=offset, packed=None,
        )  # fmt: skip
        return reference(own).to(dtype)

    if _whole(call):
        return block(q, 0, k, v, call.alpha)
    outs = [
        checkpoint(
            block,
            rows,
            n * ROW_BLOCK,
            k,
            v,
            call.alpha,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for n, rows in enumerate(q.split(ROW_BLOCK, dim=2))
    ]
    return torch.cat(outs, dim=2)


def _window(call: Call, first: int, count: int) -> tuple[slice, Any]:
    """The keys that these rows see or that their weights reach, and the first row's place there."""
    offset = call.query_offset + first
    if call.local is None or call.chunk is not None or isinstance(offset, Tensor) or exporting():
        return slice(None), offset
    before, after = reach(call.window, call.smoothing)
    start = max(0, offset - call.local[0] - before)
    return slice(start, max(start, offset + count + call.local[1] + after)), offset - start


def _whole(call: Call) -> bool:
    """Whether all rows are one block; transforms and exports know no checkpoints."""
    return functional() or exporting() or call.query.shape[2] <= ROW_BLOCK


def steps(call: Call, plan: Plan) -> list[str]:
    """The functions of `run`."""
    return ["reference"] * (1 if _whole(call) else -(-call.query.shape[2] // ROW_BLOCK))
