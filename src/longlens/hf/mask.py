"""The mask function: what transformers knows of padding and positions, in O(B·S).

transformers makes the mask once per forward and hands it to every attention layer. Ours is no
tensor but a `LaSMask`, which says what kind of mask was asked for, and which nobody else can
mistake for numbers: whatever computes with it raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_bidirectional_overlay,
)

from longlens.ops.las.checks import may_read

EXPLICIT = (
    "attn_implementation='las' takes an attention_mask of shape (batch, length) with 1 for real "
    "tokens, never an explicit mask of queries by keys; got {} of shape {}"
)
CUSTOM = (
    "attn_implementation='las' takes causal and bidirectional attention, sliding windows, chunks "
    "and packed sequences; this model asks for a mask pattern of its own"
)
COMPILED = (
    "attn_implementation='las' cannot find packed sequences in compiled code: pass cu_seq_lens_q "
    "and max_length_q, as DataCollatorWithFlattening(return_flash_attn_kwargs=True) does"
)
MISREAD = (
    "attn_implementation='las': a part of this model other than its attention layers reads the "
    "attention mask, which LaSMask cannot serve"
)


@dataclass(eq=False)
class LaSMask:
    """Padding and positions of one forward: (batch, queries) tokens that look at `keys` places."""

    batch: int
    queries: int
    keys: int  # places for keys, those of a static cache that are not in use yet included
    causal: bool
    first: int | Tensor = 0  # the first query's place; a tensor where only the device knows it
    dropped: int = 0  # keys before the first that a cache holds no more
    local: tuple[int, int] | None = None  # how far a sliding window reaches to the left and right
    chunk: int | None = None  # positions in a block
    padding: Tensor | None = None  # (B,) tokens before the first real one; blocks begin after them
    real: Tensor | None = None  # (B, keys), True for a real key; None: no padding
    bounds: Tensor | None = None  # where packed sequences begin and end, in the flattened batch
    longest: int = 0  # of the packed sequences
    joined: Tensor | None = (
        None  # (B, L-1) in compiled code, which cannot look whether all are True
    )
    packing_known: bool = False  # `bounds` is the last word
    refusal: str | None = None  # why no LaS attention exists for the pattern that was asked for

    ndim = 4  # transformers takes a mask of four dimensions for finished and passes it on

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As of the explicit mask that this one stands for."""
        return self.batch, 1, self.queries, self.keys

    def dim(self) -> int:
        """As of the explicit mask that this one stands for."""
        return self.ndim

    def contiguous(self) -> LaSMask:
        """`generate` asks for it before a compiled step."""
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{MISREAD} ({name})")

    def __getitem__(self, index: object) -> NoReturn:
        raise ValueError(f"{MISREAD} (slicing)")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"{MISREAD} ({getattr(function, '__name__', function)})")

    def find_packing(self, position_ids: Tensor | None) -> None:
        """Look once for positions that start again at 0.

        transformers does so in calls without a cache alone, but a prompt may be packed, too.
        """
        if self.packing_known:
            return
        self.packing_known = True
        begins = isinstance(self.first, int) and self.first == self.dropped == 0
        whole = self.causal and self.queries > 1 and begins
        if whole and position_ids is not None and position_ids.ndim == 2 and may_read(position_ids):
            joined = position_ids.diff(dim=-1) == 1
            if not joined.all() and (position_ids[:, 1:][~joined] == 0).all():
                self.bounds, self.longest = find_bounds(joined.expand(self.batch, -1))

    def in_use(self, queries: int, keys: int) -> tuple[int, Tensor | None, int | Tensor]:
        """How many keys are in use, which of these are real, and the first query's position."""
        if (queries, keys) != (self.queries, self.keys):
            raise ValueError(
                "attn_implementation='las': the attention mask is one of "
                f"{self.queries} queries and {self.keys} keys, but this layer has {queries} and "
                f"{keys}"
            )
        first = self.first
        if isinstance(first, Tensor):
            if not (first.is_cpu and may_read(first)):
                return keys, self.real, first
            first = int(first)  # costs nothing on a CPU, and saves unused keys
        used = first + queries if self.causal else keys
        return used, (None if self.real is None else self.real[:, :used]), first


def las_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | LaSMask | None = None,
    *,
    local_size: int | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **rest: Any,
) -> LaSMask:
    """Hand over padding (B, S) and query positions; registered in `AttentionMaskInterface`.

    A pattern that LaS attention does not have is refused by the layer that uses the mask: some
    models make masks that none of their layers takes.
    """
    if isinstance(attention_mask, LaSMask):
        return attention_mask
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(EXPLICIT.format(attention_mask.dtype, tuple(attention_mask.shape)))
    pattern = None if use_vmap else find_pattern(mask_function, local_size, rest)
    causal = pattern is None or pattern.causal
    shape: dict[str, Any] = dict(batch=batch_size, queries=q_length, keys=kv_length, causal=causal)
    if pattern is None:
        return LaSMask(**shape, refusal=CUSTOM)
    shape.update(dropped=kv_offset, local=pattern.local, chunk=pattern.chunk)
    if pattern.packed is not None and attention_mask is None and q_length > 1:
        joined = _joined(pattern.packed, batch_size, q_length, device)
        if not may_read(joined):  # a compiled forward without attention_mask always looks packed
            return LaSMask(**shape, joined=joined, packing_known=True)
        bounds, longest = find_bounds(joined)
        return LaSMask(**shape, bounds=bounds, longest=longest, packing_known=True)
    first: int | Tensor = q_offset
    if isinstance(q_offset, Tensor):
        # transformers forbids shortcuts where it may compile the decoding step: shapes must stay
        if may_read(q_offset) and allow_is_causal_skip:
            first = int(q_offset)
        else:  # a copy: the offset is the cache's own counter, which each layer moves on in place
            first = q_offset.to(torch.int64).reshape(1).clone()
    first = first - kv_offset
    if attention_mask is not None:
        if pattern.chunk is not None:
            shape.update(padding=(attention_mask.cumsum(-1) == 0).sum(-1))
        attention_mask = attention_mask[:, kv_offset:]
        used = first + q_length if causal else kv_length
        if not _no_padding(attention_mask, used):
            shape.update(real=_fit(attention_mask, kv_length).bool())
    return LaSMask(**shape, first=first, packing_known=attention_mask is not None)


class Pattern(NamedTuple):
    """What a mask function lets a query see."""

    causal: bool
    local: tuple[int, int] | None = None
    chunk: int | None = None
    packed: Callable[..., Any] | None = None  # whether two tokens are of one packed sequence


def find_pattern(function: Any, local_size: int | None, rest: dict[str, Any]) -> Pattern | None:
    """The pattern of transformers' own mask functions; None for any other.

    Compiled code cannot look into a function, and goes by the arguments that come with it.
    """
    if torch.compiler.is_compiling():
        return _declared_pattern(function, local_size, rest)
    found: dict[str, Any] = {}
    for leaf in _leaves(function):
        name = getattr(leaf, "__qualname__", "").partition(".")[0]
        if leaf in (causal_mask_function, bidirectional_mask_function):
            found["causal"] = leaf is causal_mask_function
        elif name in ("sliding_window_overlay", "sliding_window_bidirectional_overlay"):
            found["local"] = _sides(leaf, inspect.getclosurevars(leaf).nonlocals["sliding_window"])
        elif name == "chunked_overlay":
            found["chunk"] = inspect.getclosurevars(leaf).nonlocals["chunk_size"]
        elif name == "packed_sequence_mask_function":
            found["packed"] = leaf
        else:
            return None
    if "causal" not in found:
        return None
    if found["causal"] and "local" in found:
        found["local"] = (found["local"][0], 0)
    return Pattern(**found)


def _leaves(function: Any) -> Iterator[Any]:
    """The mask functions of which `and_masks` made one."""
    if getattr(function, "__qualname__", "").startswith("and_masks."):
        for part in inspect.getclosurevars(function).nonlocals["mask_functions"]:
            yield from _leaves(part)
    else:
        yield function


def _sides(overlay: Callable[..., Any], size: int) -> tuple[int, int]:
    """How far a window of `size` reaches; versions differ in whether its end belongs to it."""
    near = torch.tensor([size - 1, size, size + 1])
    here = torch.tensor(2 * size + 2)
    left, right = (int(overlay(0, 0, here, here + s * near).sum()) for s in (-1, 1))
    return size - 2 + left, size - 2 + right


def _declared_pattern(
    function: Any, local_size: int | None, rest: dict[str, Any]
) -> Pattern | None:
    """The pattern by the arguments of the call."""
    if function in (causal_mask_function, bidirectional_mask_function):
        return Pattern(function is causal_mask_function)
    if getattr(function, "__name__", "") != "and_mask":
        return None
    causal = "allow_is_bidirectional_skip" not in rest
    packed = function if causal else None  # of windows, too, neighbours see each other
    if local_size is None:
        return Pattern(causal, packed=packed)
    if getattr(rest.get("config"), "attention_chunk_size", None) is not None:
        return None
    left = local_size - 1 if causal else local_size + TWO_SIDED_END
    return Pattern(causal, (left, 0 if causal else left), packed=packed)


TWO_SIDED_END = _sides(sliding_window_bidirectional_overlay(4), 4)[0] - 4  # 0: it belongs to it


def find_bounds(joined: Tensor) -> tuple[Tensor, int]:
    """The packed sequences' bounds (N+1,) in the flattened batch, and the longest one's length.

    Args:
        joined: (B, L-1) bool, whether token i+1 belongs to the sequence of token i.

    >>> find_bounds(torch.tensor([[True, False, True, True]]))
    (tensor([0, 2, 5], dtype=torch.int32), 3)

    """
    starts = F.pad(~joined, (1, 0), value=True).flatten().nonzero().flatten()
    bounds = F.pad(starts, (0, 1), value=joined.shape[0] * (joined.shape[1] + 1))
    return bounds.to(torch.int32), int(bounds.diff().max())


def _joined(function: Callable[..., Any], batch: int, length: int, device: Any) -> Tensor:
    """Whether each token sees its predecessor: (B, L-1)."""
    row = torch.arange(batch, device=device)[:, None]
    i = torch.arange(length - 1, device=device)[None]
    joined: Tensor = function(row, 0, i + 1, i).expand(batch, length - 1)
    return joined


def _no_padding(attention_mask: Tensor, used: int | Tensor) -> bool:
    """Whether it is known that no position up to the last query is padding."""
    if not may_read(attention_mask) or (isinstance(used, Tensor) and not may_read(used)):
        return False
    return bool(_fit(attention_mask, int(used)).all())


def _fit(attention_mask: Tensor, length: int) -> Tensor:
    """Cut or pad (with padding) to `length` positions; what lies beyond is in the future."""
    return F.pad(attention_mask, (0, length - attention_mask.shape[1]))
