"""The family written plainly: the specification of every fast form.

For one head, query i at `pos_i` (the queries are the last ones), key j at j, d = |pos_i - j|:

    s[i,j] = scale · Σ_n q_in k_jn · exp(-α d) · exp(G_in - G_jn)      G: running sum of log_gate
    s[i,j] += -slope·d - power·log(1 + d) + F_i - F_j                  F: running sum of log_forget
    a[i,j] = exp(s[i,j]) / (exp(sink) + Σ_j exp(s[i,j]))               over the keys that i may see
    a'[i,j] = Σ_t taps[t] · a[i, j+t]
    o_i    = Σ_j a'[i,j] · v_j

Each part may be absent. A constant log_gate is the decay of LaS (α = -log_gate), a constant
log_forget that of ALiBi, and taps of 1/P are the smoothing of LaS.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.family.call import DecayCall, running
from longlens.ops.las.smoothing import reach


def reference_weights(call: DecayCall) -> Tensor:
    """The matrix a', (B, H, L, S). Columns of masked keys are zero."""
    attention, visible = _attention(call)
    if call.taps is None:
        return attention
    window, S = call.taps.shape[1], attention.shape[3]
    before, after = reach(window, call.smoothing)
    taps = call.taps.to(attention.dtype)[:, :, None, None]  # (H, P, 1, 1)
    real = torch.ones_like(visible[:, :, :1]) if call.key_mask is None else _real(call)
    real = real.to(attention.dtype)  # (B or 1, 1, 1, S)
    # may a[i, k] be given to column k - t? t runs from -after to before
    targets = visible.to(attention.dtype) if call.smoothing == "masked" else real
    offsets = range(-after, before + 1)
    share = attention
    if call.edge == "renormalize":
        total = torch.zeros_like(attention)
        for n, t in enumerate(offsets):
            total = total + taps[:, n] * _shifted(targets, -t, window)
        whole = taps.sum(1)
        share = attention * (whole / torch.where(total == 0, whole, total))
    smooth = torch.zeros_like(attention)
    for n, t in enumerate(offsets):
        given = share * _shifted(targets, -t, window)
        smooth = smooth + _shifted(taps[:, n] * given, t, window)
    assert smooth.shape[3] == S
    return smooth


def reference(call: DecayCall) -> Tensor:
    """The product of that matrix and the values: (B, H, L, Dv)."""
    value = call.value
    if call.key_mask is not None:
        value = value.masked_fill(~call.key_mask[:, None, :, None], 0)
    value = value.repeat_interleave(call.query.shape[1] // value.shape[1], dim=1)
    return reference_weights(call) @ value


def _real(call: DecayCall) -> Tensor:
    assert call.key_mask is not None
    return call.key_mask[:, None, None, :]


def _shifted(x: Tensor, t: int, window: int) -> Tensor:
    """Column j takes what column j + t holds, zero beyond the ends."""
    return F.pad(x, (window, window))[..., window + t : window + t + x.shape[-1]]


def _attention(call: DecayCall) -> tuple[Tensor, Tensor]:
    """The matrix a (B, H, L, S), and which keys a query may see."""
    q, L, S = call.query, call.query.shape[2], call.key.shape[2]
    k = call.key.repeat_interleave(q.shape[1] // call.key.shape[1], dim=1)
    wide = torch.promote_types(q.dtype, torch.float32)
    j = torch.arange(S, device=q.device)
    position = j[call.offset : call.offset + L, None]
    distance = (position - j).abs()
    visible = position >= j if call.is_causal else torch.ones_like(position >= j)
    visible = visible[None, None]
    if call.key_mask is not None:
        visible = visible & _real(call)

    def per_head(rate: Tensor) -> Tensor:
        return rate.to(wide)[:, None, None]

    if call.log_gate is None:
        scores = (q @ k.transpose(-2, -1)) * call.scale
    else:
        gate = running(call.log_gate)
        gate = gate[:, :, call.offset : call.offset + L, None] - gate[:, :, None]
        decay = torch.exp(gate.to(wide).clamp(max=0.0))
        scores = (q[:, :, :, None] * k[:, :, None] * decay.to(q.dtype)).sum(-1) * call.scale
    if call.alpha is not None:
        scores = scores * torch.exp(-per_head(call.alpha) * distance).to(q.dtype)
    if call.slopes is not None:
        scores = scores - (per_head(call.slopes) * distance).to(q.dtype)
    if call.power is not None:
        scores = scores - (per_head(call.power) * torch.log1p(distance.to(wide))).to(q.dtype)
    if call.log_forget is not None:
        forget = running(call.log_forget)
        forget = forget[:, :, call.offset : call.offset + L, None] - forget[:, :, None]
        scores = scores + forget.to(q.dtype)
    scores = scores.masked_fill(~visible, float("-inf"))
    if call.sink is None:
        attention = scores.softmax(-1)
        return torch.where(visible.any(-1, keepdim=True), attention, 0), visible
    sink = call.sink.to(q.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([sink, scores], dim=-1).softmax(-1)[..., 1:], visible
