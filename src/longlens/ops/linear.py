"""Attention without softmax: feature maps, and causal linear attention in linear time.

With a positive feature map φ the weight of key j for query i is φ(q_i)·φ(k_j), and sums over keys
can be taken before the query is known:

    y_i = φ(q_i) Σ_j φ(k_j) v_jᵀ  /  φ(q_i) Σ_j φ(k_j)

Shapes: B batch, H heads, L length, F features, D value width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from longlens.ops.numerics import full_precision, no_autocast

if TYPE_CHECKING:
    from torch import Tensor


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere (Katharopoulos et al., arXiv 2006.16236, Eq. 7).

    >>> elu_features(torch.tensor([0.0, 2.0]))
    tensor([1., 3.])
    """
    # Not F.elu: its compiled backward states the wrong strides for transposed heads (torch 2.13).
    return torch.where(x > 0, x + 1, torch.exp(x.clamp_max(0)))


def orthogonal_gaussian(
    rows: int, columns: int, generator: torch.Generator | None = None
) -> Tensor:
    """Random rows, orthogonal within each block of ``columns``, with the lengths of Gaussian rows.

    Orthogonality lowers the variance of the softmax estimate (Performer, arXiv 2009.14794,
    Theorem 2); the norms are drawn as chi variables so that each row is marginally Gaussian.

    Returns:
        (rows, columns).

    >>> w = orthogonal_gaussian(4, 4)
    >>> gram = w @ w.T
    >>> bool((gram - gram.diag().diag()).abs().max() < 1e-4)
    True
    """
    blocks = -(-rows // columns)
    # In float32 at least: no half precision has a QR.
    kind: Any = dict(dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))
    q, r = torch.linalg.qr(torch.randn(blocks, columns, columns, generator=generator, **kind))
    # QR fixes signs by its own rule; with those of R's diagonal every direction is as likely.
    q = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1))[:, None]
    norms = torch.randn(rows, columns, generator=generator, **kind).norm(dim=-1, keepdim=True)
    directions: Tensor = q.mT.reshape(blocks * columns, columns)[:rows]
    scaled: Tensor = directions * norms
    return scaled.to(torch.get_default_dtype())


def softmax_features(x: Tensor, projection: Tensor, *, is_query: bool) -> Tensor:
    """Positive random features whose inner products estimate exp(q·k) (FAVOR+, Lemma 1).

        φ(x) = exp(w·x - |x|²/2) / √F

    A factor that depends on the query alone cancels in attention, so queries are shifted by their
    own maximum. Keys are not shifted: a shift shared by all keys would make each output depend,
    by rounding, on keys it must not see.

    Args:
        x: (..., D), already multiplied by D^(-1/4).
        projection: (F, D).
        is_query: shift by the maximum over features.

    >>> x = torch.zeros(1, 4)
    >>> softmax_features(x, torch.ones(2, 4), is_query=False)
    tensor([[0.7071, 0.7071]])
    """
    logits = x @ projection.mT - x.square().sum(-1, keepdim=True) / 2
    if is_query:
        logits = logits - logits.amax(-1, keepdim=True).detach()
    return torch.exp(logits) / math.sqrt(projection.shape[0])


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    normalize: bool = True,
    chunk: int = 64,
) -> Tensor:
    """Attention with weights query_i · key_j, linear in L.

    The causal form adds, chunk by chunk, the masked products inside the chunk to the state that
    the earlier chunks left behind.

    Args:
        query: (B, H, L, F), features already applied (non-negative when ``normalize``).
        key: (B, H, L, F); padding is a key of zeros.
        value: (B, H, L, D).
        causal: key j counts for query i only where j <= i.
        normalize: divide by the sum of the weights.
        chunk: block length of the causal form.

    Returns:
        (B, H, L, D) in the dtype of ``value``.

    >>> one = torch.ones(1, 1, 3, 1)
    >>> linear_attention(one, one, torch.tensor([0.0, 2.0, 4.0]).view(1, 1, 3, 1),
    ...                  causal=True).flatten()
    tensor([0., 1., 2.])
    """
    dtype = value.dtype
    with no_autocast(value):
        query, key, value = (full_precision(t) for t in (query, key, value))
        if normalize:  # the sum of the weights is one more value column, of ones
            value = F.pad(value, (0, 1), value=1.0)
        out = _causal(query, key, value, chunk) if causal else query @ (key.mT @ value)
        if normalize:
            tiny = torch.finfo(out.dtype).tiny
            out = out[..., :-1] / out[..., -1:].clamp_min(tiny)
    return out.to(dtype)


def _causal(query: Tensor, key: Tensor, value: Tensor, chunk: int) -> Tensor:
    length = query.shape[2]
    padding = -length % chunk
    q, k, v = (  # (B, H, blocks, chunk, ·)
        F.pad(t, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for t in (query, key, value)
    )
    state = (k.mT @ v).cumsum(dim=2)
    before = F.pad(state[:, :, :-1], (0, 0, 0, 0, 1, 0))
    inside = torch.tril(q @ k.mT) @ v
    out: Tensor = (inside + q @ before).flatten(2, 3)[:, :, :length]
    return out


def linear_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, normalize: bool = True
) -> Tensor:
    """:func:`linear_attention` with the L×L matrix of weights written out: the specification.

    >>> one = torch.ones(1, 1, 3, 1)
    >>> linear_attention_reference(one, one, one, causal=True).flatten()
    tensor([1., 1., 1.])
    """
    weights = query @ key.mT
    if causal:
        weights = torch.tril(weights)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights @ value
