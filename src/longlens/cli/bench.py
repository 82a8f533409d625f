"""`longlens bench`: LaS beside plain attention, FlexAttention and eager Eq. 4, in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.cli.bench_flex import FLEX, flex_forms
from longlens.cli.bench_rows import Row, Rows, dtype_name, find_dtype, read_shapes
from longlens.cli.measure import Work, captured, copy_bandwidth, peak_mebibytes, side_by_side
from longlens.cli.parser import Parser, UsageError, add_options, defaults_of
from longlens.config import did_you_mean, typed
from longlens.ops.las import decay_rates, explain, las_attention
from longlens.ops.las.triton import why_not
from longlens.runs.run import find_device

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
CHOICES = {
    "device": ("auto", "cpu", "cuda"), "dtype": ("auto", "float32", "bfloat16", "float16"),
    "smoothing": ("causal", "centered", "masked"),
}  # fmt: skip

DEFAULT_SHAPES = {
    "cpu": "1,8,512,32 1,8,2048,32 1,8,4096,32 1,8,8192,32",
    "cuda": "50,8,1024,32 16,8,2048,32 4,8,4096,64 4,8,4096,128 2,16,8192,64 2,16,8192,128 "
    "1,16,16384,64 1,16,16384,128 1,16,32768,64 1,8,65536,64 1,8,65536,128",
}
ODD_SHAPES = {  # widths of heads that are no power of two, one head, one token, unequal widths
    "cpu": "1,8,512,8 1,8,512,40 1,8,512,46 1,8,512,80 1,8,512,96 1,8,512,256 1,1,512,64 1,8,1,64 "
    "1,8,512,64,32 1,8,512,64,128",
    "cuda": "8,8,2048,8 8,8,2048,40 8,8,2048,46 8,8,2048,80 8,8,2048,96 8,8,2048,256 8,1,2048,64 "
    "64,8,1,64 8,8,2048,64,32 8,8,2048,64,128",
}
EAGER_LIMIT = 2**31  # bytes of one score matrix, above which eager Eq. 4 is left out
EXACT_ROWS = 64  # queries for which the float64 result is computed
PLAIN, EAGER, TRITON = "plain SDPA", "eager Eq. 4", "LaS, Triton"
SDPA, WHOLE = "LaS, SDPA", "LaS, no sliding window"


def ops(
    shapes: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    window: int = 5,
    bound: float = 1e-3,
    smoothing: str | None = None,
    causal: bool = True,
    local: int | None = None,
    padding: float = 0.0,
    flex: bool | None = None,
    eager: bool = True,
    seconds: float = 2.0,
    output: Path | None = None,
) -> int:
    """Compare implementations of LaS attention with each other and with plain attention.

    Args:
        shapes: one or more B,H,L,D or B,H,L,D,Dv with spaces between; default: a short list for the
            device.
        device: cpu, cuda or auto.
        dtype: float32, bfloat16, float16 or auto (bfloat16 on cuda, float32 on cpu).
        window: width P of the smoothing.
        bound: bound B of the decay rates.
        smoothing: causal, centered or masked; default: causal if causal else centered.
        causal: whether attention is causal.
        local: attend inside a sliding window of this many keys; plain attention and one row of
            LaS attention have none.
        padding: share of the keys that is padding, up to 0.5: sequences lose between none and twice
            that share of their keys at the end, evenly spread over the batch, and all forms get the
            same mask, plain attention as (B,1,1,L). Needs causal=false.
        flex: include FlexAttention, also by its FLASH backend where flash-attn-4 is installed;
            default: on cuda only (on a CPU it compiles for a while and has no backward).
        eager: include eager Eq. 4, where its score matrix is below 2 GiB.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kind = find_dtype(dtype, target)
    if not 0 <= padding <= 0.5 or (padding and causal):
        raise ValueError(
            f"padding must lie between 0 and 0.5, and be 0 unless causal=false, got {padding:g}"
        )
    rows = Rows(target, output)
    for shape in read_shapes(shapes or DEFAULT_SHAPES[target.type], "B,H,L,D", "Dv"):
        las = dict(
            alpha=decay_rates(shape[1], bound, device=target), alpha_max=bound, window=window,
            smoothing=smoothing, is_causal=causal, local=local,
            key_mask=_padded(shape[0], shape[2], padding).to(target) if padding else None,
        )  # fmt: skip
        inputs = _inputs(shape, target, kind)
        forms = _forms(inputs[:3], las, eager=eager)
        if target.type == "cuda" if flex is None else flex:
            forms |= flex_forms(las, target)
        rows.add(_compare(forms, inputs, las, seconds))
    return 0


def odd(
    shapes: str | None = None,
    device: str = "auto",
    dtypes: str = "float32 bfloat16",
    window: int = 5,
    bound: float = 1e-3,
    causal: bool = True,
    seconds: float = 1.0,
    output: Path | None = None,
) -> int:
    """Compare LaS with plain attention on shapes that kernels are not made for.

    Every implementation that can serve a shape has a row; `path` is the route it takes.

    Args:
        shapes: one or more B,H,L,D or B,H,L,D,Dv with spaces between; default: heads of 8, 40, 46,
            80, 96 and 256 columns, one head, one token, and values narrower and wider than keys.
        device: cpu, cuda or auto.
        dtypes: one or more of float32, bfloat16 and float16 with spaces between.
        window: width P of the smoothing.
        bound: bound B of the decay rates.
        causal: whether attention is causal.
        seconds: time to spend on each comparison.
        output: also write the rows to this CSV file, with hardware, versions and commit.
    """
    target = find_device(device)
    kinds = [find_dtype(name, target) for name in dtypes.split()]
    rows = Rows(target, output)
    for shape in read_shapes(shapes or ODD_SHAPES[target.type], "B,H,L,D", "Dv"):
        las = dict(
            alpha=decay_rates(shape[1], bound, device=target), alpha_max=bound, window=window,
            smoothing=None, is_causal=causal, local=None, key_mask=None,
        )  # fmt: skip
        found: list[Row] = []
        for kind in kinds:
            inputs = _inputs(shape, target, kind)
            found += _compare(_forms(inputs[:3], las, sdpa=True), inputs, las, seconds)
        rows.add(found)
    return 0


def _padded(batch: int, length: int, share: float) -> Tensor:
    """Which keys are real: (batch, length), sequences of lengths that are evenly spread."""
    lost = 2 * share * length * (torch.arange(batch) + 0.5) / batch
    return torch.arange(length) < (length - lost.round())[:, None]


def _inputs(shape: list[int], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys, values and the gradient of the output."""
    *rows, width = shape[:4]
    widths = (width, width, shape[-1], shape[-1])
    return [torch.randn(*rows, w, device=device, dtype=dtype) for w in widths]


def _forms(
    qkv: Sequence[Tensor], las: dict[str, Any], sdpa: bool = False, eager: bool = False
) -> dict[str, Attention]:
    """Plain attention, what "auto" takes, and other implementations that can serve these inputs."""
    mask = None if las["key_mask"] is None else las["key_mask"][:, None, None, :]
    plain = dict(is_causal=las["is_causal"], attn_mask=mask)
    forms: dict[str, Attention] = {
        PLAIN: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **plain),
        "LaS": lambda q, k, v: las_attention(q, k, v, **las),
    }
    if las["local"] is not None:
        forms[WHOLE] = lambda q, k, v: las_attention(q, k, v, **las | dict(local=None))
    taken, q = explain(*qkv, **las).impl, qkv[0]
    if sdpa and taken != "sdpa":
        forms[SDPA] = lambda q, k, v: las_attention(q, k, v, impl="sdpa", **las)
    if taken != "triton" and why_not(q.device, q.dtype, max(q.shape[3], qkv[2].shape[3])) is None:
        forms[TRITON] = lambda q, k, v: las_attention(q, k, v, impl="triton", **las)
    B, H, L, _ = q.shape
    if eager and B * H * L * L * q.element_size() < EAGER_LIMIT:
        forms[EAGER] = lambda q, k, v: las_attention(q, k, v, impl="reference", **las)
    return forms


def _compare(
    forms: dict[str, Attention], inputs: Sequence[Tensor], las: dict[str, Any], seconds: float
) -> list[Row]:
    """A row for each form: its times beside the others', peak memory and error."""
    *qkv, grad = inputs
    device = grad.device
    for tensor in qkv:
        tensor.requires_grad_()

    def forward(form: Attention) -> Work:
        detached = [tensor.detach() for tensor in qkv]  # FlexAttention on a CPU wants no gradient
        return torch.no_grad()(lambda: form(*detached))

    def both(form: Attention) -> Work:
        return lambda: torch.autograd.grad(form(*qkv), qkv, grad)

    on_cuda = device.type == "cuda"
    trained = {n: both(form) for n, form in forms.items() if n != FLEX or on_cuda}
    ahead = side_by_side({n: forward(form) for n, form in forms.items()}, device, seconds)
    whole = side_by_side(trained, device, seconds)
    replayed: dict[str, float] = {}
    if on_cuda:
        graphs = {n: captured(work, device) for n, work in trained.items() if n != EAGER}
        replayed = side_by_side(graphs, device, seconds)
    errors = _errors(forms, qkv, las)
    # The least that scaling Q and K and pooling V must move: three tensors in and out, twice.
    traffic = 1e3 * 12 * grad.numel() * grad.element_size() / copy_bandwidth(device)
    floor = replayed.get(PLAIN, whole[PLAIN]) + traffic
    nan = math.nan
    return [
        {
            "shape": ",".join(map(str, _shape(qkv))),
            "dtype": dtype_name(grad.dtype),
            "implementation": name,
            "path": _path(name, qkv, las),
            "forward_ms": ahead[name],
            "forward_backward_ms": whole.get(name, nan),
            "ratio_to_plain": whole.get(name, nan) / whole[PLAIN],
            # the same replayed as a CUDA graph: the device's time alone
            "graph_ms": replayed.get(name, nan),
            "graph_ratio": replayed.get(name, nan) / replayed.get(PLAIN, nan),
            # plain attention, and the traffic of a prologue at the speed of a copy
            "floor_ms": floor if name == "LaS" else nan,
            "peak_mib": peak_mebibytes(trained[name], device) if name in trained else nan,
            "error": errors.get(name, nan),
        }
        for name in forms
    ]


def _shape(qkv: Sequence[Tensor]) -> list[int]:
    """B,H,L,D, and Dv where it differs."""
    width = qkv[2].shape[3]
    return [*qkv[0].shape, *[width] * (width != qkv[0].shape[3])]


def _errors(
    forms: dict[str, Attention], qkv: Sequence[Tensor], las: dict[str, Any]
) -> dict[str, float]:
    """The largest error of each form against float64; plain attention computes something else."""
    q, k, v = (tensor.detach() for tensor in qkv)
    exact = las_attention(
        q[:, :, -EXACT_ROWS:].double(), k.double(), v.double(), impl="reference", **las
    )
    errors = {}
    with torch.no_grad():
        for name, form in forms.items():
            if name not in (PLAIN, WHOLE):
                out = form(q, k, v)[:, :, -EXACT_ROWS:].double()
                errors[name] = float((out - exact).abs().max() / exact.abs().max())
    return errors


def _path(name: str, qkv: Sequence[Tensor], las: dict[str, Any]) -> str:
    changes: dict[str, dict[str, Any]] = {
        "LaS": {}, WHOLE: {"local": None}, SDPA: {"impl": "sdpa"}, TRITON: {"impl": "triton"},
    }  # fmt: skip
    return explain(*qkv, **las | changes[name]).route if name in changes else ""


def main(argv: Sequence[str]) -> int:
    """Entry of `longlens bench`."""
    from longlens.cli.bench_family import family
    from longlens.cli.bench_layers import decode, layer, length
    from longlens.cli.bench_step import step
    from longlens.cli.bench_train import train

    commands: Any = {
        "ops": ops, "odd": odd, "family": family, "layer": layer, "decode": decode,
        "length": length, "step": step, "train": train,
    }  # fmt: skip
    if not argv or argv[0] in ("-h", "--help"):
        about = {name: (command.__doc__ or "").split("\n")[0] for name, command in commands.items()}
        print("usage: longlens bench COMMAND [options]\n")
        print("\n".join(f"  {name:<8}{what}" for name, what in about.items()))
        return 0
    name, *words = argv
    if name not in commands:
        raise UsageError(f"command must be one of {', '.join(commands)}, got {name!r}"
                         f"{did_you_mean(name, commands)}")  # fmt: skip
    parser = Parser(f"bench {name}", (commands[name].__doc__ or "").partition("Args:")[0].rstrip())
    defaults = defaults_of(commands[name])
    add_options(parser, commands[name], [n for n in defaults if n != "changes"], CHOICES)
    if "changes" in defaults:
        parser.add_set("an option of `longlens train`")
    given = vars(parser.parse_args(words))
    changes = {"changes": given.pop("changes")} if "changes" in given else {}
    values = typed(commands[name], given, f"longlens bench {name}", convert=True)
    code: int = commands[name](**values, **changes)
    return code
