"""LaS attention a second time, from the text alone: numpy, one query at a time, no shared code.

The tests trust the product's reference only because it agrees with this.
"""

import numpy as np


def oracle(
    query,
    key,
    value,
    *,
    alpha=None,
    window=1,
    smoothing="causal",
    edge="zero",
    is_causal=True,
    key_mask=None,
    query_offset=None,
    chunk=None,
    local=None,
    softcap=None,
    sink=None,
    scale=None,
):
    """query (B, Hq, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv), all float64 numpy arrays."""
    B, heads, L, D = query.shape
    kv_heads, S = key.shape[1:3]
    scale = 1 / np.sqrt(D) if scale is None else scale
    offsets = np.broadcast_to(S - L if query_offset is None else query_offset, (B,))
    shifts = range(window) if smoothing == "causal" else range(-(window // 2), window // 2 + 1)
    out = np.zeros((B, heads, L, value.shape[3]))
    for b, h, i in np.ndindex(B, heads, L):
        g = h * kv_heads // heads
        position = i + int(offsets[b])
        exists = [
            (key_mask is None or bool(key_mask[b, j]))
            and (chunk is None or j // chunk == position // chunk)
            for j in range(S)
        ]
        seen = [j for j in range(S) if exists[j] and (j <= position or not is_causal)]
        if local is not None:
            left, right = local if isinstance(local, tuple) else (local - 1, local - 1)
            seen = [j for j in seen if position - left <= j <= position + right]
        if not seen:
            continue
        scores = np.array([scale * query[b, h, i] @ key[b, g, j] for j in seen])
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if alpha is not None:
            scores = scores * np.exp(-alpha[h] * np.abs(position - np.array(seen)))
        attention = np.exp(scores - scores.max())
        attention /= attention.sum() + (0 if sink is None else np.exp(sink[h] - scores.max()))
        for a, k in zip(attention, seen, strict=True):
            receivers = [
                k - t
                for t in shifts
                if 0 <= k - t < S and exists[k - t] and (smoothing != "masked" or k - t <= position)
            ]
            share = a / (window if edge == "zero" else len(receivers))
            out[b, h, i] += share * value[b, g, receivers].sum(axis=0)
    return out
