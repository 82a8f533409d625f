"""`longlens bench family`: other decays and smoothers beside plain attention and LaS."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.cli.bench_rows import Row, Rows, dtype_name, find_device, find_dtype, read_shapes
from longlens.cli.measure import Work, captured, side_by_side
from longlens.ops.family import decay_attention, explain_decay, smoothing_taps
from longlens.ops.las import decay_rates, las_attention

SHAPES = {
    "cpu": "1,8,2048,32 1,8,8192,32",
    "cuda": "50,8,1024,32 16,8,2048,32 4,8,4096,64 2,16,8192,64 1,16,16384,64",
}
RATE_MAX = 1e-3
EXACT_ROWS = 64  # queries for which the float64 result is computed


def family(
    shapes: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    window: int = 5,
    seconds: float = 2.0,
    output: Path | None = None,
) -> int:
    """Compare causal attention with decays and smoothers of the family with plain attention.

    Everything that a layer would learn has a gradient: taps, slopes, gates.

    Args:
        shapes: one or more B,H,L,D with spaces between; default: a short list for the device.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kind = find_dtype(dtype, target)
    rows = Rows(target, output)
    for shape in read_shapes(shapes or SHAPES[target.type], "B,H,L,D"):
        rows.add(_compare(shape, target, kind, window, seconds))
    return 0


def _decays(shape: list[int], device: torch.device, window: int) -> dict[str, dict[str, Any]]:
    """The options of `decay_attention` of every form, those that have a gradient as leaves."""
    B, H, L, D = shape
    gates = {
        "log_forget": F.logsigmoid(torch.randn(B, H, L, device=device) + 5),
        "log_gate": -RATE_MAX * torch.rand(B, H, L, D, device=device),
    }
    alpha = decay_rates(H, RATE_MAX, device=device)
    taps = smoothing_taps(H, window, "gaussian").to(device)
    return {
        "LaS, taps": dict(alpha=alpha, rate_max=RATE_MAX, taps=taps.requires_grad_()),
        "ALiBi": dict(slopes=decay_rates(H, 1e-2, device=device).requires_grad_()),
        "FoX": dict(log_forget=gates["log_forget"].requires_grad_()),
        "Wall": dict(log_gate=gates["log_gate"].requires_grad_(), rate_max=RATE_MAX),
    }


def _compare(
    shape: list[int], device: torch.device, dtype: torch.dtype, window: int, seconds: float
) -> list[Row]:
    """A row for each form: forward and backward, beside the others, and its error."""
    q, k, v, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    qkv = [t.requires_grad_() for t in (q, k, v)]
    las = dict(alpha=decay_rates(shape[1], RATE_MAX, device=device), alpha_max=RATE_MAX)

    def both(form: Callable[..., Tensor], options: dict[str, Any]) -> Work:
        sides = [t for t in options.values() if isinstance(t, Tensor) and t.requires_grad]
        return lambda: torch.autograd.grad(form(*qkv, **options), [*qkv, *sides], grad)

    decays = _decays(shape, device, window)
    works = {
        "plain SDPA": both(F.scaled_dot_product_attention, {"is_causal": True}),
        "LaS": both(las_attention, {**las, "window": window}),
        **{name: both(decay_attention, options) for name, options in decays.items()},
    }
    times = side_by_side(works, device, seconds)
    replayed: dict[str, float] = {}
    if device.type == "cuda":
        graphs = {name: captured(work, device) for name, work in works.items()}
        replayed = side_by_side(graphs, device, seconds)
    return [
        {
            "shape": ",".join(map(str, shape)),
            "dtype": dtype_name(dtype),
            "implementation": name,
            "path": explain_decay(*qkv, **decays[name]).route if name in decays else "",
            "forward_backward_ms": times[name],
            "ratio_to_plain": times[name] / times["plain SDPA"],
            "graph_ms": replayed.get(name, math.nan),
            "graph_ratio": replayed.get(name, math.nan) / replayed.get("plain SDPA", math.nan),
            "error": _error(qkv, decays[name]) if name in decays else math.nan,
        }
        for name in works
    ]


@torch.no_grad()
def _error(qkv: list[Tensor], options: dict[str, Any]) -> float:
    """The largest error against float64, over the last rows of the first sequence."""
    first: dict[str, Any] = {
        n: t[:1] if isinstance(t, Tensor) and t.ndim > 2 else t for n, t in options.items()
    }
    rows = 1 if "log_gate" in options else EXACT_ROWS  # the formula holds a score per channel
    q, k, v = (t[:1].double() for t in qkv)
    exact = decay_attention(q[:, :, -rows:], k, v, impl="reference", **first)
    found = decay_attention(*qkv, **options)[:1, :, -rows:].double()
    return float((found - exact).abs().max() / exact.abs().max())
