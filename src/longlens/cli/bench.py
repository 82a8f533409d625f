"""`longlens bench`: LaS beside plain attention, FlexAttention and eager Eq. 4, in one run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.cli.measure import captured, copy_bandwidth, peak_mebibytes, side_by_side
from longlens.files import write_output
from longlens.ops.las import decay_rates, explain, las_attention
from longlens.ops.las.triton import why_not
from longlens.training.provenance import provenance

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

DEFAULT_SHAPES = {
    "cpu": ["1,8,512,32", "1,8,2048,32", "1,8,4096,32", "1,8,8192,32"],
    "cuda": [
        "50,8,1024,32", "16,8,2048,32", "4,8,4096,64", "4,8,4096,128", "2,16,8192,64",
        "2,16,8192,128", "1,16,16384,64", "1,16,16384,128", "1,16,32768,64", "1,8,65536,64",
        "1,8,65536,128",
    ],
}  # fmt: skip
EAGER_LIMIT = 2**31  # bytes of one score matrix, above which eager Eq. 4 is left out
EXACT_ROWS = 64  # queries for which the float64 result is computed


def ops(
    shapes: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    window: int = 5,
    bound: float = 1e-3,
    smoothing: str | None = None,
    causal: bool = True,
    flex: bool | None = None,
    eager: bool = True,
    seconds: float = 2.0,
    output: Path | None = None,
) -> int:
    """Compare implementations of LaS attention with each other and with plain attention.

    Args:
        shapes: one or more B,H,L,D with spaces between; default: a short list for the device.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        bound: bound B of the decay rates.
        smoothing: causal, centered or masked; default: causal if causal else centered.
        causal: whether attention is causal.
        flex: include FlexAttention; default: on cuda only (on a CPU it compiles for a while and
            has no backward).
        eager: include eager Eq. 4, where its score matrix is below 2 GiB.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = torch.device(auto_device(device))
    kind = auto_dtype(dtype, target)
    options = dict(window=window, smoothing=smoothing, is_causal=causal)
    rows: list[dict[str, Any]] = []
    origin = provenance(target) | {"date": datetime.now(UTC).date().isoformat()}
    print(f"{origin['hardware']}, torch {origin['torch']}, commit {origin['commit']}, {kind}")
    for text in shapes.split() if shapes else DEFAULT_SHAPES[target.type]:
        shape = _shape(text)
        use_flex = target.type == "cuda" if flex is None else flex
        found = _compare(shape, target, kind, options, bound, use_flex, eager, seconds)
        print(_table(text, found), flush=True)
        rows += [row | origin for row in found]
        if output is not None:  # after every shape, so that an interrupted run keeps its rows
            write_rows(output, rows)
    return 0


def auto_device(device: str) -> str:
    """The device that the option means: "auto" is cuda where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here; use cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def auto_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that the option means: "auto" is bfloat16 on cuda and float32 elsewhere."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in known:
        raise ValueError(f"dtype must be auto or one of {', '.join(known)}, got {name!r}")
    return known[name]


def _shape(text: str) -> tuple[int, int, int, int]:
    numbers = [int(n) for n in text.split(",")] if text.replace(",", "").isdigit() else []
    if len(numbers) != 4 or min(numbers) < 1:
        raise ValueError(f"a shape must be four positive integers B,H,L,D, got {text!r}")
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _compare(
    shape: tuple[int, int, int, int],
    device: torch.device,
    dtype: torch.dtype,
    options: dict[str, Any],
    bound: float,
    flex: bool,
    eager: bool,
    seconds: float,
) -> list[dict[str, Any]]:
    B, H, L, _ = shape
    q, k, v, grad = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    alpha = decay_rates(H, bound, device=device)
    causal = options["is_causal"]
    las = dict(alpha=alpha, alpha_max=bound, **options)
    forms: dict[str, Attention] = {
        "plain SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        "LaS": lambda q, k, v: las_attention(q, k, v, **las),
    }
    if explain(q, k, v, **las).impl != "triton" and why_not(q.device, q.dtype, q.shape[3]) is None:
        forms["LaS, Triton"] = lambda q, k, v: las_attention(q, k, v, impl="triton", **las)
    if eager and B * H * L * L * q.element_size() < EAGER_LIMIT:
        forms["eager Eq. 4"] = lambda q, k, v: las_attention(q, k, v, impl="reference", **las)
    if flex:
        forms["FlexAttention"] = _flex(alpha, options)

    with torch.no_grad():
        exact = las_attention(
            q[:, :, -EXACT_ROWS:].double(), k.double(), v.double(), impl="reference", **las
        )

    def forward(form: Attention) -> Callable[[], object]:
        def work() -> object:
            with torch.no_grad():
                return form(q, k, v)

        return work

    def both(form: Attention) -> Callable[[], object]:
        return lambda: torch.autograd.grad(form(q, k, v), inputs, grad)

    differentiable = {
        n: f for n, f in forms.items() if n != "FlexAttention" or device.type == "cuda"
    }
    # The least that scaling Q and K and pooling V must move: three tensors in and out, twice.
    floor = 1e3 * 12 * q.numel() * q.element_size() / copy_bandwidth(device)
    ahead = side_by_side({n: forward(f) for n, f in forms.items()}, device, seconds)
    whole = side_by_side({n: both(f) for n, f in differentiable.items()}, device, seconds)
    replayed: dict[str, float] = {}
    if device.type == "cuda":
        graphs = {
            n: captured(both(f), device) for n, f in differentiable.items() if n != "eager Eq. 4"
        }
        replayed = side_by_side(graphs, device, seconds)
    rows = []
    for name, form in forms.items():
        out = form(q, k, v)[:, :, -EXACT_ROWS:].detach().double()
        wrong = float((out - exact).abs().max() / exact.abs().max())
        rows.append(
            {
                "shape": ",".join(map(str, shape)),
                "dtype": str(dtype).removeprefix("torch."),
                "implementation": name,
                "path": _path(name, q, k, v, las),
                "forward_ms": ahead[name],
                "forward_backward_ms": whole.get(name, math.nan),
                "ratio_to_plain": whole.get(name, math.nan) / whole["plain SDPA"],
                # the same replayed as a CUDA graph: the device's time alone
                "graph_ms": replayed.get(name, math.nan),
                "graph_ratio": replayed.get(name, math.nan) / replayed.get("plain SDPA", math.nan),
                # plain attention, and the traffic of a prologue at the speed of a copy
                "floor_ms": replayed.get("plain SDPA", whole["plain SDPA"]) + floor
                if name == "LaS"
                else math.nan,
                "peak_mib": peak_mebibytes(both(form), device) if name in whole else math.nan,
                # plain attention computes something else, so it has no error to report
                "error": math.nan if name == "plain SDPA" else wrong,
            }
        )
    return rows


def _path(name: str, q: Tensor, k: Tensor, v: Tensor, las: dict[str, Any]) -> str:
    if name == "LaS, Triton":
        return "triton"
    return explain(q, k, v, **las).route if name == "LaS" else ""


def _flex(alpha: Tensor, options: dict[str, Any]) -> Attention:
    """FlexAttention with the decay as its score_mod, on values that are pooled as ours are."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from longlens.ops.las.smoothing import pool_values

    causal = options["is_causal"]
    smoothing = options["smoothing"] or ("causal" if causal else "centered")
    if smoothing == "masked":
        raise ValueError("flex: FlexAttention has no form for smoothing='masked'; use flex=false")

    def decay(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * torch.exp(-alpha[h] * (i - j).abs())

    torch.compiler.reset()  # each shape compiles anew, or the limit on recompilations is soon met
    compiled = torch.compile(flex_attention)
    masks: dict[int, Any] = {}

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        if causal and n not in masks:
            masks[n] = create_block_mask(
                lambda b, h, i, j: i >= j, None, None, n, n, device=str(q.device)
            )
        pooled = pool_values(v, options["window"], smoothing, "zero", None)
        out: Tensor = compiled(q, k, pooled, score_mod=decay, block_mask=masks.get(n))
        return out

    return attention


def _table(shape: str, rows: list[dict[str, Any]]) -> str:
    head = (
        f"\n{shape:<18}{'forward':>10}{'fwd+bwd':>12}{'to plain':>10}{'as graph':>12}"
        f"{'to plain':>10}{'floor':>10}{'peak':>12}{'error':>11}"
    )
    lines = [
        f"{row['implementation']:<18}{_number(row['forward_ms'], '.2f', ' ms'):>10}"
        f"{_number(row['forward_backward_ms'], '.2f', ' ms'):>12}"
        f"{_number(row['ratio_to_plain'], '.2f', ' x'):>10}"
        f"{_number(row['graph_ms'], '.2f', ' ms'):>12}"
        f"{_number(row['graph_ratio'], '.2f', ' x'):>10}"
        f"{_number(row['floor_ms'], '.2f', ' ms'):>10}"
        f"{_number(row['peak_mib'], '.0f', ' MiB'):>12}{_number(row['error'], '.1e', ''):>11}"
        + (f"  {row['path']}" if row["path"] else "")
        for row in rows
    ]
    return "\n".join([head, *lines])


def _number(value: float, form: str, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write dictionaries with the same keys as a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(
        {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
    )
    write_output(path, text.getvalue().encode())


def main(argv: Sequence[str]) -> int:
    """Entry of `longlens bench`."""
    from jsonargparse import auto_cli

    if not argv:
        argv = ["--help"]
    from longlens.cli.bench_layers import decode, layer
    from longlens.cli.bench_length import length
    from longlens.cli.bench_step import step
    from longlens.cli.bench_train import train

    commands: Any = {
        "ops": ops, "layer": layer, "decode": decode, "length": length, "step": step,
        "train": train,
    }  # fmt: skip
    code: int = auto_cli(commands, args=list(argv), prog="longlens bench")
    return code
