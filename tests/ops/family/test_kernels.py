"""The family's Triton kernels, run by Triton's interpreter on a CPU (make test-kernels)."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from longlens.ops.family import decay_attention, explain_decay, filter_values
from longlens.ops.family.triton import added_op
from longlens.ops.family.triton.gates_op import fold_gates
from longlens.ops.las.call import Call, check
from longlens.ops.las.decay import fold_square
from longlens.ops.las.plan import Assumed, Plan
from longlens.ops.las.prepare import folded_inputs

from ..las.test_plan import recorded
from .test_family import Case, cases, error, run, run_in

pytestmark = [
    pytest.mark.kernels,
    # numpy, behind the interpreter, on values that the kernels discard afterwards
    pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning"),
]
short = pytest.mark.kernels_short
BY_PROLOGUE = Plan("sdpa", "folded", assumed=Assumed(0.01), prologue=True)

CASES = {
    "alibi": Case(2, 2, 1, 140, 140, 16, 16, ("slopes",), 0.3, False, 1),
    "fox": Case(2, 1, 2, 70, 70, 8, 6, ("log_forget",), 0.1, True, 2),
    "both": Case(1, 2, 1, 131, 131, 24, 40, ("log_forget", "slopes"), 3.0, False, 3),
    "last queries": Case(1, 1, 2, 50, 131, 8, 8, ("log_forget", "taps"), 0.3, True, 4),
    "one query": Case(1, 2, 1, 1, 90, 8, 8, ("slopes", "sink"), 40.0, False, 5),
    "a long cache": Case(1, 2, 1, 1, 2100, 8, 8, ("log_forget", "slopes"), 0.01, False, 10),
    "sink": Case(1, 1, 2, 70, 70, 8, 8, ("log_forget", "sink"), 0.1, True, 6),
    "gates": Case(1, 2, 1, 150, 150, 12, 8, ("log_gate", "log_forget"), 0.004, False, 7),
    "gates and rates": Case(1, 1, 2, 70, 70, 8, 8, ("alpha", "log_gate", "sink"), 0.004, True, 8),
    "power": Case(2, 2, 1, 140, 140, 16, 16, ("power",), 0.5, False, 14),
    "power and more": Case(
        1, 1, 2, 50, 131, 8, 24, ("power", "log_forget", "slopes", "sink", "taps"), 0.3, True, 15
    ),
    "masked": Case(2, 1, 1, 70, 70, 8, 8, ("log_gate",), 0.004, True, 9),
}


def over_budget(case, dtype):
    """What exceeds twice the error of the formula in this dtype, both against float64."""
    low, mask, grad = case.tensors(dtype)
    exact_case, wide = case.tensors, torch.promote_types(dtype, torch.float32)

    def same_numbers(wanted=torch.float64):
        kind = torch.promote_types(wanted, torch.float32)
        named = ("query", "key", "value")
        return (
            {n: t.to(wanted if n in named else kind) for n, t in low.items()},
            mask,
            grad.to(wanted),
        )

    case.tensors = same_numbers
    try:
        exact, plain = run(case, "reference"), run_in(case, dtype)
        fast = run(case, "triton", dtype)
    finally:
        case.tensors = exact_case
    over = []
    for name, true in exact.items():
        of_sides = name not in ("out", "query", "key", "value") and dtype == wide
        floor = 8 * torch.finfo(dtype).eps
        allowed = (10 if of_sides else 2) * max(error(plain[name].double(), true), floor)
        if not error(fast[name].double(), true) <= allowed:
            over.append((name, error(fast[name].double(), true), allowed))
    return over


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_within_twice_the_error_of_the_formula(name, dtype):
    assert over_budget(CASES[name], dtype) == []


@pytest.mark.parametrize("parts", [("slopes",), ("sink", "slopes")])
def test_steep_slopes(parts):
    """Their gradient all but vanishes, and rounding must not count by positions.

    In float32, where it does so a little, `auto` takes parts instead.
    """
    case = Case(1, 2, 1, 200, 200, 32, 32, parts, 3.0, False, 5)
    assert over_budget(case, torch.float16) == []


@given(cases())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_call(case):
    tensors, mask, _ = case.tensors(torch.float16)
    options = dict(key_mask=mask, enable_gqa=True, impl="triton", **case.options)
    try:
        explain_decay(**tensors, **options)
    except ValueError:  # what the kernels do not serve
        return
    assert over_budget(case, torch.float16) == []


@short
@pytest.mark.parametrize("name", ["fox", "gates", "power and more"])
def test_every_kernel_once(name):
    assert over_budget(CASES[name], torch.float16) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("smoothing", ["causal", "centered"])
def test_taps_in_the_prologue(smoothing, dtype):
    check_taps(smoothing, dtype, True)


@short
def test_taps_in_the_prologue_once():
    check_taps("centered", torch.float32, False)


def check_taps(smoothing, dtype, learned_rates):
    """Values that the prologue filters, and all gradients, are those of torch."""
    source = torch.randn(3, 2, 2, 100, 16, dtype=dtype).unbind()
    alpha = torch.tensor([0.005, 0.01], requires_grad=learned_rates)
    taps = torch.randn(2, 5, requires_grad=True)
    mask = torch.rand(2, 100) > 0.3
    up = [torch.randn(2, 2, 100, 16, dtype=dtype) for _ in range(3)]
    results = []
    for fused in (True, False):
        q, k, v = (t.clone().requires_grad_() for t in source)
        if fused:
            options = dict(alpha=alpha, taps=taps, window=5, smoothing=smoothing, key_mask=mask)
            *outs, scale = folded_inputs(check(Call(q, k, v, **options)), BY_PROLOGUE)
        else:
            q_out, k_out, scale = fold_square(q, k, alpha, 0.01, 0.25)
            outs = q_out, k_out, filter_values(v, taps, smoothing, key_mask=mask)
        # float16 moves a power of two between the factors and the scale
        factor = scale**0.5
        grads = [g / factor for g in up[:2]]
        wanted = [q, k, v, taps, *[alpha] * learned_rates]
        grads = torch.autograd.grad(outs, wanted, [*grads, up[2]])
        results.append([t.detach() for t in (outs[0] * factor, outs[1] * factor, outs[2], *grads)])
    bound = 1e-5 if dtype == torch.float32 else 4e-3
    for a, b in zip(*results, strict=True):
        assert error(a.double(), b.double()) < bound


@short
def test_the_future_changes_no_bit_and_results_repeat():
    q, k, v = torch.randn(3, 1, 2, 90, 8).unbind()
    forget = -3 * torch.rand(1, 2, 90)
    first, again = (decay_attention(q, k, v, log_forget=forget, impl="triton") for _ in range(2))
    assert torch.equal(first, again)
    for x in (k, v):
        x[:, :, 45:] = 1e3 * torch.randn(1, 2, 45, 8)
    after = decay_attention(q, k, v, log_forget=forget, impl="triton")
    assert torch.equal(first[:, :, :45], after[:, :, :45])


def test_levels_keep_near_scores_at_any_range():
    """Gates of -1,000 a token: only the token itself and its digits are left."""
    q, k, v = torch.randn(3, 1, 1, 200, 8).unbind()
    out = decay_attention(q, k, v, log_forget=torch.full((1, 1, 200), -1e3), impl="triton")
    torch.testing.assert_close(out, v)
    near = torch.full((1, 1, 200), -1e-3)
    near[:, :, [40, 100]] = -1e9  # a new document; float32 has no digits left there
    found = decay_attention(q, k, v, log_forget=near, impl="triton")
    exact = decay_attention(*(t.double() for t in (q, k, v)), log_forget=near.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inside", [False, True])
def test_gates_that_lie_as_a_projection_writes_them(inside):
    q, k = torch.randn(2, 2, 2, 70, 8).unbind()
    gate = -0.01 * torch.rand(2, 2, 70, 8)
    if inside:
        q, k, gate = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, gate))
    inputs = [t.requires_grad_() for t in (q, k, gate)]
    m = gate.double().cumsum(2)
    centre = 0.5 * m[:, :, -1:].detach()
    expected = (q * torch.exp(m - centre), k * torch.exp(centre - m))
    up = [torch.randn(2, 2, 70, 8) for _ in range(2)]
    exact = torch.autograd.grad(expected, inputs, [t.double() for t in up])
    scaled = fold_gates(*inputs)
    for a, b in zip(scaled, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    for a, b in zip(torch.autograd.grad(scaled, inputs, up), exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@short
@pytest.mark.parametrize("name", ["fox", "gates", "sink", "last queries", "power"])
def test_explain_names_the_kernels_that_run(name):
    tensors, mask, _ = CASES[name].tensors(torch.float32)
    options = dict(key_mask=mask, enable_gqa=True, impl="triton")
    plan = explain_decay(**tensors, **options)
    assert "added_forward" in plan.steps
    assert recorded(lambda: decay_attention(**tensors, **options)) == list(plan.steps)


FAR = {
    "slopes": Case(1, 2, 1, 300, 300, 8, 8, ("slopes",), 3.0, False, 11),
    "gates": Case(2, 1, 2, 200, 330, 8, 16, ("log_forget",), 1.5, False, 12),
    "rising": Case(1, 1, 2, 300, 300, 8, 8, ("log_forget", "slopes"), 2.0, False, 13),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", FAR)
def test_far_keys_are_not_visited(name, dtype, monkeypatch):
    check_far_keys(FAR[name], dtype, monkeypatch)


@short
def test_far_keys_are_not_visited_once(monkeypatch):
    check_far_keys(FAR["gates"], torch.float16, monkeypatch)


def check_far_keys(case, dtype, monkeypatch):
    """Neither results nor gradients change, and the bound holds for every pair that is left out."""
    monkeypatch.setattr(added_op, "GROUP", 16)
    monkeypatch.setattr(added_op, "SHORTEST", 64)
    if case is FAR["rising"]:  # levels that rise and fall
        usual = case.tensors
        monkeypatch.setattr(
            case, "tensors", lambda *a, **o: _rising(*usual(*a, **o)), raising=False
        )
    assert over_budget(case, dtype) == []
    tensors, _, _ = case.tensors(dtype)
    q, k, v = (tensors[n] for n in ("query", "key", "value"))
    forget, slopes, scale = tensors.get("log_forget"), tensors.get("slopes"), 8**-0.5
    *_, level, reach = added_op._forward(q, k, v, forget, slopes, None, None, scale)
    begin, end = (t.view(*q.shape[:2], -1) for t in added_op._parted(reach, q))
    weights = _bounds(q, k, level.sum(2).double(), scale)
    rows, columns = (torch.arange(n) // 16 for n in weights.shape[2:])
    left_out = columns < begin[:, :, rows, None]
    assert left_out.any() and weights[left_out].max() < -64
    left_out = rows[:, None] >= end[:, :, None, columns]
    assert left_out.any() and weights[left_out].max() < -64


def _rising(tensors, mask, grad):
    return tensors | {"slopes": -tensors["slopes"] / 4}, mask, grad


def _bounds(q, k, level, scale):
    """What the weight of each pair is at most, in units of log 2: (B, Hq, L, S)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    longest = k.double().norm(dim=-1).amax(-1)[..., None, None]
    score = 2 * scale * 1.4427 * q.double().norm(dim=-1)[..., None] * longest
    return score + level[:, :, -q.shape[2] :, None] - level[:, :, None, :]


@short
def test_the_future_changes_no_bit_of_what_far_keys_leave(monkeypatch):
    monkeypatch.setattr(added_op, "GROUP", 16)
    monkeypatch.setattr(added_op, "SHORTEST", 64)
    q, k, v = torch.randn(3, 1, 2, 300, 8).unbind()
    forget = -1.5 * torch.rand(1, 2, 300)
    before = decay_attention(q, k, v, log_forget=forget, impl="triton")
    for x in (k, v):
        x[:, :, 250:] *= 3
    after = decay_attention(q, k, v, log_forget=forget, impl="triton")
    assert torch.equal(before[:, :, :250], after[:, :, :250])
