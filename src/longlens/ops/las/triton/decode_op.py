"""Launching the decoding kernels; they have no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from longlens.ops.las.operands import dense_rows, dense_sides
from longlens.ops.launching import launch, next_power_of_2

KEYS = 64  # of a tile
SHORTEST = 256  # keys of a stretch: below that, joining costs more than sharing saves


def stretch_of(n: int, heads: int, processors: int) -> int:
    """Keys of a stretch, a multiple of KEYS: about four programs for each processor.

    >>> stretch_of(n=32768, heads=32, processors=132), stretch_of(n=100, heads=32, processors=132)
    (1984, 256)
    """
    shares = max(1, -(-4 * processors // heads))
    return max(SHORTEST, -(-n // (shares * KEYS)) * KEYS)


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: Tensor | None, mask: Tensor | None, scale: float
) -> Tensor:
    """Attention of the newest token over pooled values.

    Args:
        q: (B, Hq, 1, D).
        k: (B, Hkv, n, D), the newest token's key last.
        v: (B, Hkv, n, Dv).
        alpha: (Hq,) or None.
        mask: (B, n), True where a key takes part; None: all do.
        scale: of the scores.

    Returns:
        (B, Hq, 1, Dv).
    """
    from longlens.ops.las.triton.decode import join_kernel, stretch_kernel

    B, heads, _, D = q.shape
    kv_heads, n, width = k.shape[1], k.shape[2], v.shape[3]
    group = heads // kv_heads
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    alpha, mask = dense_sides(alpha, mask)
    processors = 1
    if q.is_cuda:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    stretch = stretch_of(n, B * kv_heads, processors)
    stretches = -(-n // stretch)
    part = q.new_empty(B * kv_heads, stretches, group, width, dtype=torch.float32)
    top, total = (part.new_empty(part.shape[:3]) for _ in range(2))
    out = q.new_empty(B, heads, 1, width)
    wide = max(16, next_power_of_2(width))
    launch(
        stretch_kernel, (stretches, B * kv_heads), [q, k, v, alpha, mask, part, top, total],
        [
            q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
            0 if mask is None else mask.stride(0), n, stretch, kv_heads, scale,
        ],
        GROUP=group, D=D, DV=width, BG=max(16, next_power_of_2(group)),
        BD=max(16, next_power_of_2(D)), BDV=wide, BN=KEYS, HAS_ALPHA=alpha is not None,
        HAS_MASK=mask is not None, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    launch(
        join_kernel, (B * heads,), [part, top, total, out], [stretches], GROUP=group, DV=width,
        BDV=wide,
    )  # fmt: skip
    return out
