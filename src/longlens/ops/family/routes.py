"""How a call of `decay_attention` runs: the table of routes, the best first."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longlens.ops.family.biased import biased_attention
from longlens.ops.family.call import DecayCall, check
from longlens.ops.family.fold import ADD_RANGE, columns, levels, scaled
from longlens.ops.family.parts import equal_widths, halved, sink_part, square
from longlens.ops.family.reference import reference
from longlens.ops.family.taps import filter_values
from longlens.ops.las.call import Call
from longlens.ops.las.checks import may_read
from longlens.ops.las.decay import FOLD_RANGE
from longlens.ops.las.folded import sdpa
from longlens.ops.las.merge_op import merged_attention
from longlens.ops.las.plan import Assumed, Plan, Route, always, choose, no_operator
from longlens.ops.las.prepare import narrow, repeat_heads
from longlens.ops.las.routes import attend as attend_las
from longlens.ops.las.transforms import exporting, functional, needs_formula
from longlens.ops.numerics import full_precision, no_autocast

ROW_BLOCK = 128  # rows whose scores the formula holds at a time
IMPLEMENTATIONS = ("auto", "reference", "sdpa")


def attend(call: DecayCall, impl: str) -> Tensor:
    """Check a call, decide how it runs, and run it: (B, Hq, L, Dv)."""
    device = call.query.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # as SDPA does; decays keep theirs
        dtype = torch.get_autocast_dtype(device)
        call.query, call.key, call.value = (t.to(dtype) for t in (call.query, call.key, call.value))
        with no_autocast(call.query):
            return attend(call, impl)
    plan = make_plan(check(call), impl)
    return _NAMED[plan.impl, plan.route].run(call, plan)


def make_plan(call: DecayCall, impl: str) -> Plan:
    """The first route that does not refuse the call, and what it assumes of ranges."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")
    empty = call.query.numel() == 0 or call.key.shape[2] == 0
    assumed = Assumed() if impl == "reference" or empty else Assumed(fits=_fits(call))
    route = choose(ROUTES, call, impl, assumed)
    many = _many_calls(call, assumed) or "asked for by name"
    return Plan(route.impl, route.name, (route.why.format(many=many),), assumed)


def _fits(call: DecayCall) -> bool:
    """Whether all decays fold in range, as far as that is known or may be read.

    What is added cannot overflow, and in half precision no range of it costs digits that scores
    have, so that it is not read there.
    """
    dtype = call.query.dtype if call.query.is_cuda else _wide(call.query.dtype)
    half = dtype in (torch.bfloat16, torch.float16)
    multiplied = 0.0 if call.rate_max is None else call.rate_max * call.key.shape[2]
    if (not call.multiplies or call.rate_max is not None) and (not call.adds or half):
        return bool(multiplied <= FOLD_RANGE[dtype])
    if not may_read(call.query):
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


def _no_fold(call: DecayCall, assumed: Assumed) -> str | None:
    """What no difference of positions can express, and what fused kernels do not have."""
    tensors = [t for t in vars(call).values() if isinstance(t, Tensor)]
    if needs_formula(*tensors) or functional() or exporting():
        return "a derivative or a transform that only the formula has"
    if call.power is not None:
        return "a power law is no difference of positions"
    if call.taps is not None and call.smoothing == "masked" and call.taps.shape[1] > 1:
        return "taps that are cut at the query"
    if call.query.shape[2] != call.key.shape[2]:
        return "fewer queries than keys"
    if call.query.numel() == 0 or call.value.numel() == 0:
        return "nothing to attend to"
    return no_operator(call)


def _no_las(call: DecayCall, assumed: Assumed) -> str | None:
    if call.adds or call.log_gate is not None or call.sink is not None or call.power is not None:
        return "more than LaS's decay"
    if call.taps is not None and call.smoothing == "masked" and call.taps.shape[1] > 1:
        return "taps that are cut at the query"
    return None


def _no_folded(call: DecayCall, assumed: Assumed) -> str | None:
    return _no_fold(call, assumed) or _many_calls(call, assumed)


def _no_merged(call: DecayCall, assumed: Assumed) -> str | None:
    if not call.is_causal and not assumed.fits:
        return "two-sided decay out of range"
    return _no_fold(call, assumed)


def _prepared(call: DecayCall) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and filtered values with as many heads, float32 at least on a CPU."""
    v = call.value
    if call.taps is not None:
        v = repeat_heads(call.query, v)[0]
        v = filter_values(v, call.taps, call.smoothing, call.edge, call.key_mask)
    elif call.key_mask is not None:
        v = v.masked_fill(~call.key_mask[:, None, :, None], 0)
    k, v = repeat_heads(call.query, call.key, v)
    if call.key_mask is not None:
        k = k.masked_fill(~call.key_mask[:, None, :, None], 0)
    if call.query.is_cuda:
        return call.query, k, v
    return full_precision(call.query), full_precision(k), full_precision(v)


def _run_las(call: DecayCall, plan: Plan) -> Tensor:
    v = call.value
    if call.taps is not None:
        v = filter_values(
            repeat_heads(call.query, v)[0], call.taps, call.smoothing, call.edge, call.key_mask
        )
    k = call.key if v.shape[1] == call.key.shape[1] else repeat_heads(call.query, call.key)[0]
    las = Call(
        call.query, k, v, call.alpha, is_causal=call.is_causal, key_mask=call.key_mask,
        alpha_max=call.rate_max, scale=call.scale, enable_gqa=True,
    )  # fmt: skip
    return attend_las(las, "auto")


def _run_folded(call: DecayCall, plan: Plan) -> Tensor:
    q, k, v = _prepared(call)
    m, a = levels(call, fits=True)
    if m is not None:
        centre = 0.5 * (m[:, :, :1] + m[:, :, -1:]).detach()
        q, k = scaled(q, m - centre), scaled(k, centre - m)
    if a is None:
        out = sdpa(*equal_widths(q, k, v), is_causal=True, key_mask=None, scale=call.scale)
    else:
        bias = 0.5 * (a[:, :, :1] + a[:, :, -1:]).detach() - a
        if q.is_cuda or torch.compiler.is_compiling():
            q, k = columns(q, [None], call.scale), columns(k, [bias], call.scale)
            out = sdpa(*equal_widths(q, k, v), is_causal=True, key_mask=None, scale=call.scale)
        else:
            q, k, v = equal_widths(q, k, v)
            out = biased_attention(q, k, v, bias, call.scale)
    return narrow(out, call.value.shape[3]).to(call.query.dtype)


def _run_merged(call: DecayCall, plan: Plan) -> Tensor:
    q, k, v = _prepared(call)
    of, mask = levels(call, plan.assumed.fits), call.key_mask
    if plan.assumed.fits and call.is_causal:
        items = square(q, k, v, (of, of), mask, call.scale)
    elif plan.assumed.fits:  # the strict upper triangle, read from its end, is causal again
        items = square(q, k, v, (of, of), mask, call.scale)
        if q.shape[2] > 1:
            back = (q[:, :, :-1].flip(2), k[:, :, 1:].flip(2), v[:, :, 1:].flip(2))
            own = (of.rows(slice(1, None)), of.rows(slice(0, -1)))
            mask = None if mask is None else mask[:, 1:].flip(1)
            items += square(*back, own, mask, call.scale, flipped=True)
    else:
        items = halved(q, k, v, of, mask, call.scale)
    rows = max(part.period * own[0].shape[2] for part, own in items)
    if call.sink is not None:
        padded = torch.cat([q, q.new_zeros(*q.shape[:2], rows - q.shape[2], q.shape[3])], 2)
        items.append(sink_part(call.sink, padded, items[0][1][2].shape[-1]))
    out = merged_attention(items, rows)[:, :, : q.shape[2]]
    return narrow(out, call.value.shape[3]).to(call.query.dtype)


def _run_rows(call: DecayCall, plan: Plan) -> Tensor:
    """The formula on blocks of rows, recomputed in backward, in float32 at least."""
    names = [n for n, t in vars(call).items() if isinstance(t, Tensor) and n != "query"]
    tensors = [getattr(call, n) for n in names]

    def block(rows: Tensor, first: int, *tensors: Tensor) -> Tensor:
        own = replace(call, query=full_precision(rows), offset=first)
        for name, tensor in zip(names, tensors, strict=True):
            setattr(own, name, full_precision(tensor) if name in ("key", "value") else tensor)
        return reference(own).to(call.query.dtype)

    size = ROW_BLOCK if call.log_gate is None else max(1, ROW_BLOCK // call.query.shape[3])
    if functional() or exporting() or call.query.shape[2] <= size:
        return block(call.query, call.offset, *tensors)
    outs = [
        checkpoint(
            block,
            rows,
            call.offset + n * size,
            *tensors,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for n, rows in enumerate(call.query.split(size, dim=2))
    ]
    return torch.cat(outs, dim=2)


def _run_reference(call: DecayCall, plan: Plan) -> Tensor:
    return reference(call)


def _no_rows(call: DecayCall, assumed: Assumed) -> str | None:
    return None if call.query.device.type in ("cpu", "cuda", "meta") else "another device"


# Whose attention, route, why it refuses a call, why it is taken, what runs, its steps
ROUTES = (
    Route("sdpa", "las", _no_las, "LaS attention on filtered values", _run_las, []),
    Route(
        "sdpa", "folded", _no_folded, "every decay in range: one attention call", _run_folded, []
    ),
    Route("sdpa", "merged", _no_merged, "{many}: parts, merged", _run_merged, []),
    Route("sdpa", "rows", _no_rows, "the formula on blocks of rows", _run_rows, []),
    Route("reference", "reference", always, "{many}: the formula", _run_reference, []),
)
_NAMED = {(route.impl, route.name): route for route in ROUTES}
