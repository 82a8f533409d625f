"""Route `rows`: the reference on blocks of rows, recomputed in backward.

For positions that only the device knows, very wide `masked` windows, derivatives that no fused
kernel has: memory is linear in the number of keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longlens.ops.las.call import Call
from longlens.ops.las.plan import Plan
from longlens.ops.las.reference import reference
from longlens.ops.las.transforms import exporting, functional
from longlens.ops.numerics import full_precision

ROW_BLOCK = 128  # rows that are held at a time


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention in float32 at least: half precision would round scores."""
    dtype, offset = call.query.dtype, call.query_offset
    q, k, v = (full_precision(t) for t in (call.query, call.key, call.value))

    def block(rows: Tensor, first: int, k: Tensor, v: Tensor, alpha: Tensor | None) -> Tensor:
        own = replace(
            call, query=rows, key=k, value=v, alpha=alpha, query_offset=offset + first, packed=None
        )
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


def _whole(call: Call) -> bool:
    """Whether all rows are one block; transforms and exports know no checkpoints."""
    return functional() or exporting() or call.query.shape[2] <= ROW_BLOCK


def steps(call: Call, plan: Plan) -> list[str]:
    """The functions of `run`."""
    return ["reference"] * (1 if _whole(call) else -(-call.query.shape[2] // ROW_BLOCK))
