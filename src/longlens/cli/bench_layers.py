"""`longlens bench layer` and `bench decode`: whole attention layers, LaS beside softmax."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longlens.cli.bench import auto_device, auto_dtype, write_rows
from longlens.cli.measure import captured, side_by_side
from longlens.layers.attention import LaSAttention, SoftmaxAttention
from longlens.ops.las.triton import why_not
from longlens.training.provenance import provenance

LAYER_SHAPES = {"cuda": "50,1024,256,8 4,8192,1024,16", "cpu": "1,1024,256,8 1,4096,256,8"}


def _shapes(text: str, names: str) -> list[list[int]]:
    found = []
    for word in text.split():
        numbers = [int(n) for n in word.split(",")] if word.replace(",", "").isdigit() else []
        if len(numbers) != len(names.split(",")) or min(numbers) < 1:
            raise ValueError(f"a shape must be positive integers {names}, got {word!r}")
        found.append(numbers)
    return found


def origin_of(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Hardware, versions, commit and date of a measurement; also prints them."""
    origin = provenance(device) | {"date": datetime.now(UTC).date().isoformat()}
    print(f"{origin['hardware']}, torch {origin['torch']}, commit {origin['commit']}, {dtype}")
    return origin


def layer(
    shapes: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    window: int = 5,
    bound: float = 1e-3,
    causal: bool = True,
    rotary: bool = False,
    compile: bool = True,
    graph: bool = True,
    seconds: float = 2.0,
    output: Path | None = None,
) -> int:
    """Time forward and backward of an attention layer, projections included, LaS and softmax.

    Args:
        shapes: one or more B,L,dim,heads with spaces between; default: a short list for the device.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        bound: bound B of the decay rates.
        causal: whether attention is causal.
        rotary: rotate queries and keys by their positions, in both layers.
        compile: compile both layers with torch.compile.
        graph: on cuda, replay each as a CUDA graph, so that the host's time plays no part.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = torch.device(auto_device(device))
    kind = auto_dtype(dtype, target)
    origin = origin_of(target, kind)
    rows: list[dict[str, Any]] = []
    for B, L, dim, heads in _shapes(shapes or LAYER_SHAPES[target.type], "B,L,dim,heads"):
        common: dict[str, Any] = dict(causal=causal, rotary=rotary)
        layers = {
            "softmax": SoftmaxAttention(dim, heads, **common),
            "LaS": LaSAttention(dim, heads, window=window, bound=bound, **common),
        }
        x = torch.randn(B, L, dim, device=target, dtype=kind, requires_grad=True)
        grad = torch.randn_like(x)
        works = {
            name: _both(module.to(target, kind), x, grad, compile)
            for name, module in layers.items()
        }
        replay = graph and target.type == "cuda"
        if replay:
            works = {name: captured(work, target) for name, work in works.items()}
        times = side_by_side(works, target, seconds)
        for name, ms in times.items():
            row = {
                "shape": f"{B},{L},{dim},{heads}",
                "dtype": str(kind).removeprefix("torch."),
                "layer": name,
                "compiled": compile,
                "graph": replay,
                "causal": causal,
                "rotary": rotary,
                "forward_backward_ms": ms,
                "ratio_to_softmax": ms / times["softmax"],
            }
            rows.append(row | origin)
            print(f"{row['shape']:<20}{name:<10}{ms:>9.3f} ms{row['ratio_to_softmax']:>8.3f} x")
        if output is not None:
            write_rows(output, rows)
    return 0


def _both(module: nn.Module, x: Tensor, grad: Tensor, compiled: bool) -> Callable[[], object]:
    form: Callable[[Tensor], Tensor] = torch.compile(module) if compiled else module
    inputs = [x, *module.parameters()]
    return lambda: torch.autograd.grad(form(x), inputs, grad)


def decode(
    shapes: str = "8,4096,1024,16,4 8,32768,1024,16,4",
    device: str = "auto",
    dtype: str = "auto",
    window: int = 5,
    steps: int = 32,
    seconds: float = 2.0,
    output: Path | None = None,
) -> int:
    """Time one decoded token of an attention layer, LaS and softmax, after a prompt.

    Args:
        shapes: one or more B,prompt,dim,heads,key heads with spaces between.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        steps: tokens to decode at a time.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = torch.device(auto_device(device))
    kind = auto_dtype(dtype, target)
    origin = origin_of(target, kind)
    rows: list[dict[str, Any]] = []
    for B, L, dim, heads, kv in _shapes(shapes, "B,prompt,dim,heads,key heads"):
        common: dict[str, Any] = dict(num_kv_heads=kv)
        layers = {
            "softmax": SoftmaxAttention(dim, heads, **common),
            "LaS": LaSAttention(dim, heads, window=window, **common),
        }
        if why_not(target, kind, dim // heads) is None:
            layers["LaS, Triton"] = LaSAttention(dim, heads, window=window, impl="triton", **common)
        works = {name: _tokens(m.to(target, kind), B, L, steps) for name, m in layers.items()}
        times = side_by_side(works, target, seconds)
        cache = 2 * B * kv * L * (dim // heads) * kind.itemsize
        for name, ms in times.items():
            row = {
                "shape": f"{B},{L},{dim},{heads},{kv}",
                "dtype": str(kind).removeprefix("torch."),
                "layer": name,
                "token_ms": ms / steps,
                "ratio_to_softmax": ms / times["softmax"],
                "cache_gb_per_s": cache / (ms / steps) / 1e6,
            }
            rows.append(row | origin)
            print(
                f"{row['shape']:<22}{name:<12}{row['token_ms']:>9.4f} ms a token"
                f"{row['ratio_to_softmax']:>8.3f} x{row['cache_gb_per_s']:>9.0f} GB/s of cache"
            )
        if output is not None:
            write_rows(output, rows)
    return 0


def _tokens(module: SoftmaxAttention, B: int, L: int, steps: int) -> Callable[[], object]:
    weight = module.out.weight
    with torch.no_grad():
        prompt = torch.randn(B, L, module.dim, device=weight.device, dtype=weight.dtype)
        _, state = module.prefill(prompt)
    x = prompt[:, 0]

    def work() -> None:
        nonlocal state
        with torch.no_grad():
            for _ in range(steps):
                _, state = module.step(x, state)

    return work
