"""The mask function: what transformers knows of padding and positions, in O(B·S).

transformers makes the mask once per forward and hands it to every attention layer. Ours is one of

- None: every key is real, and the queries are the last of them;
- uint8 (B, 1, 1, n): the first n keys are in use, the queries are their last, 1 is a real key;
- uint8 (B, 0, 1, n): the same without padding;
- int64 (B, 1, 1, 1 + S): the position of the first query, then 1 for a real key: for a static
  cache whose length only the device knows; (B, 1, 1, 1) without padding.

Four dimensions, since transformers takes such a mask for finished and passes it on; integers, so
that no mask of somebody else is mistaken for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

_EXPLICIT = (
    "attn_implementation='las' takes an attention_mask of shape (batch, length) with 1 for real "
    "tokens, never an explicit mask of queries by keys; got {} of shape {}"
)


def las_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    *,
    local_size: int | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """Hand over padding (B, S) and query positions; registered in `AttentionMaskInterface`."""
    _check_pattern(mask_function, local_size, use_vmap, kv_offset, batch_size, q_length, device)
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(_EXPLICIT.format(attention_mask.dtype, tuple(attention_mask.shape)))
    if mask_function is bidirectional_mask_function:
        return _padding(attention_mask, kv_length, kv_length, batch_size, device)
    if isinstance(q_offset, Tensor):
        # transformers forbids shortcuts where it may compile the decoding step: shapes must stay
        if not _readable(q_offset) or not allow_is_causal_skip:
            # A copy: the offset is the cache's own counter, which each layer moves on in place.
            row = q_offset.to(torch.int64).reshape(1, 1).repeat(batch_size, 1)
            if attention_mask is not None and not _no_padding(attention_mask, q_offset, q_length):
                row = torch.cat([row, _fit(attention_mask, kv_length).to(torch.int64)], dim=1)
            return row[:, None, None]
        q_offset = int(q_offset)
    return _padding(attention_mask, q_offset + q_length, kv_length, batch_size, device)


def read_mask(
    mask: Tensor | None, queries: int, keys: int
) -> tuple[int, Tensor | None, int | Tensor]:
    """How many keys are in use, the key mask (B, that many) or None, the first query's position."""
    if mask is None:
        return keys, None, keys - queries
    ours = mask.ndim == 4 and mask.shape[2] == 1 and mask.dtype in (torch.uint8, torch.int64)
    if not ours:
        raise ValueError(_EXPLICIT.format(mask.dtype, tuple(mask.shape)))
    if mask.dtype == torch.uint8:
        used = mask.shape[3]
        if used > keys:
            raise ValueError(f"attention_mask covers {used} positions, but there are {keys} keys")
        return used, (mask[:, 0, 0].bool() if mask.shape[1] else None), used - queries
    first, covered = mask[:1, 0, 0, 0], mask.shape[3] - 1
    if covered not in (0, keys):
        raise ValueError(f"attention_mask covers {covered} positions, but there are {keys} keys")
    real = mask[:, 0, 0, 1:].bool() if covered else None
    if first.device.type == "cpu" and _readable(first):  # costs nothing there, saves unused keys
        offset = int(first)
        used = offset + queries
        return used, (None if real is None else real[:, :used]), offset
    return keys, real, first


def _readable(x: Tensor) -> bool:
    return not (torch.compiler.is_compiling() or is_fake(x))


def _no_padding(attention_mask: Tensor, q_offset: int | Tensor, q_length: int) -> bool:
    """Whether it is known that no position up to the last query is padding."""
    return _readable(attention_mask) and bool(_fit(attention_mask, int(q_offset) + q_length).all())


def _fit(attention_mask: Tensor, length: int) -> Tensor:
    """Cut or pad (with padding) to `length` positions; what lies beyond is in the future."""
    return F.pad(attention_mask, (0, length - attention_mask.shape[1]))


def _padding(
    attention_mask: Tensor | None, used: int, kv_length: int, batch: int, device: Any
) -> Tensor | None:
    if attention_mask is not None and not _no_padding(attention_mask, 0, used):
        return _fit(attention_mask, used).to(torch.uint8)[:, None, None]
    if used == kv_length:
        return None
    return torch.empty(batch, 0, 1, used, dtype=torch.uint8, device=device)


def _check_pattern(
    function: Callable[..., Any], local_size: int | None, use_vmap: bool, kv_offset: int,
    batch: int, length: int, device: Any,
) -> None:  # fmt: skip
    """Raise for everything but plain causal and plain bidirectional attention."""
    if local_size is not None or kv_offset:
        raise ValueError(
            "attn_implementation='las' has no sliding-window or chunked masks, got a local size of "
            f"{local_size}; build the model with sliding_window=None (for blocks of LaS attention "
            "see longlens.hf.configure(model, chunk=...))"
        )
    if function is causal_mask_function or function is bidirectional_mask_function:
        return
    message = (
        "attn_implementation='las' takes one sequence per row: packed sequences (position_ids that "
        "start again, without an attention_mask) and custom mask patterns are not supported"
    )
    if use_vmap or not torch.compiler.is_compiling():
        raise ValueError(message)
    # A compiled forward without attention_mask always looks packed, and only the device knows
    # whether it is. If each query sees its predecessor and not its successor, it is not.
    row = torch.arange(batch, device=device)[:, None]
    i = torch.arange(length - 1, device=device)[None]
    plain = function(row, 0, i + 1, i) & ~function(row, 0, i, i + 1)
    torch._assert_async(plain.all(), message)
