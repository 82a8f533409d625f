"""How far off a result of LaS attention may be, from the data of the call in float64."""

import math

import torch

from longlens.ops.las.call import Call
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.reference import reference_weights


def allowed_error(dtype: torch.dtype, q, k, v, call: dict):
    """How far off each number of the output may be: (B, H, L, Dv), from the data in float64.

    A computation in the dtype perturbs each score by what rounding q and k once, as a fold does,
    and adding up in float32 makes of it (statistically for the first, at eight standard deviations,
    rigorously for the second), and α·distance by its rounding. Weights change by the exponential of
    that; they, the pooled values and the result are rounded as well.
    """
    u = torch.finfo(dtype).eps / 2
    w = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    products = _norm_of_products(q, k) * call["scale"]
    total = (q.abs() @ k.abs().transpose(-2, -1)) * call["scale"]
    steps = 8 + 2 * math.sqrt(q.shape[3])
    if call["alpha"] is not None:
        j = torch.arange(k.shape[2])
        offset = torch.as_tensor(call["query_offset"]).reshape(-1, 1, 1, 1)
        distance = (torch.arange(q.shape[2])[:, None] + offset - j).abs()
        rate = call["alpha"][:, None, None]
        decay = torch.exp(-rate * distance)
        products, total = products * decay, total * decay
        span = max(q.shape[2], k.shape[2])
        steps = steps + 2 * (rate * (distance + span)).clamp(max=FOLD_RANGE[torch.float64])
    weights = reference_weights(Call(q, k, v, **dict(call, window=1)))
    score_error = 8 * u * products + w * steps * total
    score_error = torch.where(weights > 0, score_error, 0)
    row_error = (weights * score_error).sum(-1, keepdim=True)
    row_error = row_error + 4 * w * torch.where(weights > 0, total, 0).amax(-1, keepdim=True)
    change = torch.expm1((score_error + row_error).clamp(max=40.0))
    change = (weights * change).sum(-1, keepdim=True).clamp(max=2.0)
    largest = (
        v.masked_fill(~call["key_mask"][:, None, :, None], 0) if call["key_mask"] is not None else v
    )
    largest = largest.abs().amax(2, keepdim=True)
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return largest * (change + 8 * u + 32 * w) + 4 * tiny


def gradient_terms(q, k, v, grad, call: dict) -> list[float]:
    """The size of the terms that add up to the gradients of q, k, v and α, before they cancel.

    The gradient of a score is p·(dp - δ); dp and δ are sums over the columns of values. A fold
    weighs its terms of α's gradient by positions, where distances are meant.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    weights = reference_weights(Call(q, k, v, **dict(call, window=1)))
    columns = v.abs().amax(2, keepdim=True)
    inner = 2 * (grad * columns).square().sum(-1, keepdim=True).sqrt()
    scores = weights * inner * call["scale"]
    of_alpha = 0.0
    if call["alpha"] is not None:
        j = torch.arange(k.shape[2])
        offset = torch.as_tensor(call["query_offset"]).reshape(-1, 1, 1, 1)
        distance = (torch.arange(q.shape[2])[:, None] + offset - j).abs()
        scores = scores * torch.exp(-call["alpha"][:, None, None] * distance)
        products = _norm_of_products(q, k)
        lever = distance + max(q.shape[2], k.shape[2])
        of_alpha = float((scores * products * lever).square().sum((0, 2, 3)).sqrt().max())
    of_q, of_k = scores @ k.abs(), scores.transpose(-2, -1) @ q.abs()
    of_v = weights.transpose(-2, -1) @ grad.abs()
    of_k, of_v = (t.unflatten(1, (-1, group)).sum(2) for t in (of_k, of_v))
    return [float(t.max()) for t in (of_q, of_k, of_v)] + [of_alpha]


def _norm_of_products(q, k):
    """The root of Σ_d (q_d·k_d)² for each pair; squares of the largest numbers would overflow."""
    sizes = [t.abs().amax().clamp(min=1e-300) for t in (q, k)]
    q, k = q / sizes[0], k / sizes[1]
    return (q.square() @ k.square().transpose(-2, -1)).sqrt() * sizes[0] * sizes[1]
