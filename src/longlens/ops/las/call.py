"""One call of LaS attention: its arguments, checked, and how a chunked call becomes plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlens.ops.las.checks import check_options, check_side_inputs, check_tensors
from longlens.ops.las.transforms import known, needs_formula
from longlens.ops.numerics import autocast_dtype
from longlens.ops.rotary import rotate


class Packing(NamedTuple):
    """Where sequences lie in one long row: (N+1,) bounds, and the longest that there may be."""

    bounds: Tensor
    longest: int

    def places(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of every token the number, the first token and the end of its sequence."""
        token = torch.arange(tokens, device=self.bounds.device)
        sequence = torch.searchsorted(self.bounds, token, right=True) - 1
        return sequence, self.bounds[sequence], self.bounds[sequence + 1]


@dataclass
class Call:
    """The arguments of `las_attention`; `check` fills in its defaults.

    Queries, keys and values may be views of one `packed` projection, and not yet rotated by
    `angles`: the prologue, where it runs, reads and rotates them as they are.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor | None = None
    window: int = 1
    smoothing: Any = None  # a str, once checked
    edge: str = "zero"
    is_causal: bool = True
    key_mask: Tensor | None = None
    query_offset: Any = None  # an int or a Tensor, once checked
    chunk: int | None = None
    alpha_max: float | None = None
    scale: Any = None  # a float, once checked
    enable_gqa: bool = False
    packed: Tensor | None = None
    angles: tuple[Tensor, Tensor] | None = None
    packing: Packing | None = None  # of `las_attention_varlen`
    taps: Tensor | None = None  # (H, window), of `ops.family`: the prologue's filter, no average
    local: Any = None  # (left, right), once checked; None: also a window wider than the sequence
    softcap: float | None = None
    sink: Tensor | None = None
    formula: bool = False  # a derivative is asked for that no fused kernel has

    @property
    def banded(self) -> bool:
        """Whether windows are cut at the query, so that smoothing does not move to the values."""
        return self.smoothing == "masked" and self.window > 1

    @property
    def changes_scores(self) -> bool:
        """Whether scores are capped or a sink joins them."""
        return self.softcap is not None or self.sink is not None

    @property
    def pools(self) -> bool:
        """Whether values have to change before attention."""
        return self.window > 1 or self.key_mask is not None

    @property
    def heads(self) -> tuple[int, int]:
        """The number of heads of queries, and of keys and values."""
        return self.query.shape[1], self.key.shape[1]

    @property
    def width(self) -> int:
        """The larger of the widths of keys and values."""
        return max(self.query.shape[3], self.value.shape[3])

    @property
    def tensors(self) -> list[Tensor]:
        """[packed], or [query, key, value]."""
        return [self.query, self.key, self.value] if self.packed is None else [self.packed]


def check(call: Call) -> Call:
    """Check the arguments and fill in the defaults, in place."""
    query, key = call.query, call.key
    check_tensors(query, key, call.value, call.enable_gqa)
    call.smoothing = check_options(
        call.window, call.smoothing, call.edge, call.is_causal, call.chunk, call.scale,
        call.alpha_max, call.local, call.softcap,
    )  # fmt: skip
    check_side_inputs(query, key, call.alpha, call.key_mask, call.query_offset, call.sink)
    fill_in(call)
    call.formula = needs_formula(query, key, call.value, call.alpha, call.sink)
    return call


def fill_in(call: Call) -> None:
    """The defaults of a call that needs no check."""
    if call.smoothing is None:
        call.smoothing = "causal" if call.is_causal else "centered"
    if call.query_offset is None:
        call.query_offset = call.key.shape[2] - call.query.shape[2]
    call.scale = call.query.shape[3] ** -0.5 if call.scale is None else float(call.scale)
    call.local = sides(call.local, call.is_causal)
    if call.local is not None and _sees_all(call):
        call.local = None


def sides(local: Any, is_causal: bool) -> tuple[int, int] | None:
    """A sliding window as (left, right), the number of keys on each side of the query."""
    return (local - 1, 0 if is_causal else local - 1) if isinstance(local, int) else local


def _sees_all(call: Call) -> bool:
    """Whether the sliding window holds all keys of every query."""
    first, (left, right) = call.query_offset, call.local
    if isinstance(first, Tensor):
        return False
    last = known(first + call.query.shape[2] - 1 <= left)
    return last and (call.is_causal or known(call.key.shape[2] - 1 - first <= right))


def cast(call: Call) -> None:
    """What autocast asks for, as SDPA does it; α keeps its precision."""
    if not isinstance(call.query, Tensor):  # nothing else has been checked yet
        raise ValueError(f"query must be a tensor, got {type(call.query).__name__}")
    dtype = autocast_dtype(call.query)
    if dtype is not None:
        convert(call, dtype)


def convert(call: Call, dtype: torch.dtype) -> None:
    """Queries, keys and values in another dtype."""
    if not call.query.dtype == call.key.dtype == call.value.dtype == dtype:
        unpack(call)
        call.query, call.key, call.value = (t.to(dtype) for t in (call.query, call.key, call.value))


def unpack(call: Call) -> None:
    """Rotate now what no prologue will."""
    if call.angles is not None:
        call.query, call.key = rotate(call.query, *call.angles), rotate(call.key, *call.angles)
    call.packed = call.angles = None


def wants_float32(call: Call) -> bool:
    """float16 on a CPU: a fold loses no digits in float32, and kernels are faster by far.

    Not without decay and smoothing: a square is SDPA, bit for bit.
    """
    plain = call.alpha is None and call.window == 1
    half = call.query.dtype == call.key.dtype == call.value.dtype == torch.float16
    return half and call.query.device.type == "cpu" and not plain


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
    piece = replace(
        call,
        query=cut(call.query, row, rows),
        key=cut(call.key, key, keys),
        value=cut(call.value, key, keys),
        key_mask=mask,
        query_offset=call.query_offset + row - key,
        chunk=None,
        packed=None,
    )
    if piece.local is not None and _sees_all(piece):
        piece.local = None
    return piece
