"""The attention function that transformers calls for `attn_implementation="las"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longlens.hf.mask import COMPILED, EXPLICIT, LaSMask
from longlens.hf.options import check_sees_no_future
from longlens.hf.state import LaSState, state_of
from longlens.ops.las import las_attention, las_attention_varlen
from longlens.ops.las.smoothing import reach

# Arguments by which models ask for something that LaS attention has no counterpart of.
UNSUPPORTED = {
    "position_bias": "a position bias",
    "indices": "sparse attention",
    "block_indices": "sparse attention",
    "cache": "a paged cache",
    "output_attentions": "attention weights as output",
}


def las_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LaSMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """LaS attention for a transformers module; registered in `AttentionInterface`.

    Args:
        module: the attention module, whose child `las` holds the rates and the options.
        query: (B, Hq, L, D).
        key: (B, Hkv, S, D), a static cache's unused places included.
        value: (B, Hkv, S, Dv), raw.
        attention_mask: what `las_mask` made; None where the model has no mask.
        dropout: must be 0.
        scaling: factor of the scores; None: 1/sqrt(D).
        is_causal: None: the module's own `is_causal`.
        kwargs: anything else that the model passes on.

    Returns:
        (B, L, Hq, Dv), and no attention weights.

    """
    name = type(module).__name__
    state = state_of(module)
    if state is None:
        raise ValueError(
            f"{name} has no decay rates: choose LaS attention through "
            "attn_implementation='las' or model.set_attn_implementation('las')"
        )
    if dropout:
        raise ValueError(
            f"LaS attention has no dropout, got {dropout}: set the model's attention dropout to 0 "
            "(attention_dropout=0.0, in BERT and ViT attention_probs_dropout_prob=0.0)"
        )
    declared = getattr(module, "is_causal", None) if is_causal is None else is_causal
    mask = _checked(attention_mask, declared, query, key, name)
    for argument, meaning in UNSUPPORTED.items():
        asked = kwargs.get(argument)
        if asked is not None and asked is not False:
            raise ValueError(
                f"attn_implementation='las' does not support {meaning} ({argument}), which "
                f"{name} asks for"
            )
    check_sees_no_future(state.smoothing, state.window, mask.causal)
    queries, keys = query.shape[2], key.shape[2]
    used, key_mask, offset = mask.in_use(queries, keys)
    if not mask.causal and queries != keys:
        raise ValueError(
            "attn_implementation='las' supports self-attention only: positions of two sequences "
            f"have no distance, got {queries} queries and {keys} keys in {name}"
        )
    chunk = _local_pattern(mask, state, kwargs, name)
    alpha, alpha_max = state()
    options: dict[str, Any] = dict(
        alpha=alpha, alpha_max=alpha_max, window=state.window, smoothing=state.smoothing,
        edge=state.edge, chunk=chunk, local=mask.local, is_causal=mask.causal, scale=scaling,
        enable_gqa=True, softcap=kwargs.get("softcap"), sink=kwargs.get("s_aux"),
    )  # fmt: skip
    if used < keys:
        key, value = key[:, :, :used], value[:, :, :used]
    bounds, longest = _packing(mask, kwargs)
    if bounds is not None:
        out = _packed(query, key, value, key_mask, bounds.to(query.device), longest, options)
    elif chunk is not None and (key_mask is not None or mask.dropped):
        start = _block_starts(mask, key_mask, offset, chunk)
        out = _from_block_starts(query, key, value, key_mask, start, offset, options)
    else:
        out = las_attention(query, key, value, key_mask=key_mask, query_offset=offset, **options)
    return out.transpose(1, 2).contiguous(), None


def _local_pattern(mask: LaSMask, state: LaSState, kwargs: dict[str, Any], name: str) -> int | None:
    """The chunk that is in force, after checks of the sliding window and of what a cache holds."""
    refusal = None
    if kwargs.get("sliding_window") is not None and mask.local is None:
        refusal = f"{name} asks for a sliding window that its mask does not have"
    elif state.chunk is not None and (mask.chunk is not None or mask.dropped):
        refusal = f"{name} has a local pattern of its own, so chunk={state.chunk} is not possible"
    elif mask.dropped and mask.local is None and mask.chunk is None:
        refusal = f"{name} may see keys that its cache has dropped"
    elif mask.dropped and mask.local is not None and isinstance(mask.first, int):
        needed = mask.local[0] + reach(state.window, state.smoothing or "causal")[0]
        if mask.first < needed:
            refusal = (
                f"{name} needs {needed} keys before a token (window={state.window} reaches beyond "
                f"the sliding window), and the cache keeps {mask.first}: make the cache after "
                "longlens.hf.configure, by DynamicCache(config=model.config) or `generate`"
            )
    if refusal is not None:
        raise ValueError(f"attn_implementation='las': {refusal}")
    return state.chunk if mask.chunk is None else mask.chunk


def _checked(mask: Any, declared: bool | None, query: Tensor, key: Tensor, name: str) -> LaSMask:
    """The mask, if it says the same of causality as the layer does.

    A layer's word alone is not enough: transformers lets it stand for causality in some of its own
    implementations and not in others.
    """
    if mask is None:
        if declared is None or (declared and query.shape[2] > 1):
            says = "does not say whether it is causal" if declared is None else "says it is causal"
            raise ValueError(f"attn_implementation='las': {name} got no attention mask and {says}")
        causal = bool(declared)
        first = key.shape[2] - query.shape[2]
        return LaSMask(query.shape[0], query.shape[2], key.shape[2], causal, first)
    if not isinstance(mask, LaSMask):
        raise ValueError(EXPLICIT.format(mask.dtype, tuple(mask.shape)))
    if mask.refusal is not None:
        raise ValueError(mask.refusal)
    if declared is not None and declared != mask.causal:
        kinds = ("bidirectional", "causal")
        raise ValueError(
            f"attn_implementation='las': {name} says that it is {kinds[declared]}, but its mask is "
            f"{kinds[mask.causal]}"
        )
    return mask


def _packing(mask: LaSMask, kwargs: dict[str, Any]) -> tuple[Tensor | None, int]:
    """Bounds of packed sequences and the longest one's length; None: rows are sequences."""
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is not None:
        longest = kwargs.get("max_length_q")
        return bounds, int(bounds.diff().max()) if longest is None else int(longest)
    if mask.joined is not None:
        torch._assert_async(mask.joined.all(), COMPILED)
    mask.find_packing(kwargs.get("position_ids"))
    return mask.bounds, mask.longest


def _packed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bounds: Tensor, longest: int,
    options: Any,
) -> Tensor:  # fmt: skip
    """LaS attention of each packed sequence by itself."""
    if mask is not None or query.shape[2] != key.shape[2]:
        raise ValueError(
            "attn_implementation='las': packed sequences go without padding and begin with an "
            "empty cache"
        )
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    out = las_attention_varlen(q, k, v, bounds, longest, **options)
    return out.reshape(*query.shape[:1], -1, *out.shape[1:]).transpose(1, 2)


def _block_starts(mask: LaSMask, real: Tensor | None, offset: int | Tensor, chunk: int) -> Tensor:
    """Of each row the place among the keys where a block begins, not after the first query: (B,).

    Blocks are counted from the first real token, so that padding on the left moves nothing.
    """
    if not mask.dropped:
        assert real is not None
        return real.int().argmax(-1)
    padding = torch.zeros(1, dtype=torch.int64) if mask.padding is None else mask.padding
    passed = (offset + mask.dropped - padding).clamp(min=0) // chunk * chunk
    return (padding + passed - mask.dropped).expand(mask.batch)


def _from_block_starts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, first: Tensor,
    offset: int | Tensor, options: Any,
) -> Tensor:  # fmt: skip
    """Attention inside blocks that begin at `first` (B,), by moving it to the first place."""
    first = first.to(key.device)
    place = torch.arange(key.shape[2], device=key.device)
    there = (place + first[:, None]) % key.shape[2]
    key, value = _gather(key, there), _gather(value, there)
    mask = None if mask is None else mask.gather(1, there)
    if query.shape[2] < key.shape[2]:
        return las_attention(
            query, key, value, key_mask=mask, query_offset=offset - first, **options
        )
    back = (place - first[:, None]) % key.shape[2]
    out = las_attention(_gather(query, there), key, value, key_mask=mask, **options)
    padding = (place < first[:, None])[:, None, :, None]  # came to lie after all others
    return _gather(out, back).masked_fill(padding, 0)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Reorder positions: x (B, H, S, D), index (B, S)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
