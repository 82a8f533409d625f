"""Every Triton kernel compiles for a Hopper GPU in bfloat16, which no interpreter has; no GPU here.

The launchers run on a CPU, and each launch compiles its kernel and goes no further. So kernels have
the tiles, the numbers and the alignment that they have on a GPU; their results are not looked at.
"""

import re
from pathlib import Path

import pytest
import torch

from longlens.ops import launching, norm
from longlens.ops.family.triton.added_op import SHORTEST, added_attention
from longlens.ops.family.triton.gates_op import fold_gates
from longlens.ops.las.call import Packing
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.las.triton.decode_op import decode_attention
from longlens.ops.las.triton.mirror_op import mirrored_attention
from longlens.ops.las.triton.prologue_op import Arguments, Layout, prologue

SOURCES = Path(launching.__file__).parent
SHARED = 227 * 1024  # bytes of shared memory that a program on Hopper may have
ROWS, HEADS = 128, 2


def why_not():
    """Why nothing can be compiled here; None: it can."""
    if launching.INTERPRETED:
        return "TRITON_INTERPRET=1: kernels are interpreted, not compiled"
    try:
        from triton import knobs

        assert knobs.nvidia.ptxas
    except (ImportError, RuntimeError) as error:  # no triton; a triton without ptxas
        return f"no compiler for NVIDIA's GPUs: {error}"
    return None


class Hopper:
    """What Triton asks its driver about before it compiles."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return -1  # under another number than a device that may be there

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def compiled(monkeypatch):
    """The names of kernels, compiled instead of launched."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    from triton.runtime import driver

    names = set()

    def compile_only(self, tensors):
        found = self.kernel.warmup(*tensors, *self.numbers, grid=self.grid, **self.constants)
        name = self.kernel.fn.__name__
        assert found.metadata.target.arch == 90 and found.asm["cubin"]
        assert found.metadata.shared <= SHARED, (name, found.metadata.shared)
        names.add(name)

    monkeypatch.setattr(driver, "_active", Hopper())
    monkeypatch.setattr(launching.Launch, "__call__", compile_only)
    return names


def rows(width, length=ROWS, dtype=torch.bfloat16):
    return torch.zeros(2, HEADS, length, width, dtype=dtype, requires_grad=True)


def rates():
    return torch.zeros(HEADS, requires_grad=True)


def real():
    return torch.ones(2, ROWS, dtype=torch.bool)


def attention(width, lag=0, masked=False, local=None):
    q, k, v = (rows(width) for _ in range(3))
    mask = real() if masked else None
    return kernel_attention(q, k, v, alpha=rates(), mask=mask, lag=lag, local=local, scale=0.1)


def packed(width):
    q, k, v = (rows(width)[:1] for _ in range(3))
    bounds = Packing(torch.tensor([0, 50, ROWS], dtype=torch.int32), 78)
    return kernel_attention(q, k, v, alpha=rates(), packing=bounds, lag=None, scale=0.1)


def added(width, length=ROWS, forgets=False, power=False):
    q, k, v = (rows(width, length) for _ in range(3))
    forget = torch.zeros(2, HEADS, length, requires_grad=True) if forgets else None
    return added_attention(
        q, k, v, log_forget=forget, slopes=rates(), power=rates() if power else None,
        mask=real() if power else None, scale=0.1,
    )  # fmt: skip


def gates(width):
    return fold_gates(rows(width), rows(width), rows(width, dtype=torch.float32))


def prepared(width, taps=False):
    layout = Layout(HEADS, HEADS, HEADS, 1, 4, 0, ROWS, width, taps=int(taps))
    share = torch.zeros(HEADS, 5, requires_grad=True) if taps else torch.ones(1, ROWS)
    angles = torch.ones(ROWS, width // 2)
    tensors = [rows(width) for _ in range(3)]
    return prologue(
        Arguments(*tensors, rates(), real(), share, cos=angles, sin=angles, numbers=list(layout))
    )


def mirrored(width):
    return (mirrored_attention(rows(width), rows(width), rows(width), rates(), 0.1),)


def decoded(width):
    q, k, v = rows(width, 1), rows(width), rows(width)
    return (decode_attention(q, k, v, alpha=rates(), mask=real(), scale=0.1),)


def normalised(width):
    x, column = rows(width)[0, 0].detach(), torch.zeros(width)
    norm.column_moments(x, torch.ones(ROWS, 1, dtype=torch.bool))
    norm.scaled_sums(x, x, column, column)
    return ()


LAS = {"forward_kernel", "delta_kernel", "query_kernel", "key_kernel"}
ADDED = {
    "level_sums", "added_forward", "delta_kernel", "added_query_gradient", "added_key_gradient",
    "level_gradient",
}  # fmt: skip
PROLOGUE = {"prologue_forward", "prologue_backward"}
# What is called, of heads as wide as that, and the kernels that it launches with its gradient
CASES = {
    "causal": (lambda: attention(64), LAS),
    "wide": (lambda: attention(256), LAS),
    "masked": (lambda: attention(64, lag=None, masked=True), LAS),
    "window": (lambda: attention(64, local=(31, 0)), LAS),
    "packed": (lambda: packed(64), LAS),
    "added": (lambda: added(64, forgets=True), ADDED),
    "power": (lambda: added(64, power=True), ADDED),
    "reach": (lambda: added(64, SHORTEST), ADDED | {"longest_rows", "level_reach"}),
    "gates": (lambda: gates(64), {"gate_sums", "gate_fold", "gate_unfold", "gate_finish"}),
    "prologue": (lambda: prepared(64), PROLOGUE),
    "taps": (lambda: prepared(64, taps=True), PROLOGUE),
    "mirrored": (
        lambda: mirrored(128), {"fold_both", "merge_both", "split_both", "unfold_both"},
    ),
    "decoding": (lambda: decoded(64), {"stretch_kernel", "join_kernel"}),
    "norm": (
        lambda: normalised(256),
        {"moments_kernel", "join_moments_kernel", "scaled_sums_kernel", "join_sums_kernel"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiles_for_hopper(name, compiled):
    call, kernels = CASES[name]
    outs = [out for out in call() if out.requires_grad]
    if outs:
        torch.autograd.backward(outs, [torch.zeros_like(out) for out in outs])
    assert compiled == kernels


def test_no_kernel_is_left_out():
    launched = set()
    for path in SOURCES.rglob("*.py"):
        if path.name != "launching.py":
            launched |= set(re.findall(r"\b[Ll]aunch\(\s*(\w+),", path.read_text()))
    assert launched == set().union(*(kernels for _, kernels in CASES.values()))
