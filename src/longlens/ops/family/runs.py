"""What the routes of `decay_attention` do: values are filtered, decays folded, attention called."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longlens.ops.family.biased import biased_attention
from longlens.ops.family.call import DecayCall
from longlens.ops.family.fold import added, columns, levels, multiplied, scaled
from longlens.ops.family.parts import equal_widths, halved, square
from longlens.ops.family.reference import reference
from longlens.ops.family.taps import filter_values
from longlens.ops.family.triton.added_op import added_attention, finds_reach
from longlens.ops.family.triton.gates_op import fold_gates
from longlens.ops.las import routes as las
from longlens.ops.las.call import Call
from longlens.ops.las.folded import sdpa
from longlens.ops.las.merge_op import merged_attention
from longlens.ops.las.parts import sink_part
from longlens.ops.las.plan import Plan
from longlens.ops.las.prepare import narrow, repeat_heads
from longlens.ops.las.smoothing import reach
from longlens.ops.las.transforms import exporting, functional, needs_formula
from longlens.ops.las.triton.attention_op import kernel_attention
from longlens.ops.las.triton.prologue_op import WIDEST_WINDOW, Arguments, Layout, prologue
from longlens.ops.numerics import full_precision

ROW_BLOCK = 128  # rows whose scores the formula holds at a time


def _real(call: DecayCall, x: Tensor) -> Tensor:
    """X (B, H, S, ·), zero at masked keys."""
    return x if call.key_mask is None else x.masked_fill(~call.key_mask[:, None, :, None], 0)


def _by_prologue(call: DecayCall) -> bool:
    """Whether the prologue of LaS, which averages, may filter by these taps instead."""
    if call.taps is None or needs_formula(call.taps):
        return False
    return 1 < call.taps.shape[1] <= WIDEST_WINDOW and call.edge == "zero"


def _filtered(call: DecayCall, plan: Plan) -> Tensor:
    """The values after the smoother, zero at masked keys; with taps as many heads as queries."""
    if call.taps is None:
        return _real(call, call.value)
    v = repeat_heads(call.query, call.value)[0]
    if not (plan.prologue and _by_prologue(call)):
        return filter_values(v, call.taps, call.smoothing, call.edge, call.key_mask)
    before, after = reach(call.taps.shape[1], call.smoothing)
    layout = Layout(0, 0, v.shape[1], 1, before, after, v.shape[2], v.shape[3], taps=1)
    return prologue(Arguments(v, mask=call.key_mask, share=call.taps, numbers=list(layout)))[2]


def _prepared(call: DecayCall, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and filtered values; heads as many as needed.

    On a CPU they are float32 at least, and also where a learned number per position would be a
    column of the keys: its gradient in half precision, summed over positions, is mostly rounding.
    """
    q, k, v = call.query, _real(call, call.key), _filtered(call, plan)
    if plan.route != "kernel" or call.multiplies or v.shape[1] != k.shape[1]:
        k, v = repeat_heads(q, k, v)
    learned = any(t is not None and t.requires_grad for t in (call.slopes, call.log_forget))
    if plan.impl == "triton" or (q.is_cuda and not learned):
        return q, k, v
    return full_precision(q), full_precision(k), full_precision(v)


def _one_pass(call: DecayCall, plan: Plan) -> bool:
    """Whether one Triton pass folds the gates into queries and keys."""
    square = call.query.shape[2] == call.key.shape[2]
    return plan.prologue and call.log_gate is not None and square


def _folded(call: DecayCall, plan: Plan, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, scaled by what multiplies their products."""
    if _one_pass(call, plan):
        gate = call.log_gate
        if gate is not None and call.alpha is not None:  # a constant gate of each head
            gate = gate - call.alpha[None, :, None, None]
        q, k = fold_gates(q, k, gate)
        return q, k
    m = multiplied(call, fits=True)
    if m is None:
        return q, k
    centre = 0.5 * (m[:, :, :1] + m[:, :, -1:]).detach()
    return scaled(q, m[:, :, call.offset :] - centre), scaled(k, centre - m)


def _prepare_steps(call: DecayCall, plan: Plan) -> list[str]:
    found = []
    if call.taps is not None:
        fused = plan.prologue and _by_prologue(call)
        found = ["prologue_forward" if fused else "filter_values"]
    if _one_pass(call, plan):
        return [*found, "gate_sums", "gate_fold"]
    return [*found, *["scaled"] * (2 * call.multiplies)]


def _las_call(call: DecayCall) -> tuple[Call, Plan]:
    """Attention of LaS on filtered values, or with taps that its prologue filters by."""
    k, v = call.key, call.value
    if call.taps is not None:
        k, v = repeat_heads(call.query, k, v)
    found = Call(
        call.query, k, v, call.alpha, is_causal=call.is_causal, key_mask=call.key_mask,
        alpha_max=call.rate_max, scale=call.scale, enable_gqa=True,
    )  # fmt: skip
    if call.taps is not None and _by_prologue(call):
        fused = replace(found, window=call.taps.shape[1], smoothing=call.smoothing, taps=call.taps)
        plan, _ = las.planned(fused, "auto")
        if plan.prologue:
            return fused, plan
    if call.taps is not None:
        found.value = filter_values(v, call.taps, call.smoothing, call.edge, call.key_mask)
    return found, las.planned(found, "auto")[0]


def run_las(call: DecayCall, plan: Plan) -> Tensor:
    """LaS attention on filtered values."""
    return las.run(*_las_call(call)).to(call.query.dtype)


def las_steps(call: DecayCall, plan: Plan) -> list[str]:
    """The functions and kernels of `run_las`."""
    found, own = _las_call(call)
    apart = call.taps is not None and found.taps is None
    return ["filter_values"] * apart + list(las.with_steps(found, own).steps)


def run_kernel(call: DecayCall, plan: Plan) -> Tensor:
    """Attention by our kernel, which adds decays to scores, whatever their range."""
    q, k, v = _prepared(call, plan)
    q, k = _folded(call, plan, q, k)
    out, lse = added_attention(
        q, k, v, log_forget=call.log_forget, slopes=call.slopes, power=call.power,
        mask=call.key_mask, scale=call.scale,
    )  # fmt: skip
    if call.sink is None:
        return out
    kept = torch.sigmoid(lse - call.sink[:, None].to(lse.dtype))
    return (out * kept[..., None]).to(out.dtype)


def kernel_steps(call: DecayCall, plan: Plan) -> list[str]:
    """The functions and kernels of `run_kernel`."""
    reach = (
        ["longest_rows", "longest_rows", "level_reach"]
        if finds_reach(call.key.shape[2], call.key_mask, call.power)
        else []
    )
    return [*_prepare_steps(call, plan), "level_sums", *reach, "added_forward"]


def run_folded(call: DecayCall, plan: Plan) -> Tensor:
    """One call of attention, SDPA's or ours, on scaled queries and keys."""
    q, k, v = _prepared(call, plan)
    q, k = _folded(call, plan, q, k)
    a = added(call)
    if plan.impl == "triton":
        out, _ = kernel_attention(q, k, v, alpha=None, lag=0, scale=call.scale)
    elif a is None:
        out = sdpa(*equal_widths(q, k, v), is_causal=True, key_mask=None, scale=call.scale)
    else:
        bias = 0.5 * (a[:, :, :1] + a[:, :, -1:]).detach() - a
        if _takes_columns(call):
            q, k = columns(q, [None], call.scale), columns(k, [bias], call.scale)
            out = sdpa(*equal_widths(q, k, v), is_causal=True, key_mask=None, scale=call.scale)
        else:
            q, k, v = equal_widths(q, k, v)
            out = biased_attention(q, k, v, bias, call.scale)
    return narrow(out, call.value.shape[3]).to(call.query.dtype)


def _takes_columns(call: DecayCall) -> bool:
    """Whether what is added is a column of queries and keys, and not the operator's bias."""
    return call.query.is_cuda or torch.compiler.is_compiling()


def folded_steps(call: DecayCall, plan: Plan) -> list[str]:
    """The functions and kernels of `run_folded`."""
    found = _prepare_steps(call, plan)
    if plan.impl == "triton":
        return [*found, "forward_kernel"]
    if call.adds and not _takes_columns(call):
        return [*found, "biased_attention"]
    return [*found, *["columns"] * (2 * call.adds), "scaled_dot_product_attention"]


def run_merged(call: DecayCall, plan: Plan) -> Tensor:
    """Parts in range, merged by their log-sum-exp."""
    q, k, v = _prepared(call, plan)
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
        items.append(sink_part(call.sink, items, rows))
    out = merged_attention(items, rows)[:, :, : q.shape[2]]
    return narrow(out, call.value.shape[3]).to(call.query.dtype)


def merged_steps(call: DecayCall, plan: Plan) -> list[str]:
    """The functions of `run_merged`; folding its parts is no step of its own."""
    return ["filter_values"] * (call.taps is not None) + ["merged_attention"]


def run_rows(call: DecayCall, plan: Plan) -> Tensor:
    """The formula on blocks of rows, recomputed in backward, in float32 at least."""
    names = [name for name in call.tensors if name != "query"]
    tensors = [getattr(call, n) for n in names]

    def block(rows: Tensor, first: int, *tensors: Tensor) -> Tensor:
        own = replace(call, query=full_precision(rows), offset=first)
        for name, tensor in zip(names, tensors, strict=True):
            setattr(own, name, full_precision(tensor) if name in ("key", "value") else tensor)
        return reference(own).to(call.query.dtype)

    size = _row_block(call)
    if call.query.shape[2] <= size:
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


def _row_block(call: DecayCall) -> int:
    """Rows of a block; all of them in transforms and exports, which know no checkpoints."""
    if functional() or exporting():
        return max(1, call.query.shape[2])
    return ROW_BLOCK if call.log_gate is None else max(1, ROW_BLOCK // call.query.shape[3])


def rows_steps(call: DecayCall, plan: Plan) -> list[str]:
    """The functions of `run_rows`."""
    return ["reference"] * max(1, -(-call.query.shape[2] // _row_block(call)))


def run_reference(call: DecayCall, plan: Plan) -> Tensor:
    """The formula as it is written."""
    return reference(call)
