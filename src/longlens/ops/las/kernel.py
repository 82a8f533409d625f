"""Routes `kernel` and `mirrored`: our Triton kernels, for what SDPA serves badly or not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.ops.las.call import Call
from longlens.ops.las.parts import Parts
from longlens.ops.las.plan import Plan
from longlens.ops.las.prepare import prologue_inputs, prologue_steps, repeat_heads
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.las.triton.mirror_op import mirrored_attention


def run(call: Call, plan: Plan) -> Tensor:
    """LaS attention whatever α and the mask are: (B, Hq, L, Dv)."""
    assert not isinstance(call.query_offset, Tensor)
    q, k, v = prologue_inputs(call, fold=False)
    lag = call.window // 2 if call.banded else 0
    out, lse = kernel_attention(
        q, k, v, alpha=call.alpha, mask=call.key_mask, offset=call.query_offset,
        lag=lag if call.is_causal else None, local=call.local, scale=call.scale,
    )  # fmt: skip
    if not call.banded:
        return out if call.sink is None else with_sink(out, lse, call.sink)
    k, raw = repeat_heads(q, k, call.value)
    parts = Parts(call.alpha, None, call.scale, call.key_mask)
    left = None if call.local is None else call.local[0]
    parts.band(q, k, raw, call.query_offset, call.window, call.edge, left)
    band = [tensors for _, tensors in parts.items]
    if call.sink is not None:
        score = call.sink.to(lse.dtype)[:, None, None].expand(*lse.shape[:2], 1, lse.shape[2])
        band.append([score, torch.zeros_like(out)[:, :, None]])
    return with_band(out, lse, band)


def steps(call: Call, plan: Plan) -> list[str]:
    """The kernels of `run`."""
    after = "with_band" if call.banded else "with_sink"
    merges = call.banded or call.sink is not None
    return [*prologue_steps(call, fold=False), "forward_kernel", *[after] * merges]


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """Add to a softmax one key of score `sink` (Hq,) whose value is zero."""
    share = torch.sigmoid(lse - sink.to(lse.dtype)[:, None])
    return (out * share[..., None]).to(out.dtype)


def with_band(out: Tensor, lse: Tensor, band: list[list[Tensor]]) -> Tensor:
    """Add single keys, each with its score (B, H, 1, L) and value (B, H, 1, L, D), to a softmax."""
    scores = torch.stack([lse, *(score[:, :, 0] for score, _ in band)])
    top = scores.detach().amax(0)
    weights = torch.exp(scores - top.nan_to_num(neginf=0.0))
    total = weights.sum(0)
    weights = weights / total.masked_fill(total == 0, 1.0)
    merged = out * weights[0, ..., None]
    for (_, value), weight in zip(band, weights[1:], strict=True):
        merged = merged + value[:, :, 0] * weight[..., None]
    return merged.to(out.dtype)


def run_mirrored(call: Call, plan: Plan) -> Tensor:
    """Two-sided decay in range, square and unmasked, by one causal call over both triangles."""
    assert call.alpha is not None
    q, k, v = prologue_inputs(call, fold=False)
    return mirrored_attention(q, k, v, call.alpha, call.scale)


def mirrored_steps(call: Call, plan: Plan) -> list[str]:
    """The kernels of `run_mirrored`; the attention between them is cuDNN's on a GPU."""
    attention = "_scaled_dot_product_cudnn_attention" if call.query.is_cuda else "flash_forward"
    return [*prologue_steps(call, fold=False), "fold_both", attention, "merge_both"]
