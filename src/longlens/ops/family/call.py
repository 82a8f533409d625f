"""One call of `decay_attention`: its arguments, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.checks import (
    check_options,
    check_rates,
    check_side_inputs,
    check_tensors,
    reading_is_free,
    rounded_up,
)
from longlens.ops.las.transforms import functional

TENSORS = (
    "query", "key", "value", "alpha", "log_gate", "slopes", "power", "log_forget", "sink", "taps",
    "key_mask",
)  # fmt: skip


@dataclass
class DecayCall:
    """The arguments of `decay_attention`; `check` fills in its defaults."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor | None = None
    log_gate: Tensor | None = None
    slopes: Tensor | None = None
    power: Tensor | None = None
    log_forget: Tensor | None = None
    sink: Tensor | None = None
    taps: Tensor | None = None
    smoothing: Any = None  # a str, once checked
    edge: str = "zero"
    is_causal: bool = True
    key_mask: Tensor | None = None
    scale: Any = None  # a float, once checked
    enable_gqa: bool = False
    rate_max: float | None = None
    offset: Any = None  # the position of the first query, once checked

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        found = {name: getattr(self, name) for name in TENSORS}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def multiplies(self) -> bool:
        """Whether a decay multiplies products of channels."""
        return self.alpha is not None or self.log_gate is not None

    @property
    def adds(self) -> bool:
        """Whether a decay that splits into positions is added to scores."""
        return self.slopes is not None or self.log_forget is not None


def check(call: DecayCall) -> DecayCall:
    """Check shapes, dtypes and what goes together; fill in the defaults, in place."""
    q, k, v = call.query, call.key, call.value
    check_tensors(q, k, v, call.enable_gqa)
    window = 1
    if call.taps is not None:
        if call.taps.ndim != 2 or call.taps.shape[0] != q.shape[1] or call.taps.shape[1] < 1:
            raise ValueError(
                f"taps must have shape ({q.shape[1]}, window), a filter per query head, got "
                f"{tuple(call.taps.shape)}"
            )
        window = call.taps.shape[1]
    call.smoothing = check_options(
        window, call.smoothing, call.edge, call.is_causal, scale=call.scale, alpha_max=call.rate_max
    )
    check_side_inputs(q, k, call.alpha, call.key_mask, None)
    B, heads, S, D = q.shape[0], q.shape[1], k.shape[2], q.shape[3]
    shapes = {
        "slopes": (heads,), "power": (heads,), "sink": (heads,), "log_forget": (B, heads, S),
        "log_gate": (B, heads, S, D),
    }  # fmt: skip
    for name, shape in shapes.items():
        tensor = getattr(call, name)
        if tensor is None:
            continue
        if tensor.shape != shape or not tensor.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be a float tensor of shape {shape}, got {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}"
            )
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on {q.device}, got {tensor.device}")
        if not call.is_causal and name.startswith("log_"):
            raise ValueError(
                f"{name} needs is_causal=True: a running sum of gates decays from past to future"
            )
    if q.shape[2] > S:
        raise ValueError(f"query must be no longer than key, got {q.shape[2]} and {S}")
    call.offset = S - q.shape[2]
    call.scale = D**-0.5 if call.scale is None else float(call.scale)
    if reading_is_free(q):
        _check_values(call)
    return call


def _check_values(call: DecayCall) -> None:
    """Rates that are negative, gates above 1, and a bound that does not hold.

    A gate that is NaN passes: it may come from the data, and a NaN of theirs shows in the result.
    """
    check_rates(call.alpha, call.rate_max, "rate_max")
    for name in ("log_gate", "log_forget"):
        gate = getattr(call, name)
        if gate is not None and (largest := _largest(gate)) > 0:
            raise ValueError(f"{name} must hold logarithms of gates, at most 0, got {largest:g}")
    if call.log_gate is None or call.rate_max is None:
        return
    alpha = 0.0 if call.alpha is None else call.alpha.detach()[:, None, None]
    largest = _largest(alpha - call.log_gate.detach())
    if largest > rounded_up(call.rate_max, call.log_gate.dtype):
        raise ValueError(
            f"rate_max={call.rate_max:.6g} must bound alpha - log_gate, got {largest:.6g}"
        )


def _largest(x: Tensor) -> float:
    """The largest number, of all calls that torch.func.vmap makes; -inf where there is none."""
    if functional():
        x = torch.func.debug_unwrap(x, recurse=True)
    return float(x.detach().amax()) if x.numel() else -math.inf


def running(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The running sum along the sequence, in float64 where its rounding would be seen."""
    return x.to(dtype).cumsum(2)


def placed(rate: Tensor, length: int) -> Tensor:
    """-rate·position: (H,) -> (1, H, length), float64."""
    position = torch.arange(length, device=rate.device, dtype=torch.float64)
    return -rate.double()[None, :, None] * position
