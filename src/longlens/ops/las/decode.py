"""Decoding one token at a time: a cache of keys and pooled values, and one row of attention.

Keys are kept unscaled, values pooled, and of the raw values only the last P-1, which later windows
still need. Under ``masked`` smoothing a pooled value is final only p = P//2 tokens after its own,
so each new token also rewrites the last p of them. Everything depends on distances alone, so rows
of a batch are stored aligned to their *last* token, and prompts of different lengths just begin
later.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.las.call import Call
from longlens.ops.las.checks import check_options, check_rates, check_side_inputs, check_tensors
from longlens.ops.las.plan import Assumed, Plan, Route, always, check_impl, choose
from longlens.ops.las.row import full_scores
from longlens.ops.las.smoothing import pool_values
from longlens.ops.las.triton import why_not
from longlens.ops.las.triton.attention_op import MOST_HEADS
from longlens.ops.las.triton.decode_op import decode_attention
from longlens.ops.numerics import keep_dtypes


class LaSCache:
    """What a causal LaS attention remembers between steps.

    Make one from a prompt's keys and values, then `append` a token and `attend`, again and again.

    >>> k = v = torch.randn(1, 2, 10, 16)
    >>> cache = LaSCache(k, v, window=5)
    >>> cache.append(k[:, :, :1], v[:, :, :1])
    >>> cache.attend(torch.randn(1, 4, 1, 16)).shape, cache.length
    (torch.Size([1, 4, 1, 16]), 11)
    """

    def __init__(
        self,
        key: Tensor,
        value: Tensor,
        *,
        window: int = 1,
        smoothing: str | None = None,
        edge: str = "zero",
        chunk: int | None = None,
        local: int | tuple[int, int] | None = None,
        key_mask: Tensor | None = None,
    ) -> None:
        """Store a prompt: key (B, Hkv, S, D), value (B, Hkv, S, Dv), key_mask (B, S) or None.

        In each row of `key_mask` the real tokens must be contiguous: padding left or right. With
        `local` a token sees the last `local` keys, its own included; (left, 0) is `left + 1`.
        """
        check_tensors(key, key, value, enable_gqa=True)
        check_side_inputs(key, key, None, key_mask, None)
        self.smoothing = check_options(
            window, smoothing, edge, is_causal=True, chunk=chunk, local=local
        )
        if self.smoothing == "centered" and window > 1:
            raise ValueError(
                "smoothing='centered' sees values ahead of the query, so it cannot decode; "
                "use 'causal' or 'masked'"
            )
        self.window, self.edge, self.chunk = window, edge, chunk
        self.local = local[0] + 1 if isinstance(local, tuple) else local
        B, _, self.length, _ = key.shape
        real = key.new_ones(B, self.length, dtype=torch.bool) if key_mask is None else key_mask
        if key_mask is not None and self.length:
            key, value, real = _align_right(key, value, real)
        self.tokens = real.sum(-1)  # real tokens so far, (B,): the next token's position
        self._every = key_mask is None  # no stored key is padding
        self._key = key.clone()
        in_block = real & self._same_block(self.tokens - 1, self.length)
        self._pooled = pool_values(value, window, self.smoothing, edge, in_block).clone()
        self._real = real
        keep = window - 1
        tail = slice(max(0, self.length - keep), None)
        missing = max(0, keep - self.length)
        self._recent = F.pad(value[:, :, tail], (0, 0, missing, 0))
        self._recent_real = F.pad(real[:, tail], (missing, 0))

    def _same_block(self, position: Tensor, count: int) -> Tensor:
        """Which of the last `count` places share the chunk of `position` (B,): (B, count)."""
        age = torch.arange(count - 1, -1, -1, device=position.device)
        if self.chunk is None:
            return torch.ones_like(position[:, None] + age, dtype=torch.bool)
        return age <= (position % self.chunk)[:, None]

    def _grow(self) -> None:
        """Double the storage when it is full, so that appending costs O(1) on average.

        With a chunk the old blocks are dropped instead.
        """
        if self.length < self._key.shape[2]:
            return
        start = 0 if self.chunk is None else max(0, self.length - self.chunk)
        extra = max(16, self.length - start)
        self._key = F.pad(self._key[:, :, start:], (0, 0, 0, extra))
        self._pooled = F.pad(self._pooled[:, :, start:], (0, 0, 0, extra))
        self._real = F.pad(self._real[:, start:], (0, extra))
        self.length -= start

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add one token: key (B, Hkv, 1, D), value (B, Hkv, 1, Dv)."""
        expected = (self._key.shape[:2], self._key.shape[3], self._pooled.shape[3])
        if (key.shape[:2], key.shape[3], value.shape[3]) != expected or key.shape[2] != 1:
            raise ValueError(
                f"key and value must be one token for a cache of keys {tuple(self._key.shape)} and "
                f"values of width {self._pooled.shape[3]}, got {tuple(key.shape)} and "
                f"{tuple(value.shape)}"
            )
        self._grow()
        here = self.length
        self._key[:, :, here : here + 1] = key
        self._real[:, here] = True
        raw = torch.cat([self._recent, value.to(self._recent.dtype)], dim=2)  # (B, Hkv, P, Dv)
        real = F.pad(self._recent_real, (0, 1), value=True)
        pooled = self._pool_last(raw, real & self._same_block(self.tokens, self.window))
        rows = min(pooled.shape[2], here + 1)
        self._pooled[:, :, here + 1 - rows : here + 1] = pooled[:, :, -rows:]
        self._recent, self._recent_real = raw[:, :, 1:], real[:, 1:]
        self.length += 1
        self.tokens = self.tokens + 1

    def _pool_last(self, raw: Tensor, real: Tensor) -> Tensor:
        """The pooled rows that the newest of P raw values changes: (B, Hkv, 1 or p+1, Dv)."""
        wide = raw if raw.dtype in (torch.float32, torch.float64) else raw.float()
        wide = wide.masked_fill(~real[:, None, :, None], 0)
        # Row newest-r holds the values from newest-r-p on, so these are sums from the right end.
        first = 0 if self.smoothing == "causal" else self.window // 2
        take = slice(0, self.window - first) if first else slice(0, 1)
        total = wide.flip(2).cumsum(2).flip(2)[:, :, take]
        if self.edge == "zero":
            return (total / self.window).to(raw.dtype)
        count = real.to(wide.dtype).flip(1).cumsum(1).flip(1)[:, None, take, None]
        return (total / count.clamp(min=1)).to(raw.dtype)

    def attend(
        self,
        query: Tensor,
        *,
        alpha: Tensor | None = None,
        scale: float | None = None,
        impl: str = "auto",
    ) -> Tensor:
        """Attention of the newest token's query (B, Hq, 1, D) over the cache: (B, Hq, 1, Dv).

        Key heads are shared by reshaping the query, so the cache is read once, unrepeated. It is
        computed in the cache's dtype and returned in the query's.
        ``impl="triton"`` takes kernels without gradients that share out long caches.
        """
        dtype = query.dtype
        if dtype.is_floating_point:  # autocast may have begun or ended since the prompt
            query = query.to(self._key.dtype)
        self._check(query, alpha, scale)
        check_impl(impl)
        scale = query.shape[3] ** -0.5 if scale is None else float(scale)
        first = 0 if self.local is None else max(0, self.length - self.local)
        seen, visible = slice(first, self.length), self._visible()
        call = Call(query, self._key[:, :, seen], self._pooled[:, :, seen], alpha, scale=scale)
        call.key_mask = None if visible is None else visible[:, seen]
        route = choose(ROUTES, call, impl, Assumed())
        with keep_dtypes(query):  # autocast would round the scores
            return route.run(call, Plan(route.impl, route.name)).to(dtype)

    def _check(self, query: Tensor, alpha: Tensor | None, scale: float | None) -> None:
        B, D = self._key.shape[0], self._key.shape[3]
        if query.ndim != 4 or (query.shape[0], *query.shape[2:]) != (B, 1, D):
            raise ValueError(
                f"query must be one token, of shape ({B}, heads, 1, {D}) for a cache of keys "
                f"{tuple(self._key.shape)}, got {tuple(query.shape)}"
            )
        check_tensors(query, self._key, self._pooled, enable_gqa=True)
        check_options(self.window, self.smoothing, self.edge, is_causal=True, scale=scale)
        check_side_inputs(query, self._key, alpha, None, None)
        check_rates(alpha)

    def _visible(self) -> Tensor | None:
        """Which stored keys the newest token sees, (B, length); None: all."""
        if self._every and self.chunk is None:
            return None
        return self._real[:, : self.length] & self._same_block(self.tokens - 1, self.length)


def _no_kernel(call: Call, assumed: Assumed) -> str | None:
    if call.key.shape[0] * call.key.shape[1] > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} key heads of all sequences together"
    tensors = (call.query, call.key, call.value, call.alpha)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return "the decoding kernels have no gradient; use torch.no_grad()"
    return why_not(call.query.device, call.query.dtype, call.width)


def _no_faster_kernel(call: Call, assumed: Assumed) -> str | None:
    """The same for "auto": on an H200 kernels take 0.31 to 0.67 of the row's time.

    They are no operator that a compiler knows, and have not been compared in float32.
    """
    if call.query.dtype == torch.float32 or torch.compiler.is_compiling():
        return "half precision, and not compiled, only"
    return _no_kernel(call, assumed)


def _run_kernel(call: Call, plan: Plan) -> Tensor:
    return decode_attention(
        call.query, call.key, call.value, alpha=call.alpha, mask=call.key_mask, scale=call.scale
    )


def _run_row(call: Call, plan: Plan) -> Tensor:
    """An explicit row of scores over pooled values; the newest key is the last."""
    B, heads, _, D = call.query.shape
    kv_heads, n = call.key.shape[1:3]
    grouped = call.query.reshape(B, kv_heads, heads // kv_heads, D)
    scores: Tensor = full_scores(grouped, call.key) * call.scale
    if call.alpha is not None:
        age = torch.arange(n - 1, -1, -1, device=scores.device)
        rate = call.alpha.to(scores.dtype).view(kv_heads, -1, 1)
        scores = scores * torch.exp(-rate * age)
    visible = call.key_mask
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    weights = scores.softmax(-1).to(call.value.dtype)
    if visible is not None:  # a sequence without a single token yet
        weights = weights.masked_fill(~visible.any(-1)[:, None, None, None], 0)
    return (weights @ call.value).reshape(B, heads, 1, call.value.shape[3])


_STEPS = ["stretch_kernel", "join_kernel"]
ROUTES = (
    Route("triton", "stretches", _no_faster_kernel, "one query", _run_kernel, _STEPS, named=False),
    Route("sdpa", "row", always, "one query", _run_row, ["full_scores"]),
    Route("reference", "row", always, "one query", _run_row, ["full_scores"]),
    Route("triton", "stretches", _no_kernel, "by name", _run_kernel, _STEPS),
)


def _align_right(key: Tensor, value: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Roll each row until its real tokens, which must be contiguous, come last."""
    if not torch.compiler.is_compiling():
        starts = (real & ~F.pad(real, (1, -1))).sum(-1)
        if bool((starts > 1).any()):
            raise ValueError("key_mask must have its real tokens contiguous in each row to decode")
    S = real.shape[1]
    place = torch.arange(S, device=real.device)
    last = torch.where(real, place, -1).amax(-1, keepdim=True)
    source = (place + last + 1) % S  # (B, S)
    index = source[:, None, :, None]
    key = key.gather(2, index.expand(-1, key.shape[1], -1, key.shape[3]))
    value = value.gather(2, index.expand(-1, value.shape[1], -1, value.shape[3]))
    return key, value, real.gather(1, source)
