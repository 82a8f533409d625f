"""LaS attention by FlexAttention, for `longlens bench ops`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.smoothing import pool_values

FLEX, FLEX_FLASH = "FlexAttention", "FlexAttention, FLASH"


def flex_forms(
    las: dict[str, Any], device: torch.device
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """FlexAttention by its own choice and, where that is installed, by the FLASH backend."""
    forms = {FLEX: _form(las, "AUTO")}
    if device.type == "cuda":
        try:
            found = importlib.util.find_spec("flash_attn.cute") is not None
        except ImportError:
            found = False
        if found:
            forms[FLEX_FLASH] = _form(las, "FLASH")
        else:
            print(f"no row {FLEX_FLASH!r}: the package flash-attn-4 is not installed")
    return forms


def _form(las: dict[str, Any], backend: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention with the decay as its score_mod, on values that are pooled as ours are."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    alpha, causal, local, real = las["alpha"], las["is_causal"], las["local"], las["key_mask"]
    smoothing = las["smoothing"] or ("causal" if causal else "centered")
    if smoothing == "masked":
        raise ValueError("flex: FlexAttention has no form for smoothing='masked'; use flex=false")

    def decay(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * torch.exp(-alpha[h] * (i - j).abs())

    torch.compiler.reset()  # each shape compiles anew, or the limit on recompilations is soon met
    compiled: Any = torch.compile(flex_attention)
    masks: dict[int, Any] = {}

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = i >= j if causal else i >= 0
        if local is not None:
            found = found & ((i - j).abs() < local)
        return found if real is None else found & real[b, j]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, batch = q.shape[2], None if real is None else q.shape[0]
        if (causal or local is not None or real is not None) and n not in masks:
            masks[n] = create_block_mask(seen, batch, None, n, n, device=str(q.device))
        pooled = pool_values(v, las["window"], smoothing, "zero", real)
        out: Tensor = compiled(
            q, k, pooled, score_mod=decay, block_mask=masks.get(n),
            kernel_options={"BACKEND": backend},
        )  # fmt: skip
        return out

    return attention
