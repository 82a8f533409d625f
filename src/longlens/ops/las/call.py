"""One call of LaS attention: its checked arguments, and how a chunked call becomes plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.checks import check_reading, check_side_inputs, check_tensors
from longlens.ops.las.transforms import needs_formula


@dataclass(frozen=True)
class Call:
    """The checked arguments of one call, every default filled in."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor | None
    window: int
    smoothing: str
    edge: str
    is_causal: bool
    key_mask: Tensor | None
    query_offset: int | Tensor
    chunk: int | None
    scale: float
    alpha_max: float | None
    formula: bool  # a derivative is asked for that no fused kernel has

    def reading(self) -> dict[str, Any]:
        """What the reference and the fast paths take besides query, key and value."""
        skipped = ("query", "key", "value", "alpha_max", "formula")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}


def make_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: Tensor | None = None,
    window: int = 1,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    query_offset: int | Tensor | None = None,
    chunk: int | None = None,
    alpha_max: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Check the arguments of `las_attention` and fill in its defaults."""
    device = query.device.type
    if device != "meta" and torch.is_autocast_enabled(
        device
    ):  # as SDPA does; α keeps its precision
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (t.to(dtype) for t in (query, key, value))
    check_tensors(query, key, value, enable_gqa)
    smoothing = check_reading(window, smoothing, edge, is_causal, chunk, scale, alpha_max)
    check_side_inputs(query, key, alpha, key_mask, query_offset)
    return Call(
        query=query,
        key=key,
        value=value,
        alpha=alpha,
        window=window,
        smoothing=smoothing,
        edge=edge,
        is_causal=is_causal,
        key_mask=key_mask,
        query_offset=key.shape[2] - query.shape[2] if query_offset is None else query_offset,
        chunk=chunk,
        scale=query.shape[3] ** -0.5 if scale is None else float(scale),
        alpha_max=alpha_max,
        formula=needs_formula(query, key, value, alpha),
    )


def widened(call: Call) -> Call:
    """float16 on a CPU as float32: a fold loses no digits there, and kernels are faster by far.

    Not without decay and smoothing: that is SDPA, bit for bit.
    """
    plain = call.alpha is None and call.window == 1
    if call.query.dtype != torch.float16 or call.query.device.type != "cpu" or plain:
        return call
    query, key, value = call.query.float(), call.key.float(), call.value.float()
    return replace(call, query=query, key=key, value=value)


def pieces(call: Call) -> Iterator[tuple[int, Call | None]]:
    """Cut a chunked call into chunk-free ones: (rows, call), None where the rows see no key.

    Whole blocks run together as one batch; a partial block at either end is a call of its own.
    """
    assert call.chunk is not None and isinstance(call.query_offset, int)
    chunk, L, S = call.chunk, call.query.shape[2], call.key.shape[2]
    row = 0
    while row < L:
        position = call.query_offset + row
        block = position // chunk
        whole = min((L - row) // chunk, (S - position) // chunk)
        if position < 0 or block * chunk >= S:
            rows = min(L - row, -position) if position < 0 else L - row
            yield rows, None
        elif position % chunk == 0 and whole > 0:
            rows = whole * chunk
            yield rows, _block_call(call, row, rows, position, rows, whole)
        else:
            rows = min(L - row, chunk - position % chunk)
            first = block * chunk
            yield rows, _block_call(call, row, rows, first, min(chunk, S - first), 1)
        row += rows


def _block_call(call: Call, row: int, rows: int, key: int, keys: int, blocks: int) -> Call:
    """The call over some rows and the keys of their blocks, the blocks moved into the batch."""

    def cut(t: Tensor, start: int, count: int) -> Tensor:
        part: Tensor = t[:, :, start : start + count].unflatten(2, (blocks, -1))
        return part.transpose(1, 2).flatten(0, 1)

    mask = call.key_mask
    if mask is not None:
        mask = mask[:, key : key + keys].unflatten(1, (blocks, -1)).flatten(0, 1)
    assert isinstance(call.query_offset, int)
    return replace(
        call,
        query=cut(call.query, row, rows),
        key=cut(call.key, key, keys),
        value=cut(call.value, key, keys),
        key_mask=mask,
        query_offset=call.query_offset + row - key,
        chunk=None,
    )
