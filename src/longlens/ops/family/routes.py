"""How a call of `decay_attention` runs: the table of routes, the best first."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from longlens.ops.family import runs
from longlens.ops.family.call import DecayCall, check
from longlens.ops.family.fold import ADD_RANGE, levels
from longlens.ops.las.checks import may_read
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.plan import Assumed, Plan, Route, always, choose, no_operator
from longlens.ops.las.transforms import exporting, functional, needs_formula
from longlens.ops.las.triton import why_not
from longlens.ops.las.triton.attention_op import MOST_HEADS, NARROW, beats_sdpa
from longlens.ops.numerics import autocast_dtype, keep_dtypes

IMPLEMENTATIONS = ("auto", "reference", "sdpa", "triton")
HALF = (torch.bfloat16, torch.float16)


def attend(call: DecayCall, impl: str) -> Tensor:
    """Check a call, decide how it runs, and run it: (B, Hq, L, Dv)."""
    dtype = autocast_dtype(call.query)
    if dtype is not None:  # as SDPA does; decays keep theirs
        call.query, call.key, call.value = (t.to(dtype) for t in (call.query, call.key, call.value))
    with keep_dtypes(call.query):
        plan = make_plan(check(call), impl)
        return _NAMED[plan.impl, plan.route].run(call, plan)


def make_plan(call: DecayCall, impl: str) -> Plan:
    """The first route that does not refuse the call, and what it assumes of ranges."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")
    empty = call.query.numel() == 0 or call.key.shape[2] == 0
    assumed = Assumed()
    if impl != "reference" and not empty:
        assumed = Assumed(fits=_fits(call, impl == "triton"))
    route = choose(ROUTES, call, impl, assumed)
    many = _many_calls(call, assumed) or "asked for by name"
    prologue = route.impl == "triton" or (call.query.is_cuda and _no_kernels(call) is None)
    return Plan(route.impl, route.name, (route.why.format(many=many),), assumed, prologue)


def with_steps(call: DecayCall, plan: Plan) -> Plan:
    """The plan with the names of the functions and kernels that it runs, in their order."""
    steps = _NAMED[plan.impl, plan.route].steps
    return replace(plan, steps=tuple(steps if isinstance(steps, list) else steps(call, plan)))


def _fits(call: DecayCall, by_kernel: bool) -> bool:
    """Whether all decays fold in range, as far as that is known or may be read.

    What is added cannot overflow, and in half precision (and in our kernel) no range of it costs
    digits that scores have, so that it is not read there.
    """
    dtype = call.query.dtype if call.query.is_cuda else _wide(call.query.dtype)
    adds = call.adds and not by_kernel and dtype not in HALF
    multiplied = 0.0 if call.rate_max is None else call.rate_max * call.key.shape[2]
    if (not call.multiplies or call.rate_max is not None) and not adds:
        return bool(multiplied <= FOLD_RANGE[dtype])
    if functional() or not may_read(call.query):  # transforms take the formula at any range
        return False
    with torch.no_grad():
        m, a = levels(call)
        zero = call.query.new_zeros((), dtype=torch.float64)
        gates = [zero if t is None else t.amax().double() for t in (call.log_gate, call.log_forget)]
        ranges = [
            zero if m is None else (m[:, :, 0] - m[:, :, -1]).amax(),
            zero if a is None else (a.amax(2) - a.amin(2)).amax(),
        ]
        gate, forget, multiplied, added = torch.stack([*gates, *ranges]).tolist()
    for name, largest in (("log_gate", gate), ("log_forget", forget)):
        if not largest <= 0:
            raise ValueError(f"{name} must hold logarithms of gates, at most 0, got {largest:g}")
    if not multiplied < float("inf"):
        raise ValueError("alpha and log_gate must be finite")
    return bool(multiplied <= FOLD_RANGE[dtype] and added <= ADD_RANGE[dtype])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _many_calls(call: DecayCall, assumed: Assumed) -> str | None:
    """Why one call of attention cannot do it; None: it can."""
    if call.sink is not None:
        return "a sink"
    if not call.is_causal:
        return "two-sided decay"
    if call.key_mask is not None:
        return "a key mask under a causal mask"
    return None if assumed.fits else "a range that is large, or not known here"


def _no_fold(call: DecayCall) -> str | None:
    """What no difference of positions can express, and what no fused attention has."""
    if call.power is not None:
        return "a power law is no difference of positions"
    return _no_fused(call)


def _no_fused(call: DecayCall) -> str | None:
    """What no fused attention has, ours included."""
    if needs_formula(*call.tensors.values()) or functional() or exporting():
        return "a derivative or a transform that only the formula has"
    if call.taps is not None and call.smoothing == "masked" and call.taps.shape[1] > 1:
        return "taps that are cut at the query"
    if call.query.numel() == 0 or call.value.numel() == 0:
        return "nothing to attend to"
    return no_operator(call)


def _no_las(call: DecayCall, assumed: Assumed) -> str | None:
    if call.adds or call.log_gate is not None or call.sink is not None or call.power is not None:
        return "more than LaS's decay"
    if call.taps is not None and call.smoothing == "masked" and call.taps.shape[1] > 1:
        return "taps that are cut at the query"
    if call.taps is not None and needs_formula(*call.tensors.values()):
        return "a derivative of taps that only the formula has"
    return None


def _no_kernels(call: DecayCall) -> str | None:
    """Why our kernels do not serve such tensors; None: they do."""
    if call.query.shape[0] * call.query.shape[1] > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} heads, those of all sequences together"
    if call.query.is_cuda and call.query.dtype not in HALF:
        return "kernels of half precision: in float32 parts keep more digits"
    width = max(call.query.shape[3], call.value.shape[3])
    return why_not(call.query.device, call.query.dtype, width)


def _no_kernel(call: DecayCall, assumed: Assumed) -> str | None:
    if not call.is_causal:
        return "two-sided decay"
    added = call.adds or call.power is not None
    if not (added or call.sink is not None or call.key_mask is not None or _cut(call)):
        return "nothing that one call of plain attention does not serve"
    if call.multiplies and not assumed.fits:
        return "a decay of products that is out of range, or not known"
    return _no_fused(call) or _no_kernels(call)


def _cut(call: DecayCall) -> str | None:
    same = call.query.shape[2] == call.key.shape[2]
    return None if same else "fewer queries than keys"


def _no_folded(call: DecayCall, assumed: Assumed) -> str | None:
    return _no_fold(call) or _cut(call) or _many_calls(call, assumed)


def _no_tiles(call: DecayCall, assumed: Assumed) -> str | None:
    if call.query.is_cuda or call.multiplies or not call.adds or not may_read(call.query):
        return "only for what is added alone, in eager code on a CPU"
    return _no_fold(call) or _cut(call) or _many_calls(call, Assumed())


def _no_narrow(call: DecayCall, assumed: Assumed) -> str | None:
    if call.adds or not beats_sdpa(call.query, call.value):
        return f"not a narrow head (up to {NARROW} columns) on a recent GPU"
    return _no_folded(call, assumed) or _no_kernels(call)


def _no_merged(call: DecayCall, assumed: Assumed) -> str | None:
    if not call.is_causal and not assumed.fits:
        return "two-sided decay out of range"
    return _no_fold(call) or _cut(call)


def _no_rows(call: DecayCall, assumed: Assumed) -> str | None:
    return None if call.query.device.type in ("cpu", "cuda", "meta") else "another device"


# Whose attention, route, why it refuses a call, why it is taken, what runs, its steps
ROUTES = (
    Route("sdpa", "las", _no_las, "LaS attention on filtered values", runs.run_las, runs.las_steps),
    Route(
        "triton", "kernel", _no_kernel, "one fused kernel, which adds decays to scores",
        runs.run_kernel, runs.kernel_steps,
    ),
    Route(
        "triton", "folded", _no_narrow, "every decay in range, heads narrow: one fused kernel",
        runs.run_folded, runs.folded_steps, named=False,
    ),
    Route(
        "sdpa", "folded", _no_folded, "every decay in range: one attention call",
        runs.run_folded, runs.folded_steps,
    ),
    Route(
        "sdpa", "tiles", _no_tiles, "added decay out of range: tiles, each relative to itself",
        runs.run_folded, runs.folded_steps,
    ),
    Route(
        "sdpa", "merged", _no_merged, "{many}: parts, merged", runs.run_merged, runs.merged_steps
    ),
    Route(
        "sdpa", "rows", _no_rows, "the formula on blocks of rows", runs.run_rows, runs.rows_steps
    ),
    Route(
        "reference", "reference", always, "{many}: the formula", runs.run_reference, ["reference"]
    ),
)  # fmt: skip
_NAMED = {(route.impl, route.name): route for route in ROUTES}
