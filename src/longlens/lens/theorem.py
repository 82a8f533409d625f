"""Attention that is a convolution: the construction behind Theorem B.1 of the LaS paper.

One softmax head over L tokens and one empty token computes y = k * u for a kernel k without
negative entries. Its queries are the logarithms of the convolution matrix, its keys the identity,
and the empty token takes what a row lacks of the kernel's sum c, so that all rows have the same
normaliser:

    W_q[i, j] = ln k[i-j]   (tokens)       W_q[i, empty] = ln Σ_{t > i} k[t]
    W_k = √d·I,  v_j = c·u_j                softmax(W_q)[i, j] = k[i-j] / c

Where the printed proof needs a closer reading, and what is done here:

- *Signs.* It is stated for any kernel, but ln k exists for k ≥ 0 alone, and no other choice helps:
  a head's weights are positive and its values linear in u, so its response to every u_j has one
  sign. A signed kernel is the difference of two heads, for its positive and its negative part.
- *Normalisers.* The terms c_i are right as defined (c_L = 0, an empty sum), but c - Σ_{t ≤ i} k[t]
  would cancel: they are summed from the tail. A kernel of zeros leaves the softmax of a row of
  ln 0; here such a head attends to the empty token and its values are scaled by 0.
- *ln 0.* With -∞ in W_q the product of a one-hot position with W_q is 0·(-∞) = NaN. A finite score
  so low that its exponential is exactly 0 in the working precision stands in for it.
- *The empty token stands last*, where no causal mask lets a query see it, though the paper's models
  are causal. ``empty="first"`` puts it before the sequence: then the mask changes nothing and every
  shorter sequence works too.
- *Widths.* The input with its one-hot positions has L + 2 columns, not L + 1; queries and keys read
  the L + 1 positions, values the last column alone. ``u W_v`` with W_v = c·I of size L + 1 is meant
  as the number c.
- *The skip term* d·u of a state-space layer is no part of the proof: it is added to the first tap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMPTY = ("last", "first")


@dataclass(frozen=True)
class KernelAttention:
    """Softmax heads whose outputs sum to a causal convolution; made by :func:`as_attention`.

    Shapes: n = L + 1 positions, the empty token's included; … the leading shape of the kernels;
    H = 1 head, or 2 for kernels of both signs.
    """

    query: Tensor
    """W_q for the one-hot positions, (…, H, n, n): rows are positions."""
    key: Tensor
    """W_k for the one-hot positions, (n, n): √n times the identity."""
    value: Tensor
    """What each head multiplies the input by, (…, H): c, or minus c for the negative part."""
    empty: str
    """Where the empty token stands: "last" or "first"."""
    sums: bool = False
    """The kernels are of pairs (out, in) of channels, and outputs are summed over the second."""

    @property
    def length(self) -> int:
        """L, the longest sequence."""
        return int(self.query.shape[-1]) - 1

    def weights(self) -> Tensor:
        """The attention matrices softmax(Q Kᵀ / √n) themselves, (…, H, n, n)."""
        positions = torch.eye(self.length + 1, dtype=self.query.dtype, device=self.query.device)
        q, k = positions @ self.query, positions @ self.key
        return torch.softmax(q @ k.mT / math.sqrt(self.length + 1), dim=-1)

    def __call__(self, u: Tensor, *, is_causal: bool = False) -> Tensor:
        """Run the heads: u (…, L) -> y (…, L), by softmax attention over tokens and positions.

        Args:
            u: one sequence for each kernel; leading dimensions broadcast with the kernels'. Heads
                of a layer that mixes channels take (…, D, L) and sum over the inputs. With the
                empty token first it may be shorter than L.
            is_causal: hide later positions from each query; needs the empty token first.

        >>> attention = as_attention(torch.tensor([1.0, 0.5, 0.25]))
        >>> attention(torch.tensor([1.0, 0.0, 2.0]))
        tensor([1.0000, 0.5000, 2.2500])
        """
        length = u.shape[-1] if u.ndim else 0
        if length > self.length or (length < self.length and self.empty == "last"):
            most = "" if self.empty == "last" else " or be shorter"
            raise ValueError(f"u must have shape (..., {self.length}){most}, got {tuple(u.shape)}")
        if is_causal and self.empty == "last":
            raise ValueError(
                "is_causal=True hides an empty token that stands last; build the heads with "
                "as_attention(kernel, empty='first')"
            )
        first = int(self.empty == "first")
        u = F.pad(u, (first, 1 - first))  # the empty token: zero
        if self.sums:
            u = u[..., None, :, :]
        width, n = self.length + 1, length + 1
        positions = torch.eye(n, width, dtype=self.query.dtype, device=self.query.device)
        q, k = positions @ self.query, positions @ self.key
        v = self.value[..., None] * u[..., None, :]  # (…, H, n)
        lead = torch.broadcast_shapes(q.shape[:-2], v.shape[:-1])
        y = F.scaled_dot_product_attention(
            q.expand(*lead, n, width).flatten(0, -3),
            k.expand(*lead, n, width).flatten(0, -3),
            v.expand(*lead, n).flatten(0, -2)[..., None],
            is_causal=is_causal,
        )
        y = y.view(*lead, n).sum(-2)
        y = y[..., first : first + length]
        return y.sum(-2) if self.sums else y


def as_attention(
    kernel: Tensor | nn.Module, *, length: int | None = None, empty: str = "last"
) -> KernelAttention:
    """Attention heads that compute a causal convolution exactly (Theorem B.1 of the LaS paper).

    Args:
        kernel: taps (L,) or (channels, L), tap 0 for the present; or a built layer with a causal
            convolution inside (``s4d``, ``lru``, ``mega`` …), for whose channels the heads are made
            in float64, skip term included. A layer that mixes channels (``s5``, ``lru``) has one
            kernel for each pair (out, in), and its output is the sum over the second.
        length: L; needed for a layer, at most the number of taps otherwise.
        empty: where the extra, empty token stands: "last" as in the paper, or "first", which a
            causal mask leaves visible.

    Returns:
        heads with ``weights()`` and ``__call__(u)``; one head a kernel where all entries have one
        sign, else two (positive and negative part).

    Raises:
        ValueError: for a kernel without taps or with NaN or infinite entries, or a layer that is
            no causal convolution.

    >>> attention = as_attention(torch.tensor([0.5, 0.25]))
    >>> attention.weights()[0]
    tensor([[0.6667, 0.0000, 0.3333],
            [0.3333, 0.6667, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    >>> as_attention(torch.tensor([0.5, -0.25])).value
    tensor([ 0.5000, -0.2500])
    """
    is_layer = isinstance(kernel, nn.Module)
    if isinstance(kernel, nn.Module):
        kernel = _layer_taps(kernel, length)
    check_kernel(kernel, dimensions=(1, 2, 3) if is_layer else (1, 2))
    if empty not in EMPTY:
        raise ValueError(f"empty must be one of {EMPTY}, got {empty!r}")
    if length is not None:
        if not 1 <= length <= kernel.shape[-1]:
            raise ValueError(f"length must be from 1 to {kernel.shape[-1]}, got {length}")
        kernel = kernel[..., :length]
    present = [s for s in (1.0, -1.0) if (s * kernel > 0).any()]
    signs = torch.tensor(present or [1.0]).to(kernel)
    parts = (signs[:, None] * kernel[..., None, :]).clamp_min(0)  # (…, H, L)
    c = parts.sum(-1)  # (…, H)
    n = kernel.shape[-1] + 1
    key = math.sqrt(n) * torch.eye(n, dtype=kernel.dtype, device=kernel.device)
    return KernelAttention(_query(parts, empty), key, signs * c, empty, sums=kernel.ndim == 3)


def _query(parts: Tensor, empty: str) -> Tensor:
    """W_q (…, n, n) of non-negative kernels (…, L)."""
    length = parts.shape[-1]
    order = torch.arange(length, device=parts.device)
    distance = order[:, None] - order
    matrix = torch.where(distance >= 0, parts[..., distance.clamp_min(0)], 0)  # A_k, (…, L, L)
    tails = parts.flip(-1).cumsum(-1).flip(-1)  # Σ_{t ≥ i}
    rest = F.pad(tails[..., 1:], (0, 1))  # c_i = Σ_{t > i}: nothing is subtracted
    total = tails[..., :1]
    last = torch.where(total > 0, total, torch.ones_like(total))  # a kernel of zeros: any weight
    rest = torch.where(total > 0, rest, torch.ones_like(rest))
    if empty == "last":
        rows = torch.cat([matrix, rest[..., None]], dim=-1)
        of_empty = F.pad(last[..., None], (length, 0))
        full = torch.cat([rows, of_empty], dim=-2)
    else:
        rows = torch.cat([rest[..., None], matrix], dim=-1)
        of_empty = F.pad(last[..., None], (0, length))
        full = torch.cat([of_empty, rows], dim=-2)
    # A row's largest entry is at least its sum over n; what lies this far below is exactly 0 after
    # the softmax, and the product of W_q with a one-hot position stays finite.
    info = torch.finfo(parts.dtype)
    lowest = math.log(info.tiny * info.eps) - 8
    floor = torch.log(last / (length + 1))[..., None] + lowest
    return torch.maximum(torch.log(full), floor)


def check_kernel(kernel: Tensor, dimensions: tuple[int, ...] = (1, 2)) -> None:
    """Raise ValueError unless ``kernel`` is finite taps (L,) or (channels, L).

    >>> check_kernel(torch.tensor([1.0, float("nan")]))
    Traceback (most recent call last):
    ValueError: kernel must be finite, but 1 of its 2 entries are NaN or infinite
    """
    if not torch.is_tensor(kernel) or not kernel.is_floating_point():
        kind = kernel.dtype if torch.is_tensor(kernel) else type(kernel).__name__
        raise ValueError(f"kernel must be a tensor of real floating-point numbers, got {kind}")
    if kernel.ndim not in dimensions or kernel.numel() == 0:
        raise ValueError(
            "kernel must have shape (L,) or (channels, L) with at least one tap, got "
            f"{tuple(kernel.shape)}"
        )
    if not torch.isfinite(kernel).all():
        bad = int((~torch.isfinite(kernel)).sum())
        raise ValueError(
            f"kernel must be finite, but {bad} of its {kernel.numel()} entries are NaN or infinite"
        )


def _layer_taps(layer: nn.Module, length: int | None) -> Tensor:
    """The kernels of a layer's causal convolution, skip term included: (D, L) or (D, D, L)."""
    from longlens.lens.kernels import convolutions

    if length is None:
        raise ValueError("length must be given with a layer: how many positions its heads cover")
    parts = convolutions(layer)
    if not parts:
        raise ValueError(
            f"kernel is a {type(layer).__name__}, which has no convolution inside; give a tensor "
            "of taps, or a convolutional or state-space layer"
        )
    if not parts[0].causal:
        raise ValueError(
            f"kernel is a {type(layer).__name__} built with bidirectional=True; the construction "
            "is causal"
        )
    return parts[0].with_skip(length)
