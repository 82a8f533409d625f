"""`longlens bench family`: other decays and smoothers beside plain attention and LaS."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.cli.bench_rows import Row, Rows, dtype_name, find_dtype, read_shapes
from longlens.cli.measure import Work, captured, side_by_side
from longlens.layers.alibi import alibi_slopes
from longlens.ops.family import decay_attention, explain_decay, smoothing_taps
from longlens.ops.las import decay_rates, las_attention
from longlens.runs.run import find_device

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
    fla: bool = False,
    output: Path | None = None,
) -> int:
    """Compare causal attention with decays and smoothers of the family with plain attention.

    Everything that a layer would learn has a gradient: taps, slopes, gates. How far additive decay
    reaches decides what it costs: ALiBi has its own slopes (and others of at most 0.01), FoX gates
    near 1 (and such as an untrained layer has).

    Args:
        shapes: one or more B,H,L,D with spaces between; default: a short list for the device.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        seconds: time to spend on each comparison.
        fla: also time the kernels of flash-linear-attention (the package `fla`, on cuda) for forget
            gates and Wall attention, which tune themselves for a minute or two first.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kind = find_dtype(dtype, target)
    if fla and (target.type != "cuda" or importlib.util.find_spec("fla") is None):
        raise ValueError("fla needs a cuda device and the package flash-linear-attention")
    rows = Rows(target, output)
    for shape in read_shapes(shapes or SHAPES[target.type], "B,H,L,D"):
        rows.add(_compare(shape, target, kind, window, seconds, fla))
    return 0


def _decays(shape: list[int], device: torch.device, window: int) -> dict[str, dict[str, Any]]:
    """The options of `decay_attention` of every form, those that have a gradient as leaves."""
    B, H, L, D = shape
    before_gate = torch.randn(B, H, L, device=device)
    gates = -RATE_MAX * torch.rand(B, H, L, D, device=device)
    alpha = decay_rates(H, RATE_MAX, device=device)
    taps = smoothing_taps(H, window, "gaussian").to(device)
    forms: dict[str, dict[str, Any]] = {
        "LaS, taps": dict(alpha=alpha, rate_max=RATE_MAX, taps=taps.requires_grad_()),
        "ALiBi": dict(slopes=alibi_slopes(H).to(device).requires_grad_()),
        "ALiBi, slopes to 0.01": dict(slopes=decay_rates(H, 1e-2, device=device).requires_grad_()),
        "FoX": dict(log_forget=F.logsigmoid(before_gate + 5).requires_grad_()),
        "FoX, untrained": dict(log_forget=F.logsigmoid(before_gate).requires_grad_()),
        "Wall": dict(log_gate=gates.requires_grad_(), rate_max=RATE_MAX),
        "sink": dict(sink=torch.zeros(H, device=device, requires_grad=True)),
    }
    if device.type == "cuda":  # elsewhere it is the formula, which takes minutes
        forms["power law"] = dict(power=torch.ones(H, device=device, requires_grad=True))
    return forms


def _others() -> dict[str, Callable[..., Tensor]]:
    """The same by flash-linear-attention, whose heads lie inside positions."""

    def form(name: str, gate: str) -> Callable[..., Tensor]:
        kernel = getattr(importlib.import_module(f"fla.ops.{name}"), f"parallel_{name}")

        def run(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            tensors = (t.transpose(1, 2) for t in (q, k, v, options[gate]))
            out: Tensor = kernel(*tensors)
            return out.transpose(1, 2)

        return run

    return {
        "FoX, fla": form("forgetting_attn", "log_forget"),
        "FoX, untrained, fla": form("forgetting_attn", "log_forget"),
        "Wall, fla": form("wall_attn", "log_gate"),
    }


def _heads_inside(x: Any) -> Any:
    """A tensor (B, H, L, ...) as a leaf whose memory holds (B, L, H, ...)."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


def _compare(
    shape: list[int], device: torch.device, dtype: torch.dtype, window: int, seconds: float,
    fla: bool,
) -> list[Row]:  # fmt: skip
    """A row for each form: forward and backward, beside the others, and its error."""
    q, k, v, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    qkv = [t.requires_grad_() for t in (q, k, v)]
    las = dict(alpha=decay_rates(shape[1], RATE_MAX, device=device), alpha_max=RATE_MAX)

    def both(form: Callable[..., Tensor], options: dict[str, Any], given: Any = qkv) -> Work:
        sides = [t for t in options.values() if isinstance(t, Tensor) and t.requires_grad]
        return lambda: torch.autograd.grad(form(*given, **options), [*given, *sides], grad)

    decays = _decays(shape, device, window)
    works = {
        "plain SDPA": both(F.scaled_dot_product_attention, {"is_causal": True}),
        "LaS": both(las_attention, {**las, "window": window}),
        **{name: both(decay_attention, options) for name, options in decays.items()},
    }
    others = _others() if fla else {}
    for name, form in others.items():
        options = {n: _heads_inside(x) for n, x in decays[name.removesuffix(", fla")].items()}
        works[name] = both(form, options, [_heads_inside(t) for t in qkv])
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
            "error": _error(qkv, decays.get(name.removesuffix(", fla")), others.get(name)),
        }
        for name in works
    ]


@torch.no_grad()
def _error(
    qkv: list[Tensor], options: dict[str, Any] | None, form: Callable[..., Tensor] | None
) -> float:
    """The largest error against float64, over the last rows of the first sequence."""
    if options is None:
        return math.nan
    first: dict[str, Any] = {
        n: t[:1] if isinstance(t, Tensor) and t.ndim > 2 else t for n, t in options.items()
    }
    rows = 1 if "log_gate" in options else EXACT_ROWS  # the formula holds a score per channel
    q, k, v = (t[:1].double() for t in qkv)
    exact = decay_attention(q[:, :, -rows:], k, v, impl="reference", **first)
    found = (form or decay_attention)(*qkv, **options)[:1, :, -rows:].double()
    return float((found - exact).abs().max() / exact.abs().max())
