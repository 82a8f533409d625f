"""PyTorch's fused attention operators with their log-sum-exp, and attention merged from parts.

A softmax over many keys can be computed over disjoint sets of keys and merged, given the
log-sum-exp of each. In the backward pass every part takes the *merged* output and log-sum-exp, and
its own operator then returns its exact share of the gradients.

A part covers the rows  base + g·period + first + [0, n)  for g = 0 … G-1, so one call serves many
equal blocks; a flipped one takes and returns them last row first. Its tensors have shape
(B, H, G, n, ·), and there are three kinds:

- FLASH: query, key, value [, mask]: one fused call
- TILE: query, key, value, decay (H, n, n) [, mask]: small square blocks with explicit scores
- BAND: score, value: one key per row, already scored (-inf: absent)

FLASH and TILE may be causal inside each block, which is square then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.operands import operator_ready

aten = torch.ops.aten
FLASH, TILE, BAND = range(3)
WIDEST_FLASH = 256  # columns of a head that CUDA's flash operator takes
MOST_SEQUENCES = 65_535  # a limit of CUDA on an axis of a grid, which both its operators run into


class Part(NamedTuple):
    """Where one part's rows lie in the result, and what its tensors are."""

    kind: int
    base: int
    period: int
    first: int
    causal: bool
    masked: bool  # a key mask (B, G, keys) follows the other tensors
    flipped: bool  # its tensors run backwards along the sequence
    scale: float

    @property
    def tensors(self) -> int:
        """How many tensors it comes with."""
        return {FLASH: 3, TILE: 4, BAND: 2}[self.kind] + self.masked


def key_bias(mask: Tensor, query: Tensor) -> Tensor:
    """A mask (N, M, S) as an additive bias (N, M, L, S) that occupies one row only.

    The row is padded to whole 16-byte units: the memory-efficient CUDA operator asks for that.
    """
    N, M, S = mask.shape
    row = query.new_zeros(N, M, 1, -(-S // 16) * 16)[..., :S]
    row.masked_fill_(~mask[:, :, None, :], float("-inf"))
    return row.expand(N, M, query.shape[2], S)


def flash_takes(q: Tensor) -> bool:
    """Whether CUDA's flash operator serves such tensors; the memory-efficient one serves all."""
    return (
        q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] <= WIDEST_FLASH
        and torch.cuda.get_device_properties(q.device).major >= 8
    )


def _shares(*tensors: Tensor | None) -> Iterator[list[Any]]:
    """The first dimension in shares that an operator takes."""
    cut = [None if t is None else t.split(MOST_SEQUENCES) for t in tensors]
    for index in range(max(len(share) for share in cut if share is not None)):
        yield [None if share is None else share[index] for share in cut]


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention on (N, M, n, D) and its log-sum-exp (N, M, n). Causal calls must be square."""
    assert k.shape[2] > 0, "the CPU operator dies on an empty key sequence"
    if q.shape[0] > MOST_SEQUENCES:
        found = [
            flash_forward(q_, k_, v_, causal, bias_, scale)
            for q_, k_, v_, bias_ in _shares(q, k, v, bias)
        ]
        return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])
    q, k, v = (operator_ready(t) for t in (q, k, v))
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=scale
        )
    elif bias is None and flash_takes(q):
        out, lse, *_ = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False, scale=scale
        )
    else:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, 0.0, causal, scale=scale
        )
        lse = lse[..., : q.shape[2]]  # it comes padded to a multiple of 32
    return out, lse


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool,
    bias: Tensor | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, given an output and log-sum-exp that may cover further keys."""
    if q.shape[0] > MOST_SEQUENCES:
        shares = [
            flash_backward(grad_, q_, k_, v_, out_, lse_, causal, bias_, scale)
            for grad_, q_, k_, v_, out_, lse_, bias_ in _shares(grad, q, k, v, out, lse, bias)
        ]
        dq, dk, dv = (torch.cat(share) for share in zip(*shares, strict=True))
        return dq, dk, dv
    grad, q, k, v, out = (operator_ready(t) for t in (grad, q, k, v, out))
    if q.device.type == "cpu":
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse.contiguous(), 0.0, causal, attn_mask=bias, scale=scale
        )
    elif bias is None and flash_takes(q):
        n, s = q.shape[2], k.shape[2]
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # only dropout would read it
        grads = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse.contiguous(), None, None, n, s, 0.0, causal, seed, seed,
            scale=scale,
        )  # fmt: skip
    else:
        lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=float("inf"))
        # In half precision the kernel takes `out` to lie as its own forward would have left it.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        needed = [True, True, True, False]
        grads = aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, bias, out, lse, seed, seed, 0.0, needed, causal, scale=scale
        )
    return grads[0], grads[1], grads[2]


def _rows(x: Tensor, part: Part, groups: int, n: int) -> Tensor:
    """The part's rows of x (B, H, R, ·) as a view (B, H, G, n, ·)."""
    span = x[:, :, part.base : part.base + groups * part.period]
    view: Tensor = span.unflatten(2, (groups, part.period))[:, :, :, part.first : part.first + n]
    return view


def _fused_inputs(part: Part, tensors: list[Tensor]) -> tuple[list[Tensor], Tensor | None]:
    """Batch and heads become one dimension, groups the other: no copy for contiguous tensors."""
    q, k, v = (t.flatten(0, 1) for t in tensors[:3])
    if not part.masked:
        return [q, k, v], None
    mask = tensors[3].repeat_interleave(tensors[0].shape[1], dim=0)  # (B·H, G, n)
    return [q, k, v], key_bias(mask, q)


def _tile_scores(part: Part, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scores of the explicit tiles before and after the decay; -inf where no key may be seen."""
    q, k, _, decay = tensors[:4]
    raw = (q.to(decay.dtype) @ k.to(decay.dtype).transpose(-2, -1)) * part.scale
    scores = raw * decay[:, None]
    if part.causal:
        future = torch.ones_like(decay[0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if part.masked:
        scores = scores.masked_fill(~tensors[4][:, None, :, None, :], float("-inf"))
    return raw, scores


def _part_forward(part: Part, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One part's output (B, H, G, n, Dv) and log-sum-exp (B, H, G, n), -inf without a key."""
    if part.kind == BAND:
        return band_forward(*tensors)
    if part.kind == TILE:
        return tile_forward(part, tensors)
    (q, k, v), bias = _fused_inputs(part, tensors)
    out, lse = flash_forward(q, k, v, part.causal, bias, part.scale)
    out, lse = (t.unflatten(0, tensors[0].shape[:2]) for t in (out, lse))
    if part.masked:  # the operators report 0 for a row without keys
        mask = tensors[3]
        seen = mask.cumsum(-1) > 0 if part.causal else mask.any(-1, keepdim=True)
        lse = lse.masked_fill(~seen[:, None], float("-inf"))
    return out, lse


def band_forward(score: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Of a single key per row: its value, and its score as the log-sum-exp."""
    return value, score


def tile_forward(part: Part, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention by explicit scores."""
    _, scores = _tile_scores(part, tensors)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
    return (weights.to(tensors[2].dtype) @ tensors[2]), lse


def _part_backward(
    part: Part, tensors: list[Tensor], grad: Tensor, out: Tensor, lse: Tensor, delta: Tensor
) -> list[Tensor]:
    """Gradients of the part's tensors; `out`, `lse` and `delta` = <grad, out> are merged ones."""
    if part.kind == BAND:
        score, value = tensors
        p = torch.exp(score - lse)
        inner = (grad.to(p.dtype) * value).sum(-1)
        return [p * (inner - delta), (p[..., None] * grad).to(value.dtype)]
    if part.kind == TILE:
        decay, dtype = tensors[3], grad.dtype
        q, k, v, grad = (t.to(decay.dtype) for t in (*tensors[:3], grad))
        raw, scores = _tile_scores(part, tensors)
        p = torch.exp(scores - lse[..., None])
        d_scores = p * (grad @ v.transpose(-2, -1) - delta[..., None])
        d_raw = d_scores * decay[:, None] * part.scale
        d_decay = (d_scores * raw).sum((0, 2))
        found = [d_raw @ k, d_raw.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad]
        return [*(g.to(dtype) for g in found), d_decay]
    (q, k, v), bias = _fused_inputs(part, tensors)
    grad, out, lse = (t.flatten(0, 1) for t in (grad, out, lse))
    grads = flash_backward(grad, q, k, v, out, lse, part.causal, bias, part.scale)
    return [g.unflatten(0, tensors[0].shape[:2]) for g in grads]


def split_parts(layout: list[int], scales: list[float], tensors: list[Tensor]) -> Any:
    """Pair parts with their tensors. Operators take flat lists, so parts travel as numbers."""
    start = 0
    for index, scale in enumerate(scales):
        kind, base, period, first, *flags = layout[7 * index : 7 * index + 7]
        causal, masked, flipped = map(bool, flags)
        part = Part(kind, base, period, first, causal, masked, flipped, scale)
        yield part, tensors[start : start + part.tensors]
        start += part.tensors


def value_of(part: Part, tensors: list[Tensor]) -> Tensor:
    """The values among a part's tensors."""
    return tensors[1] if part.kind == BAND else tensors[2]


def merge(
    tensors: list[Tensor], layout: list[int], scales: list[float], rows: int
) -> tuple[Tensor, Tensor]:
    """Attention over all parts' keys and its log-sum-exp: (B, H, rows, Dv) and (B, H, rows)."""
    parts = list(split_parts(layout, scales, tensors))
    v = value_of(*parts[0])
    B, H = v.shape[:2]
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    out = v.new_zeros(B, H, rows, v.shape[-1], dtype=wide)
    lse = v.new_full((B, H, rows), float("-inf"), dtype=wide)
    for part, own in parts:
        part_out, part_lse = _part_forward(part, own)
        if part.flipped:
            part_out, part_lse = part_out.flip(3), part_lse.flip(3)
        groups, n = part_lse.shape[2:]
        out_rows, lse_rows = _rows(out, part, groups, n), _rows(lse, part, groups, n)
        merged = torch.logaddexp(lse_rows, part_lse)
        safe = merged.nan_to_num(neginf=0.0)  # rows that have seen no key yet
        out_rows.mul_(torch.exp(lse_rows - safe)[..., None])
        out_rows.addcmul_(part_out.to(wide), torch.exp(part_lse - safe)[..., None])
        lse_rows.copy_(merged)
    return out.to(v.dtype), lse


merge_op = torch.library.custom_op("longlens::merged_attention", mutates_args=())(merge)


@merge_op.register_fake
def _(
    tensors: list[Tensor], layout: list[int], scales: list[float], rows: int
) -> tuple[Tensor, Tensor]:
    v = value_of(*next(iter(split_parts(layout, scales, tensors))))
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    shape = (v.shape[0], v.shape[1], rows)
    return v.new_empty(*shape, v.shape[-1]), v.new_empty(shape, dtype=wide)


def merge_backward(
    tensors: list[Tensor], layout: list[int], scales: list[float], grad: Tensor, out: Tensor,
    lse: Tensor,
) -> list[Tensor]:  # fmt: skip
    """The gradients of all parts' tensors but masks."""
    # A row without keys takes no part: +inf makes each of its weights exp(s - inf) = 0.
    lse = torch.where(lse == float("-inf"), float("inf"), lse)
    delta = (grad.to(lse.dtype) * out).sum(-1)
    grads: list[Tensor] = []
    for part, own in split_parts(layout, scales, tensors):
        groups, n = (own[0].shape[2], own[0].shape[3])
        rows = [_rows(t, part, groups, n) for t in (grad, out, lse, delta)]
        if part.flipped:
            rows = [t.flip(3) for t in rows]
        found = _part_backward(part, own, *rows)
        grads += [g.contiguous() for g in found]
    return grads


merge_backward_op = torch.library.custom_op("longlens::merged_attention_backward", mutates_args=())(
    merge_backward
)


@merge_backward_op.register_fake
def _(tensors: list[Tensor], layout: list[int], scales: list[float], *_: Tensor) -> list[Tensor]:
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format)
        for part, own in split_parts(layout, scales, tensors)
        for t in own[: part.tensors - part.masked]
    ]
