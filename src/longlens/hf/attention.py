"""The attention function that transformers calls for `attn_implementation="las"`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longlens.hf.mask import read_mask
from longlens.hf.options import check_sees_no_future
from longlens.hf.state import LaSState
from longlens.ops.las import las_attention

# Arguments by which models ask for something that LaS attention has no counterpart of.
UNSUPPORTED = {
    "sliding_window": "a sliding window",
    "softcap": "soft-capped scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "cu_seq_lens_q": "packed sequences",
    "cache": "a paged cache",
    "output_attentions": "attention weights as output",
}


def las_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
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
        attention_mask: what `las_mask` made.
        dropout: must be 0.
        scaling: factor of the scores; None: 1/sqrt(D).
        is_causal: None: the module's own `is_causal`.
        kwargs: anything else that the model passes on.

    Returns:
        (B, L, Hq, Dv), and no attention weights.

    """
    state = getattr(module, "las", None)
    if not isinstance(state, LaSState):
        raise ValueError(
            f"{type(module).__name__} has no decay rates: choose LaS attention through "
            "attn_implementation='las' or model.set_attn_implementation('las')"
        )
    for name, meaning in UNSUPPORTED.items():
        asked = kwargs.get(name)
        if asked is not None and asked is not False:
            raise ValueError(f"attn_implementation='las' does not support {meaning} ({name})")
    if dropout:
        raise ValueError(
            f"LaS attention has no dropout, got {dropout}: set the model's attention dropout to 0 "
            "(attention_dropout=0.0, in BERT and ViT attention_probs_dropout_prob=0.0)"
        )
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    check_sees_no_future(state.smoothing, state.window, causal)
    queries, keys = query.shape[2], key.shape[2]
    used, key_mask, offset = read_mask(attention_mask, queries, keys)
    if not causal and queries != keys:
        raise ValueError(
            "attn_implementation='las' supports self-attention only: positions of two sequences "
            f"have no distance, got {queries} queries and {keys} keys"
        )
    alpha, alpha_max = state.rates()
    options: dict[str, Any] = dict(
        alpha=alpha, alpha_max=alpha_max, window=state.window, smoothing=state.smoothing,
        edge=state.edge, chunk=state.chunk, is_causal=causal, scale=scaling, enable_gqa=True,
    )  # fmt: skip
    if used < keys:
        key, value = key[:, :, :used], value[:, :, :used]
    if state.chunk is not None and key_mask is not None:
        out = _chunks_from_first_token(query, key, value, key_mask, offset, options)
    else:
        out = las_attention(query, key, value, key_mask=key_mask, query_offset=offset, **options)
    return out.transpose(1, 2).contiguous(), None


def _chunks_from_first_token(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, offset: int | Tensor, options: Any
) -> Tensor:
    """Count blocks from each row's first real token, so that padding on the left moves nothing."""
    place = torch.arange(mask.shape[1], device=mask.device)
    first = mask.int().argmax(-1)  # (B,)
    there = (place + first[:, None]) % mask.shape[1]
    key, value, mask = _gather(key, there), _gather(value, there), mask.gather(1, there)
    if query.shape[2] < mask.shape[1]:
        return las_attention(
            query, key, value, key_mask=mask, query_offset=offset - first, **options
        )
    back = (place - first[:, None]) % mask.shape[1]
    return _gather(las_attention(_gather(query, there), key, value, key_mask=mask, **options), back)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Reorder positions: x (B, H, S, D), index (B, S)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
