"""The table of routes: every way in which a call of LaS attention can run, the best first.

A plan is made once per call: the first route of `ROUTES` that does not refuse it. In eager code
the plan is kept for the next call of the same shapes, dtypes and options. README.md beside this
file derives the routes; each has a file of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from longlens.ops.las import folded, kernel, local, merged, row, rows
from longlens.ops.las.call import (
    Call,
    cast,
    check,
    convert,
    fill_in,
    pieces,
    unpack,
    wants_float32,
)
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.flash import WIDEST_FLASH, flash_takes
from longlens.ops.las.plan import (
    Assumed,
    Plan,
    Route,
    always,
    assume,
    check_impl,
    choose,
    no_operator,
)
from longlens.ops.las.prepare import zero_rows
from longlens.ops.las.reference import reference
from longlens.ops.las.transforms import exporting, forward_mode, functional, known
from longlens.ops.las.triton import mirror_op, why_not
from longlens.ops.las.triton.attention_op import MOST_HEADS, NARROW, beats_sdpa
from longlens.ops.las.triton.prologue_op import LONGEST, MOST_SEQUENCES
from longlens.ops.launching import MOST_KEPT
from longlens.ops.numerics import keep_dtypes

NO_SINKS = "capped scores or a sink, which PyTorch's fused attention lacks"
WIDEST_BAND = 32  # the largest p = P//2 of `masked` whose p products per row are written out
# a compiler formats no number
_LIMIT = {dtype: f"{limit:g}" for dtype, limit in FOLD_RANGE.items()}


def many_calls(call: Call, assumed: Assumed) -> str | None:
    """Why one call of SDPA cannot do it; None: it can.

    Lengths and options may be symbolic here, and a compiler formats no such number: reasons hold
    none that depends on lengths, and those of options in eager code alone.
    """
    offset, queries = call.query_offset, call.query.shape[2]
    if call.changes_scores:
        return NO_SINKS
    if call.formula or (exporting() and call.chunk is not None):
        return "a derivative that fused kernels lack (forward-mode, second)"
    if isinstance(offset, Tensor):
        return "the query positions are a tensor"
    if call.local is not None:
        return "a sliding window"
    if not call.is_causal:
        return None if call.alpha is None else "two-sided decay"
    if call.banded:
        span = "" if torch.compiler.is_compiling() else f" over {call.window} positions"
        return f"masked smoothing{span}"
    if call.key_mask is not None:
        return "a key mask under a causal mask"
    if not (known(offset == 0) and known(call.key.shape[2] >= queries)):
        return "queries and keys are not one square"
    if call.alpha is None:
        return None
    if assumed.alpha_max is None:
        return "no static bound on α"
    dtype = call.query.dtype
    if not known(assumed.alpha_max * queries <= FOLD_RANGE[dtype]):
        return f"causal decay with α·L > {_LIMIT[dtype]}, out of range"
    return None


def kernel_refusal(call: Call, assumed: Assumed | None = None) -> str | None:
    """Why the Triton kernels cannot serve a call; None: they can."""
    reason = why_not(call.query.device, call.query.dtype, call.width)
    if reason is not None:
        return reason
    if call.formula:
        return "Triton kernels have no forward-mode and no second derivatives"
    if call.softcap is not None:
        return "Triton kernels have no softcap"
    if isinstance(call.query_offset, Tensor):
        return "Triton kernels take query_offset as an int, not as a tensor"
    if call.query.shape[0] * call.query.shape[1] > MOST_HEADS:
        return f"Triton kernels take up to {MOST_HEADS:,} heads, those of all sequences together"
    if call.chunk is not None:
        return "Triton kernels take no chunk here: in an export nothing cuts the sequence"
    if call.banded:
        if call.window // 2 > WIDEST_BAND:
            return f"Triton kernels take masked windows up to {2 * WIDEST_BAND + 1}"
        if call.query_offset < 0 or call.query_offset + call.query.shape[2] > call.key.shape[2]:
            return "Triton kernels take masked smoothing for queries that lie among the keys"
    return None


def prologue_runs(call: Call) -> bool:
    """Whether one Triton pass prepares Q, K and V for SDPA."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    return (
        call.query.is_cuda
        and not exporting()
        and why_not(call.query.device, call.query.dtype, call.width) is None
        and call.query.shape[0] <= MOST_SEQUENCES
        and queries <= min(keys, LONGEST)
        and (call.is_causal or queries == keys)
    )


def _usual(refusal: Callable[[Call, Assumed], str | None]) -> Any:
    """The refusal of a route that knows neither capped scores nor sinks."""
    return lambda call, assumed: NO_SINKS if call.changes_scores else refusal(call, assumed)


def _uncapped(refusal: Callable[[Call, Assumed], str | None]) -> Any:
    """The refusal of a route that knows no capped scores; a sink is one more part of it."""
    capped = "capped scores, which PyTorch's fused attention lacks"
    return lambda call, assumed: refusal(call, assumed) if call.softcap is None else capped


def _no_empty(call: Call, assumed: Assumed) -> str | None:
    empty = known(call.query.numel() == 0) or known(call.value.numel() == 0)
    return None if empty else "there is something to attend to"


def _no_row(call: Call, assumed: Assumed) -> str | None:
    one = known(call.query.shape[2] == 1) and call.is_causal and not call.formula
    if not one or (exporting() and call.chunk is not None):
        return "more than one causal query"
    if call.window > 1 and call.smoothing == "centered":
        return "centered windows reach past the query"
    return no_operator(call)


def _no_plain(call: Call, assumed: Assumed) -> str | None:
    return "decay" if call.alpha is not None else no_operator(call) or many_calls(call, assumed)


def _no_folded(call: Call, assumed: Assumed) -> str | None:
    return "no decay" if call.alpha is None else no_operator(call) or many_calls(call, assumed)


def _no_narrow(call: Call, assumed: Assumed) -> str | None:
    """Never without decay and smoothing: a square is SDPA, bit for bit."""
    if (
        not call.is_causal
        or call.key_mask is not None
        or not (call.alpha is not None or call.pools)
    ):
        return "only causal LaS without a mask"
    if not (beats_sdpa(call.query, call.value) and prologue_runs(call)):
        return f"not a narrow head (up to {NARROW} columns) on a recent GPU"
    return kernel_refusal(call) or many_calls(call, assumed)


def _no_mirrored(call: Call, assumed: Assumed) -> str | None:
    H, n = call.query.shape[1:3]
    two_sided = not call.is_causal and call.alpha is not None and assumed.alpha_max is not None
    square = call.key.shape[1:3] == (H, n) and call.key_mask is None and call.local is None
    at_start = isinstance(call.query_offset, int) and call.query_offset == 0
    if not (two_sided and square and at_start and mirror_op.serves(call.query, call.value)):
        return "only two-sided decay over a square without a mask, on a recent GPU"
    assert assumed.alpha_max is not None
    if assumed.alpha_max * n > FOLD_RANGE[call.query.dtype]:
        return "out of range"
    return kernel_refusal(call)


def _no_merged(call: Call, assumed: Assumed) -> str | None:
    if call.formula or exporting() or isinstance(call.query_offset, Tensor):
        return "static positions and first derivatives only, and no export"
    if call.local is not None:
        return "no sliding windows"
    if call.banded and call.window // 2 > WIDEST_BAND:
        return f"masked windows up to {2 * WIDEST_BAND + 1} only"
    if call.banded and call.query_offset + call.query.shape[2] > call.key.shape[2]:
        return "masked smoothing with queries beyond the last key"
    return no_operator(call)


def _no_narrow_window(call: Call, assumed: Assumed) -> str | None:
    """Up to 128 columns our kernels beat the flash operator (results/ops_local_h200.csv)."""
    if call.local is None or call.width > 128 or not flash_takes(call.query):
        return "a sliding window, half precision and heads of at most 128 columns only"
    return kernel_refusal(call)


def _no_sliding(call: Call, assumed: Assumed) -> str | None:
    """One call of CUDA's flash operator, where one of SDPA would do without the window."""
    if call.local is None or not call.query.is_cuda or exporting():
        return "a sliding window on CUDA devices only, and no export"
    if call.key_mask is not None or not (flash_takes(call.query) and call.width <= WIDEST_FLASH):
        return "half precision without a key mask only"
    square = call.is_causal or call.query.shape[2] == call.key.shape[2]
    if isinstance(call.query_offset, Tensor) or call.query_offset != 0 or not square:
        return "queries and keys are not one square"
    if functional() or not prologue_runs(call):
        return "no prologue here"
    return many_calls(replace(call, local=None), assumed)


def _no_rows(call: Call, assumed: Assumed) -> str | None:
    return no_operator(call)


def _run_empty(call: Call, plan: Plan) -> Tensor:
    return zero_rows(call.query, call.value.shape[3], call.key, call.value, call.alpha, call.sink)


def _run_reference(call: Call, plan: Plan) -> Tensor:
    return reference(call)


# Whose attention, route, why it refuses a call, why it is taken ({many}: what `many_calls` says),
# what runs, its steps, whether `impl` may name it.
ROUTES = (
    Route("sdpa", "empty", _no_empty, "nothing to attend to", _run_empty, []),
    Route(
        "sdpa", "row", _usual(_no_row),
        "one query: its row of scores is explicit, keys and values are read once",
        row.run, ["full_scores"],
    ),
    Route(
        "triton", "folded", _no_narrow,
        f"causal, heads of at most {NARROW} columns: our kernel in SDPA's place",
        folded.run, folded.steps, named=False,
    ),
    Route(
        "sdpa", "plain", _no_plain, "no decay: SDPA on pooled values", folded.run, folded.steps
    ),
    Route(
        "sdpa", "folded", _no_folded, "causal decay with α·L <= {limit}, in range: one SDPA call",
        folded.run, folded.steps,
    ),
    Route(
        "triton", "mirrored", _usual(_no_mirrored), "{many}: one call over two triangles",
        kernel.run_mirrored, kernel.mirrored_steps, named=False,
    ),
    Route(
        "triton", "kernel", _no_narrow_window, "a sliding window: one fused kernel",
        kernel.run, kernel.steps, named=False,
    ),
    Route(
        "sdpa", "sliding", _no_sliding, "a sliding window: one call of the flash operator",
        local.run_sliding, local.sliding_steps,
    ),
    Route("triton", "kernel", kernel_refusal, "{many}: one fused kernel", kernel.run, kernel.steps),
    Route("sdpa", "merged", _uncapped(_no_merged), "{many}: parts, merged", merged.run,
          merged.steps),
    Route(
        "sdpa", "local", _uncapped(local.refusal), "{many}: causal squares of its size, merged",
        local.run, local.steps,
    ),
    Route("sdpa", "rows", _no_rows, "{many}: the formula on blocks of rows", rows.run, rows.steps),
    Route("reference", "reference", always, "{many}: the formula", _run_reference, ["reference"]),
)  # fmt: skip
_NAMED = {(route.impl, route.name): route for route in ROUTES}


def attend(call: Call, impl: str) -> Tensor:
    """Check a call, decide how it runs, and run it."""
    plan, dtype = planned(call, impl)
    with keep_dtypes(call.query):  # `cast` has rounded the inputs; scores are not rounded
        out = run(call, plan)
    return out if out.dtype == dtype else out.to(dtype)


def planned(call: Call, impl: str) -> tuple[Plan, torch.dtype]:
    """Check the call, fill in its defaults and decide; also returns the result's dtype."""
    check_impl(impl)
    cast(call)
    dtype = call.query.dtype
    if impl in ("auto", "sdpa") and wants_float32(call):
        convert(call, torch.float32)
    key = _signature(call, impl)
    plans = None if key is None else _plans.get(key)
    if plans is None:
        check(call)
        plans = {}
        if key is not None:
            if len(_plans) >= MOST_KEPT:
                _plans.clear()
            _plans[key] = plans
    else:  # such a call has been checked
        fill_in(call)
    assumed = assume(call, impl)
    plan = plans.get(assumed)
    if plan is None:
        plan = plans[assumed] = make_plan(call, impl, assumed)
    return plan, dtype


_plans: dict[Any, dict[Assumed, Plan]] = {}  # of eager calls, by `_signature` and what α was


def _signature(call: Call, impl: str) -> Any:
    """All that decides about a plan but α; None for calls that are traced or transformed."""
    if torch.compiler.is_compiling() or functional() or forward_mode() or is_fake(call.query):
        return None
    if any(isinstance(number, Tensor) for number in (call.scale, call.softcap, call.alpha_max)):
        return None  # the same tensor may be another number, or require a gradient, next time
    tensors = (
        call.query, call.key, call.value, call.alpha, call.key_mask, call.query_offset, call.sink
    )  # fmt: skip
    kinds = tuple((t.shape, t.dtype, t.device) if isinstance(t, Tensor) else t for t in tensors)
    options = (call.window, call.smoothing, call.edge, call.is_causal, call.chunk, call.scale)
    bounds = (call.alpha_max, call.enable_gqa, torch.are_deterministic_algorithms_enabled())
    local = call.local if isinstance(call.local, tuple) else (call.local,)
    # 3.0 equals 3, which was checked
    types = tuple(map(type, (call.window, call.chunk, call.query_offset, *local)))
    key = (impl, kinds, options, bounds, call.local, call.softcap, types)
    try:
        hash(key)
    except TypeError:  # arguments that will be refused
        return None
    return key


def make_plan(call: Call, impl: str, assumed: Assumed) -> Plan:
    """The plan of a checked call: of its pieces, if it is chunked."""
    cut = call.chunk is not None and isinstance(call.query_offset, int) and not exporting()
    if not cut or impl == "reference" or _no_empty(call, assumed) is None:
        return _plan(call, impl, assumed)
    calls = [piece for _, piece in pieces(call)]
    plans = tuple(None if piece is None else _plan(piece, impl, assumed) for piece in calls)
    main, rows = Plan("sdpa", "empty"), 0  # that of the most rows speaks for all
    for piece, plan in zip(calls, plans, strict=True):
        if piece is not None and plan is not None and piece.query.numel() > rows:
            main, rows = plan, piece.query.numel()
    reasons = main.reasons
    if not torch.compiler.is_compiling():  # a compiler may have a symbol for the chunk
        count = sum(plan is not None for plan in plans)
        reasons = (f"chunk of {call.chunk}: {count} call(s) over blocks", *reasons)
    return replace(main, reasons=reasons, pieces=plans)


def _plan(call: Call, impl: str, assumed: Assumed) -> Plan:
    route = choose(ROUTES, call, impl, assumed)
    many = many_calls(call, assumed) or ("no fused form here" if impl == "auto" else "by name")
    if route.impl == "reference" and impl == "auto":
        many = no_operator(call) or many
    reasons = [route.why.format(many=many, limit=_LIMIT[call.query.dtype])]
    heads, kv_heads = call.heads
    if (
        heads != kv_heads
        and route.impl == "sdpa"
        and route.name in ("folded", "merged", "local", "sliding")
    ):
        shared = route.name in ("folded", "sliding") and assumed.equal_in_group
        reasons.append(
            "α is equal inside each group: keys and values stay unrepeated"
            if shared
            else f"keys and values are repeated to {heads} heads"
        )
    by_prologue = route.run in (folded.run, local.run_sliding)
    prologue = route.impl == "triton" or (by_prologue and prologue_runs(call))
    return Plan(route.impl, route.name, tuple(reasons), assumed, prologue)


def run(call: Call, plan: Plan) -> Tensor:
    """Compute a checked call as its plan says: (B, Hq, L, Dv)."""
    if plan.pieces or not plan.prologue:
        unpack(call)
    if not plan.pieces:
        return _NAMED[plan.impl, plan.route].run(call, plan)
    outs = []
    for (count, piece), own in zip(pieces(call), plan.pieces, strict=True):
        if piece is None or own is None:
            outs.append(_run_empty(replace(call, query=call.query[:, :, :count]), plan))
        else:
            out = run(piece, own)  # (B·blocks, H, chunk, Dv)
            outs.append(out.unflatten(0, (call.query.shape[0], -1)).transpose(1, 2).flatten(2, 3))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def with_steps(call: Call, plan: Plan) -> Plan:
    """The plan with the names of the functions and kernels that it runs, in their order."""
    if not plan.pieces:
        found = _NAMED[plan.impl, plan.route].steps
        found = found if isinstance(found, list) else found(call, plan)
    else:
        each = zip((piece for _, piece in pieces(call)), plan.pieces, strict=True)
        found = [s for piece, own in each if piece and own for s in with_steps(piece, own).steps]
    return replace(plan, steps=tuple(found))
