"""`longlens bench length`: one attention layer on longer and longer sequences, time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longlens.cli.bench import auto_device, auto_dtype, write_rows
from longlens.cli.bench_layers import origin_of
from longlens.cli.measure import milliseconds, peak_mebibytes
from longlens.layers.attention import LaSAttention

LENGTHS = {
    "cuda": "65536 131072 262144 524288 1048576",
    "cpu": "1024 2048 4096",
}


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
    target = torch.device(auto_device(device))
    kind = auto_dtype(dtype, target)
    origin = origin_of(target, kind)
    layer = LaSAttention(heads * head_dim, heads, window=window, bound=bound, causal=causal).to(
        target, kind
    )
    rows: list[dict[str, Any]] = []
    words = (lengths or LENGTHS[target.type]).split()
    if wrong := [word for word in words if not word.isdigit() or int(word) < 1]:
        raise ValueError(f"lengths must be positive integers, got {wrong[0]!r}")
    for number, word in enumerate(words):
        x = torch.randn(1, int(word), layer.dim, device=target, dtype=kind, requires_grad=True)
        grad = torch.randn_like(x)

        def work(x: Tensor = x, grad: Tensor = grad) -> object:
            return torch.autograd.grad(layer(x), [x, *layer.parameters()], grad)

        if number == 0:
            work()  # compiles kernels
        peak = peak_mebibytes(work, target)
        ms = milliseconds(work, target)
        row = {
            "shape": f"1,{heads},{word},{head_dim}",
            "dtype": str(kind).removeprefix("torch."),
            "causal": causal,
            "bound": bound,
            "window": window,
            "forward_backward_ms": ms,
            "peak_mib": peak,
            "peak_kib_per_token": 1024 * peak / int(word),
        }
        rows.append(row | origin)
        print(
            f"{int(word):>10,} tokens{ms:>12.1f} ms{peak:>10.0f} MiB"
            f"{row['peak_kib_per_token']:>8.1f} KiB a token"
        )
        if output is not None:
            write_rows(output, rows)
    return 0
