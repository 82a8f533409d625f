"""Causal attention with a number per key added to its scores, on a CPU.

PyTorch's operator takes such numbers as a bias, without a gradient and in its own precision: a
large range of them costs digits. So the backward pass, and for large ranges the forward pass, goes
through tiles of keys by queries. What is added in a tile is taken relative to it, so that it is
small where weights are not, and tiles whose weights all vanish are left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.derivatives import first_only
from longlens.ops.family.fold import ADD_RANGE
from longlens.ops.las.flash import flash_forward
from longlens.ops.launching import watched

BLOCK = 256  # queries and keys of a tile
TILE = 4 * BLOCK**2  # numbers of a tile, of several heads; more leave a core's cache
BASE = 1 / math.log(2)  # exp2 takes PyTorch a third of exp's time, and less where it underflows
VANISHED = {torch.float32: -200.0, torch.float64: -1200.0}  # powers of 2 whose sums are 0, too

Tile = tuple[slice, slice, slice, Tensor, Tensor]


class _Biased(torch.autograd.Function):
    """q, k, v (B, H, n, D) and bias (B, H, n), float64 -> (B, H, n, D)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        if bool((bias.amax(2) - bias.amin(2)).amax() <= ADD_RANGE[q.dtype]):
            row = bias.to(q.dtype)[:, :, None, :].expand(*q.shape[:3], q.shape[2])
            out, lse = flash_forward(q, k, v, True, row, scale)
            level = lse.double()
        else:
            rows = [t.flatten(0, 1).contiguous() for t in (q, k, v, bias)]
            found = _by_threads(_forward, rows, scale)
            out, level = (t.unflatten(0, q.shape[:2]) for t in found)
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, bias, level, out)
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = [t.flatten(0, 1).contiguous() for t in (*ctx.saved_tensors, grad)]
        found = _by_threads(_backward, rows, ctx.scale)
        return *(t.unflatten(0, grad.shape[:2]) for t in found), None


def _by_threads(
    work: Callable[..., list[Tensor]], rows: list[Tensor], scale: float
) -> list[Tensor]:
    """Work on rows (N, ...), a share of the heads for each thread, as PyTorch's operator does.

    Were threads left to every operation on a tile, they would wait for each other hundreds of
    times, and for long where other programs want the same cores.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(rows[0]) == 1 or watched():  # who counts sees this thread alone
        return work(rows, scale)
    shares = list(zip(*(t.tensor_split(min(threads, len(t))) for t in rows), strict=True))
    one = torch.no_grad()(lambda share: work(list(share), scale))
    try:
        found = list(_pool(threads).map(one, shares))
    finally:
        torch.set_num_threads(threads)  # a thread's number is its own, but also that of new ones
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


@lru_cache(1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: new ones would fetch their memory from the system at every call."""
    return ThreadPoolExecutor(threads, "longlens", lambda: torch.set_num_threads(1))


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has none of them


def _backward(rows: list[Tensor], scale: float) -> list[Tensor]:
    """Gradients of q, k, v (N, n, D) and bias (N, n), float64."""
    q, k, v, bias, level, out, grad = rows
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    grads = torch.cat([grad, -(grad * out).sum(-1, keepdim=True)], -1).mT
    dq, dk, dv, d_bias = (torch.zeros_like(t) for t in (q, k, v, bias))
    for h, key, query, weight, d_score in _exponents(q, k, bias, level, scale):
        weight.exp2_()
        if key == query:
            weight.triu_()
        dv[h, key].baddbmm_(weight, grad[h, query])
        torch.bmm(values[h, key], grads[h, :, query], out=d_score).mul_(weight)
        dk[h, key].baddbmm_(d_score, q[h, query], alpha=scale)
        dq[h, query].baddbmm_(d_score.mT, k[h, key], alpha=scale)
        # Positions multiply what these sums are off by, and the large terms are near the diagonal.
        terms = d_score.double() if key == query else d_score
        d_bias[h, key] += terms.sum(2)
        d_bias[h, query] -= terms.sum(1)  # zero but for rounding, which cancels that above
    return [dq, dk, dv, d_bias]


def _forward(rows: list[Tensor], scale: float) -> list[Tensor]:
    """Attention (N, n, D) of q, k, v and bias, and its log-sum-exp (N, n), float64."""
    q, k, v, bias = rows
    level = bias.cummax(1).values
    out, total = torch.zeros_like(v), torch.zeros_like(q[..., 0])
    top = torch.full_like(total, -math.inf)
    for h, key, query, weight, _ in _exponents(q, k, bias, level, scale):
        if key == query:
            future = torch.ones_like(weight[0], dtype=torch.bool).tril(-1)
            weight.masked_fill_(future, -math.inf)
        found = torch.maximum(top[h, query], weight.amax(1))
        fade = torch.exp2(top[h, query] - found)
        weight.sub_(found[:, None]).exp2_()
        top[h, query] = found
        total[h, query] = total[h, query] * fade + weight.sum(1)
        out[h, query].mul_(fade[..., None]).baddbmm_(weight.mT, v[h, key])
    return [out / total[..., None], level + (top.double() + total.double().log2()) / BASE]


def _exponents(q: Tensor, k: Tensor, bias: Tensor, level: Tensor, scale: float) -> Iterator[Tile]:
    """Heads, keys, queries, log2(e)·(score + bias - level of the query), and space for as much.

    Tiles are of keys by queries, so that few products of a backward pass read one across. What is
    added to rows and columns comes by two more columns of the factors, which costs next to nothing.
    Scores of keys behind their queries are there, too.
    """
    N, n, D = q.shape
    size = min(n, BLOCK)
    blocks = [slice(first, min(n, first + size)) for first in range(0, n, size)]
    bias, level = bias * BASE, level * BASE
    high = torch.stack([part.amax(1) for part in bias.split(size, 1)], 1)
    low = torch.stack([part.amin(1) for part in bias.split(size, 1)], 1)
    # A weight is at most 2^(score + bias) over the same of the query's own key.
    score = scale * BASE * q.norm(dim=-1).amax(1).double() * k.norm(dim=-1).amax(1).double()
    most = 2 * score[:, None, None] + high[..., None] - low[:, None]
    counts = ~(most < VANISHED[q.dtype])  # (N, blocks of keys, blocks of queries); NaN does, too
    keys = F.pad(k, (0, 2), value=1.0)
    queries = F.pad(q * (scale * BASE), (0, 2), value=1.0).mT.contiguous()
    # In a tile on the diagonal differences may be small while what they are taken from is not.
    coarse_key, coarse_query = bias.to(q.dtype), level.to(q.dtype)
    fine_key, fine_query = bias - coarse_key, coarse_query - level
    heads = min(N, max(1, TILE // size**2))
    space, start = q.new_empty(2, heads * size**2), 0
    for group in counts.split(heads):
        seen = group.any(0).tolist()
        before, behind = (x.byte().argmax(0).tolist() for x in (group, group.flip(0)))
        stop = start + len(group)
        for j, key in enumerate(blocks):
            for i, query in enumerate(blocks[j:], j):
                if not seen[j][i]:
                    continue
                h = slice(start + before[j][i], stop - behind[j][i])  # on the diagonal all
                shape = [part.stop - part.start for part in (h, key, query)]
                tile, other = (t[: math.prod(shape)].view(shape) for t in space)
                if i == j:
                    keys[h, key, D] = fine_key[h, key].to(q.dtype)
                    queries[h, D + 1, key] = fine_query[h, key].to(q.dtype)
                    torch.sub(coarse_key[h, key, None], coarse_query[h, None, key], out=tile)
                    tile.baddbmm_(keys[h, key], queries[h, :, key])
                    later = slice(key.stop, n)
                    keys[h, key, D] = (bias[h, key] - high[h, j, None]).to(q.dtype)
                    queries[h, D + 1, later] = (high[h, j, None] - level[h, later]).to(q.dtype)
                else:
                    torch.bmm(keys[h, key], queries[h, :, query], out=tile)
                yield h, key, query, tile, other
        start = stop


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """q, k, v (B, H, n, D), bias (B or 1, H or 1, n) in float64 -> (B, H, n, D)."""
    out: Tensor = _Biased.apply(q, k, v, bias.expand(q.shape[:3]), scale)  # type: ignore[no-untyped-call]
    return out
