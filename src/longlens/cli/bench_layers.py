"""`longlens bench layer`, `decode` and `length`: whole attention layers, their projections too."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longlens.cli.bench_rows import Rows, dtype_name, find_dtype, read_shapes
from longlens.cli.measure import Work, captured, milliseconds, peak_mebibytes, side_by_side
from longlens.layers.attention import LaSAttention, SoftmaxAttention
from longlens.ops.las import decay_rates
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.triton import why_not
from longlens.runs.run import find_device

LAYER_SHAPES = {"cuda": "50,1024,256,8 4,8192,1024,16", "cpu": "1,1024,256,8 1,4096,256,8"}
LENGTHS = {"cuda": "65536 131072 262144 524288 1048576", "cpu": "1024 2048 4096"}


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
    target = find_device(device)
    kind = find_dtype(dtype, target)
    rows = Rows(target, output)
    replay = graph and target.type == "cuda"
    common: dict[str, Any] = dict(causal=causal, rotary=rotary)
    for B, L, dim, heads in read_shapes(shapes or LAYER_SHAPES[target.type], "B,L,dim,heads"):
        layers = {
            "softmax": SoftmaxAttention(dim, heads, **common),
            "LaS": LaSAttention(dim, heads, window=window, bound=bound, **common),
        }
        works = {}
        for name, module in layers.items():
            work = _both(module.to(target, kind), B, L, dim, compile)
            works[name] = captured(work, target) if replay else work
        times = side_by_side(works, target, seconds)
        described = {"shape": f"{B},{L},{dim},{heads}", "dtype": dtype_name(kind)}
        rows.add([
            {
                **described, "layer": name, "compiled": compile, "graph": replay, **common,
                "forward_backward_ms": ms, "ratio_to_softmax": ms / times["softmax"],
            }
            for name, ms in times.items()
        ])  # fmt: skip
    return 0


def _both(module: nn.Module, B: int, L: int, dim: int, compiled: bool) -> Work:
    """Forward and backward of a layer on random input."""
    weight = next(module.parameters())
    x = torch.randn(B, L, dim, device=weight.device, dtype=weight.dtype, requires_grad=True)
    grad = torch.randn_like(x)
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

    Rows named "attention alone" time the newest query over the cache without the layer around it:
    plain SDPA, and LaSCache.attend by each implementation.

    Args:
        shapes: one or more B,prompt,dim,heads,key heads with spaces between.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        steps: tokens to decode at a time.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kind = find_dtype(dtype, target)
    rows = Rows(target, output)
    for B, L, dim, heads, kv in read_shapes(shapes, "B,prompt,dim,heads,key heads"):
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
        described = {"shape": f"{B},{L},{dim},{heads},{kv}", "dtype": dtype_name(kind)}
        rows.add([
            {
                **described, "layer": name, "token_ms": ms / steps,
                "ratio_to_softmax": ms / times["softmax"],
                "cache_gb_per_s": cache / (ms / steps) / 1e6,
            }
            for name, ms in times.items()
        ])  # fmt: skip
        alone = _attended([B, L, dim // heads, heads, kv], target, kind, window)
        times, replayed = side_by_side(alone, target, seconds), {}
        if target.type == "cuda":
            graphs = {name: captured(work, target) for name, work in alone.items()}
            replayed = side_by_side(graphs, target, seconds)
        rows.add([
            {
                **described, "layer": f"attention alone: {name}", "token_ms": ms,
                "ratio_to_softmax": ms / times["softmax"], "cache_gb_per_s": cache / ms / 1e6,
                # the same replayed as a CUDA graph: the device's time alone
                "graph_ms": replayed.get(name, math.nan),
                "graph_ratio": replayed.get(name, math.nan) / replayed.get("softmax", math.nan),
            }
            for name, ms in times.items()
        ])  # fmt: skip
    return 0


@torch.no_grad()
def _attended(
    shape: list[int], device: torch.device, dtype: torch.dtype, window: int
) -> dict[str, Work]:
    """One query over a cache, by plain attention and by every implementation of LaS."""
    B, L, D, heads, kv = shape
    q = torch.randn(B, heads, 1, D, device=device, dtype=dtype)
    k, v = (torch.randn(B, kv, L, D, device=device, dtype=dtype) for _ in range(2))
    cache, alpha = LaSCache(k, v, window=window), decay_rates(heads, device=device)
    works: dict[str, Work] = {
        "softmax": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "LaS, SDPA": lambda: cache.attend(q, alpha=alpha, impl="sdpa"),
    }
    if why_not(device, dtype, D) is None:
        works["LaS, Triton"] = lambda: cache.attend(q, alpha=alpha, impl="triton")
    return works


def _tokens(module: SoftmaxAttention, B: int, L: int, steps: int) -> Work:
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


def length(
    lengths: str | None = None,
    heads: int = 8,
    head_dim: int = 64,
    window: int = 5,
    bound: float = 1e-5,
    causal: bool = True,
    device: str = "auto",
    dtype: str = "auto",
    output: Path | None = None,
) -> int:
    """Time forward and backward of one LaS layer, one sequence at a time, and its peak memory.

    Args:
        lengths: numbers of tokens with spaces between; default: up to a million on cuda.
        heads: number of heads.
        head_dim: width of a head.
        window: width P of the smoothing.
        bound: bound B of the decay rates.
        causal: whether attention is causal.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kind = find_dtype(dtype, target)
    counts = read_shapes(lengths or LENGTHS[target.type], "tokens")
    rows = Rows(target, output)
    dim = heads * head_dim
    module = LaSAttention(dim, heads, window=window, bound=bound, causal=causal).to(target, kind)
    for number, (tokens,) in enumerate(counts):
        work = _both(module, 1, tokens, dim, compiled=False)
        if number == 0:
            work()  # compiles kernels
        peak = peak_mebibytes(work, target)
        rows.add([
            {
                "shape": f"1,{heads},{tokens},{head_dim}", "dtype": dtype_name(kind),
                "causal": causal, "bound": bound, "window": window,
                "forward_backward_ms": milliseconds(work, target), "peak_mib": peak,
                "peak_kib_per_token": 1024 * peak / tokens,
            }
        ])  # fmt: skip
    return 0
