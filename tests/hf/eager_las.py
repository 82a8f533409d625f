"""LaS attention a third time: eager, on the explicit 4-D mask that transformers makes itself."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask


def eager_las(
    module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **_
):
    """Everything but the rates and the window comes from transformers: mask, scale and tokens."""
    state = module.las
    heads, L, S = query.shape[1], query.shape[2], key.shape[2]
    key, value = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (key, value))
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    scores = (query @ key.mT) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (torch.arange(L)[:, None] + (S - L) - torch.arange(S)).abs()
    scores = scores * torch.exp(-state.alpha[:, None, None].to(scores) * distance)
    visible = torch.ones(1, 1, L, S, dtype=torch.bool)
    if attention_mask is not None:
        visible = attention_mask == 0
    causal = L > 1 and not visible.triu(1 + S - L).any()
    scores = scores.masked_fill(~visible, -torch.inf)
    if s_aux is not None:
        sink = s_aux.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(-1)[..., :S].nan_to_num(0.0)
    shifts = range(state.window) if causal else range(-(state.window // 2), state.window // 2 + 1)
    k, j = torch.arange(S)[:, None], torch.arange(S)[None]
    average = sum((k - j == t) for t in shifts).to(weights) / state.window
    real = visible.any(-2, keepdim=True).to(weights)  # (B, 1, 1, S)
    # chunks end averages: no query sees positions of two of them
    together = (visible.mT.to(weights) @ visible.to(weights) > 0).to(weights)
    out = (weights @ (average * together) * real) @ value
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("eager_las", eager_las)
AttentionMaskInterface.register("eager_las", eager_mask)
