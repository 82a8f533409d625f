"""The attention matrix of any attention layer, and the mean weight by distance.

The matrix comes from the layer's own computation: LaS and softmax attention through
``las_weights``, the others by passing the columns of the identity as values. :func:`attention_map`
checks on random values that the layer's output is the matrix times the values.

Shapes: B batch, H heads, L length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.alibi import AlibiAttention
from longlens.layers.attention import SoftmaxAttention
from longlens.layers.gmlp import GMLP
from longlens.layers.heads import MultiHead, fold_chunks, fold_mask, unfold_chunks
from longlens.layers.local import LocalAttention
from longlens.layers.luna import Luna
from longlens.layers.mega import Mega


@torch.no_grad()
def attention_map(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The weights with which a layer mixes the values of x (B, L, D): (B, H, L, L).

    Returns:
        rows are queries; None where the layer has no such matrix.

    >>> from longlens.layers import build
    >>> attention_map(build("las", 8), torch.randn(1, 5, 8)).shape
    torch.Size([1, 8, 5, 5])
    """
    if isinstance(layer, SoftmaxAttention):
        return layer.weights(x)
    if isinstance(layer, Mega):
        return _mega(layer, x)
    if isinstance(layer, MultiHead) and not isinstance(layer, Luna):  # it attends to a memory
        return _by_columns(layer, x)
    if isinstance(layer, GMLP) and not layer.toeplitz:
        matrix = layer.spatial.detach()[: x.shape[1], : x.shape[1]]
        return (torch.tril(matrix) if layer.causal else matrix)[None, None]
    return None


def _by_columns(layer: MultiHead, x: Tensor) -> Tensor | None:
    """Attend to the identity, as many columns at a time as a head is wide."""
    q, k, v = layer.project(x)
    length, width = v.shape[2:]
    columns = torch.eye(length, dtype=v.dtype, device=v.device)
    columns = F.pad(columns, (0, -length % width)).split(width, dim=1)
    parts = [layer.attend(q, k, c.expand_as(v).contiguous(), None) for c in columns]
    weights = torch.cat(parts, dim=-1)[..., :length]
    # An attention that mixes its values in other ways as well has no matrix.
    expected = layer.attend(q, k, v, None)
    error = (weights @ v - expected).abs().max() / expected.abs().max()
    return weights if float(error) < 1e-3 else None


def _mega(layer: Mega, x: Tensor) -> Tensor:
    z = layer.project(layer.ema(x)).split(layer.split, dim=-1)[0]
    q, k = (t[:, None] for t in layer.queries_keys(z))
    batch, length = x.shape[:2]
    if layer.chunk is None:
        return layer.attend(q, k, torch.eye(length).to(x).expand(batch, 1, -1, -1), None)
    size = min(layer.chunk, length)
    mask = fold_mask(None, batch, length, size, x.device)
    blocks = -(-length // size)
    identity = torch.eye(size).to(x).expand(batch * blocks, 1, -1, -1)
    inside = layer.attend(fold_chunks(q, size), fold_chunks(k, size), identity, mask)
    inside = unfold_chunks(inside, batch, length)  # (B, 1, L, size): columns inside the chunk
    weights = inside.new_zeros(batch, 1, length, blocks * size)
    start = torch.arange(length, device=x.device) // size * size
    index = start[:, None] + torch.arange(size, device=x.device)
    return weights.scatter(-1, index.expand_as(inside), inside)[..., :length]


def visible_keys(layer: nn.Module, length: int) -> Tensor:
    """Which keys a query may see by the layer's build, whatever its weights: (L, L) bool.

    >>> from longlens.layers import build
    >>> visible_keys(build("las", 8, chunk=2), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    order = torch.arange(length)
    distance = order[:, None] - order
    causal = bool(getattr(layer, "causal", False))
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    chunk: Any = None
    if isinstance(layer, SoftmaxAttention | AlibiAttention | Mega):
        chunk = layer.chunk
    if chunk is not None:
        seen = seen & (order[:, None] // chunk == order // chunk)
    if isinstance(layer, LocalAttention):
        seen = seen & (distance.abs() < layer.window)
    return seen


def by_distance(weights: Tensor, seen: Tensor) -> Tensor:
    """Mean weight at every distance, relative to uniform attention: (B, H, L, L) -> (H, L).

    A query that may see n keys gives each 1/n when it attends evenly; weights are multiplied by n
    and averaged over the pairs that may see each other, so that even attention is 1 at every
    distance, however long the rows are. Distances that no pair can see get 0. Signs are dropped;
    what a causal layer sees ahead (centred smoothing) is left out.

    Args:
        weights: attention matrices.
        seen: (L, L) bool, see :func:`visible_keys`.

    >>> even = torch.tril(torch.ones(3, 3)) / torch.tensor([[1.0], [2.0], [3.0]])
    >>> by_distance(even[None, None], torch.tril(torch.ones(3, 3)).bool())
    tensor([[1., 1., 1.]])
    """
    length = weights.shape[-1]
    seen = seen.to(weights.device)
    count = seen.sum(-1, keepdim=True)
    relative = (weights.abs() * count * seen).mean(0)  # (H, L, L)
    order = torch.arange(length, device=weights.device)
    distance = (order[:, None] - order).abs().flatten()
    total = relative.new_zeros(len(relative), length)
    total.index_add_(1, distance, relative.flatten(1))
    pairs = relative.new_zeros(length).index_add_(0, distance, seen.flatten().to(relative))
    return total / pairs.clamp_min(1)


def row_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of the rows, in nats, of non-negative weights (B, H, L, L): (H,)."""
    rows = weights.abs()
    rows = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
    entropy: Tensor = torch.special.entr(rows).sum(-1).mean((0, 2))
    return entropy


def row_smoothness(weights: Tensor, seen: Tensor, most: int = 8) -> Tensor:
    """Total variation and spectral centroid of single rows, averaged: (B, H, L, L) -> (H, 2).

    A row is to attention what a kernel is to a convolution; the mean over rows would be smooth
    whatever they are. ``most`` of the queries that see at least half as many keys as any are taken.
    The measures are those of ``longlens.lens.measures``.
    """
    count = seen.sum(-1)
    wide = torch.nonzero(count >= count.max() / 2).flatten()
    chosen = wide[torch.linspace(0, len(wide) - 1, min(most, len(wide))).round().long()]
    rows = []
    for query in chosen.tolist():
        row = weights[:, :, query, seen[query].to(weights.device)].double()  # (B, H, keys)
        largest = row.abs().amax(-1).clamp_min(1e-300)
        variation = row.diff().abs().sum(-1) / largest
        power = torch.fft.rfft(row).abs() ** 2
        frequency = torch.arange(power.shape[-1], device=row.device) / row.shape[-1]
        centroid = (frequency * power).sum(-1) / power.sum(-1).clamp_min(1e-300)
        rows.append(torch.stack([variation, centroid], dim=-1).mean(0))
    return torch.stack(rows).mean(0)
