"""What a call of LaS attention may be. Errors name the argument, its value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from longlens.ops.las.smoothing import EDGES, SMOOTHINGS
from longlens.ops.las.transforms import functional

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Shapes, head counts, dtypes and devices of query, key and value."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.ndim != 4:
            raise ValueError(
                f"{name} must have 4 dimensions (batch, heads, length, head_dim), got shape "
                f"{tuple(t.shape)}"
            )
        if t.dtype not in DTYPES:
            raise ValueError(f"{name} must be a float tensor ({_names(DTYPES)}), got {t.dtype}")
        if t.dtype != query.dtype or t.device != query.device:
            raise ValueError(
                f"{name} must have the query's dtype and device ({query.dtype} on {query.device}), "
                f"got {t.dtype} on {t.device}"
            )
        if t.shape[0] != query.shape[0]:
            raise ValueError(
                f"{name} must have the query's batch size {query.shape[0]}, got {t.shape[0]}"
            )
    if key.shape[3] != query.shape[3] or query.shape[3] < 1:
        raise ValueError(
            f"key must have the query's head dimension {query.shape[3]} (at least 1), "
            f"got {key.shape[3]}"
        )
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value must have the key's heads and length {tuple(key.shape[1:3])}, "
            f"got {tuple(value.shape[1:3])}"
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"key must have the query's number of heads {heads}, got {kv_heads} (tensors are "
            "batch, heads, length, head_dim); pass enable_gqa=True to share key heads"
        )
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"the query's heads must be a multiple of the key's, got {heads} and {kv_heads}"
        )


def check_options(
    window: int,
    smoothing: str | None,
    edge: str,
    is_causal: bool,
    chunk: int | None = None,
    scale: float | Tensor | None = None,
    alpha_max: float | None = None,
    local: Any = None,
    softcap: float | None = None,
) -> str:
    """Check the options that need no tensor; returns the smoothing that None stands for."""
    if not isinstance(window, int) or window < 1:
        raise ValueError(f"window must be an integer >= 1, got {window!r}")
    if is_causal is None:
        raise ValueError(f"is_causal must be True or False, got {is_causal!r}")
    if smoothing is None:
        smoothing = "causal" if is_causal else "centered"
    if smoothing not in SMOOTHINGS:
        raise ValueError(f"smoothing must be one of {SMOOTHINGS} or None, got {smoothing!r}")
    if smoothing != "causal" and window % 2 == 0:
        raise ValueError(f"window must be odd with smoothing={smoothing!r}, got {window}")
    if smoothing == "masked" and not is_causal:
        raise ValueError(
            "smoothing='masked' is defined for is_causal=True only, got is_causal=False"
        )
    if edge not in EDGES:
        raise ValueError(f"edge must be one of {EDGES}, got {edge!r}")
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk must be None or an integer >= 1, got {chunk!r}")
    if scale is not None and not 0 < scale < math.inf:  # kernels put -inf before it is applied
        raise ValueError(f"scale must be None or a finite number > 0, got {scale}")
    if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "scale must be a number, got a tensor that requires a gradient and would get none: "
            "multiply the query by what is learned"
        )
    if alpha_max is not None and not 0 <= alpha_max < math.inf:
        raise ValueError(f"alpha_max must be None or a finite number >= 0, got {alpha_max}")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be None or a finite number > 0, got {softcap}")
    if local is not None:
        _check_local(local, is_causal)
    return smoothing


def _check_local(local: Any, is_causal: bool) -> None:
    """A sliding window: a positive integer, or the numbers of keys on both sides."""
    if isinstance(local, tuple):
        sides = len(local) == 2 and all(isinstance(side, int) and side >= 0 for side in local)
        if not sides or (is_causal and local[1] > 0):
            raise ValueError(
                "local as a pair must be (left, right), two integers >= 0 of which right is 0 "
                f"where is_causal, got {local!r} with is_causal={is_causal}"
            )
    elif not isinstance(local, int) or local < 1:
        raise ValueError(f"local must be None, an integer >= 1 or a pair, got {local!r}")


def check_side_inputs(
    query: Tensor,
    key: Tensor,
    alpha: Tensor | None,
    key_mask: Tensor | None,
    query_offset: int | Tensor | None,
    sink: Tensor | None = None,
) -> None:
    """Shapes, dtypes and devices of what goes with the tensors (values are not read here)."""
    B, heads, S = query.shape[0], query.shape[1], key.shape[2]
    for name, t in (("alpha", alpha), ("sink", sink)):
        if t is None:
            continue
        if not isinstance(t, Tensor) or t.shape != (heads,):
            got = tuple(t.shape) if isinstance(t, Tensor) else repr(t)
            raise ValueError(
                f"{name} must be a tensor of shape ({heads},), one per query head, got {got} for a "
                f"query (batch, heads, length, head_dim) of shape {tuple(query.shape)}"
            )
        if not t.dtype.is_floating_point or t.device != query.device:
            raise ValueError(
                f"{name} must be a float tensor on {query.device}, got {t.dtype} on {t.device}"
            )
    if key_mask is not None and not isinstance(key_mask, Tensor):
        raise ValueError(f"key_mask must be a bool tensor of shape {(B, S)}, got {key_mask!r}")
    if key_mask is not None and (key_mask.shape != (B, S) or key_mask.dtype != torch.bool):
        raise ValueError(
            f"key_mask must be a bool tensor of shape {(B, S)}, True for a real token, "
            f"got {key_mask.dtype} of shape {tuple(key_mask.shape)}"
        )
    if key_mask is not None and key_mask.device != query.device:
        raise ValueError(f"key_mask must be on {query.device}, got {key_mask.device}")
    if isinstance(query_offset, Tensor):
        if query_offset.numel() not in (1, B) or query_offset.dtype.is_floating_point:
            raise ValueError(
                f"query_offset as a tensor must hold 1 or {B} integers, got "
                f"{query_offset.dtype} of shape {tuple(query_offset.shape)}"
            )
    elif query_offset is not None and not isinstance(query_offset, int | torch.SymInt):
        raise ValueError(f"query_offset must be None, an int or a tensor, got {query_offset!r}")


def may_read(alpha: Tensor) -> bool:
    """Whether α's values are at hand: not while compiling, capturing a graph or tracing."""
    if torch.compiler.is_compiling() or is_fake(alpha) or alpha.is_meta:
        return False
    return not (alpha.is_cuda and torch.cuda.is_current_stream_capturing())


def read_alpha(alpha: Tensor, kv_heads: int) -> tuple[float, bool]:
    """Read α: its largest value, and whether it is constant inside each group of query heads."""
    rates = _values(alpha)
    bad = [a for a in rates if not (math.isfinite(a) and a >= 0)]
    if bad:
        raise ValueError(f"alpha must hold finite values >= 0, got {bad[0]}")
    if len(rates) > alpha.shape[0]:  # those of all calls that torch.func.vmap makes
        return max(rates), False
    group = len(rates) // kv_heads
    equal = all(rates[i] == rates[i - i % group] for i in range(len(rates)))
    return max(rates), equal


def reading_is_free(tensor: Tensor) -> bool:
    """Whether values can be read without waiting for a device and without breaking a graph."""
    return tensor.is_cpu and may_read(tensor)


def check_rates(
    alpha: Tensor | None, alpha_max: float | None = None, name: str = "alpha_max"
) -> None:
    """Raise where α is negative, not finite or beyond its bound, wherever reading it is free."""
    if alpha is None or not reading_is_free(alpha):
        return
    if alpha_max is None:
        read_alpha(alpha, 1)
    else:
        check_bound(alpha, alpha_max, name=name)


def rounded_up(bound: float, dtype: torch.dtype) -> float:
    """A bound with room for rounding: 0.1 in float32 is above 0.1."""
    return bound * (1 + max(1e-6, torch.finfo(dtype).eps))


def check_bound(alpha: Tensor, alpha_max: float, remedy: str = "", name: str = "alpha_max") -> None:
    """Read α; raise where the bound of this name does not hold. NaN, too, that kernels may lose."""
    most = rounded_up(alpha_max, alpha.dtype)
    wrong = [a for a in _values(alpha) if not 0 <= a <= most]
    if wrong:
        raise ValueError(
            f"alpha must lie between 0 and {name}={alpha_max:.6g}, got {wrong[0]:.6g}{remedy}"
        )


def _values(alpha: Tensor) -> list[float]:
    """The numbers of α, those of all calls that torch.func.vmap makes."""
    if functional():
        alpha = torch.func.debug_unwrap(alpha, recurse=True)
    values: list[float] = alpha.detach().flatten().tolist()
    return values


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)
