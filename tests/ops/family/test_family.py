"""The family against its definition, in float64: output and all gradients to 1e-10."""

import os
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from longlens import decay_rates, las_attention
from longlens.ops.family import (
    biased,
    decay_attention,
    decay_weights,
    explain_decay,
    smoothing_taps,
)
from longlens.ops.family.call import DecayCall, check
from longlens.ops.family.reference import reference

from ..las.test_plan import STEPS, recorded

BOUND = 1e-10
LENGTHS = (1, 2, 3, 15, 16, 17, 33, 70, 131)
CAUSAL = ("alpha", "log_gate", "slopes", "power", "log_forget", "sink", "taps")
BOTH = ("alpha", "slopes", "power", "sink", "taps")
NAMES = {  # the functions that are steps of a route
    "las": {*STEPS, "filter_values"},
    "folded": {"filter_values", "scaled", "columns", "biased_attention"},
    "tiles": {"filter_values", "biased_attention"},
    "merged": {"filter_values", "merged_attention"},
    "rows": {"reference"},
}


@dataclass
class Case:
    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    width: int
    value_width: int
    parts: tuple
    rate: float
    masked: bool
    seed: int
    window: int = 3
    options: dict = field(default_factory=dict)

    def tensors(self, dtype=torch.float64):
        g = torch.Generator().manual_seed(self.seed)
        heads, S = self.kv_heads * self.group, self.keys

        def draw(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        found = dict(
            query=draw(self.batch, heads, self.queries, self.width).to(dtype),
            key=draw(self.batch, self.kv_heads, S, self.width).to(dtype),
            value=draw(self.batch, self.kv_heads, S, self.value_width).to(dtype),
        )
        sides = dict(
            alpha=self.rate * draw(heads).abs(),
            log_gate=-self.rate * draw(self.batch, heads, S, self.width).abs(),
            slopes=self.rate * draw(heads).abs(),
            power=draw(heads).abs(),
            log_forget=-self.rate * draw(self.batch, heads, S).abs(),
            sink=draw(heads),
            taps=0.3 + draw(heads, self.window).abs(),
        )
        wide = torch.promote_types(dtype, torch.float32)
        found |= {n: t.to(wide) for n, t in sides.items() if n in self.parts}
        grad = draw(self.batch, heads, self.queries, self.value_width).to(dtype)
        mask = None
        if self.masked:
            mask = torch.rand(self.batch, S, generator=g) > 0.3
            mask[0] &= self.seed % 3 > 0  # at times a sequence without a single real key
        return found, mask, grad


@st.composite
def cases(draw):
    causal = draw(st.booleans())
    parts = draw(st.sets(st.sampled_from(CAUSAL if causal else BOTH), max_size=3))
    smoothing = draw(
        st.sampled_from(["causal", "centered", "masked"] if causal else ["causal", "centered"])
    )
    keys = draw(st.sampled_from(LENGTHS))
    return Case(
        batch=draw(st.integers(1, 2)),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 1, 2])),
        queries=draw(st.sampled_from([keys, keys, keys, max(1, keys - 3), 1])),
        keys=keys,
        width=draw(st.sampled_from([1, 4, 8])),
        value_width=draw(st.sampled_from([4, 8, 3])),
        parts=tuple(sorted(parts)),
        rate=draw(st.sampled_from([0.0, 1e-3, 0.3, 2.0, 40.0])),
        masked=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
        window=draw(st.sampled_from([1, 3, 5, 9] + ([2, 4] if smoothing == "causal" else []))),
        options=dict(
            is_causal=causal,
            smoothing=smoothing,
            edge=draw(st.sampled_from(["zero", "renormalize"])),
            scale=draw(st.sampled_from([None, None, 1.5])),
        ),
    )


def run(case, impl, dtype=torch.float64):
    tensors, mask, grad = case.tensors(dtype)
    inputs = {n: t.detach().requires_grad_() for n, t in tensors.items()}
    out = decay_attention(**inputs, key_mask=mask, enable_gqa=True, impl=impl, **case.options)
    found = torch.autograd.grad(out, list(inputs.values()), grad, allow_unused=True)
    grads = [
        torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs.values(), strict=True)
    ]
    return dict(zip(("out", *inputs), (out.detach(), *grads), strict=True))


def run_in(case, dtype):
    """The formula in one dtype throughout, for a budget: it sums gates in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longlens.ops.family.reference.running", lambda gates: gates.cumsum(2))
        return run(case, "reference", dtype)


def error(found, expected):
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=0.1))


@settings(max_examples=200)
@given(cases())
def test_any_call(case):
    expected = run(case, "reference")
    for name, found in run(case, "auto").items():
        assert error(found, expected[name]) < BOUND, (name, error(found, expected[name]))


@pytest.mark.parametrize(
    ("parts", "options", "route"),
    [
        (("taps",), dict(), "las"),
        (("taps", "alpha"), dict(is_causal=False), "las"),
        (("log_forget",), dict(), "folded"),
        (("slopes", "taps"), dict(), "folded"),
        (("log_gate",), dict(), "folded"),
        (("log_gate", "log_forget", "alpha"), dict(), "folded"),
        (("log_forget",), dict(rate=3000.0), "tiles"),
        (("slopes", "taps"), dict(rate=3000.0), "tiles"),
        (("log_forget",), dict(rate=3000.0, masked=True), "merged"),
        (("log_gate",), dict(rate=40.0), "merged"),
        (("log_gate", "slopes", "sink"), dict(rate=40.0), "merged"),
        (("slopes",), dict(is_causal=False), "merged"),
        (("sink",), dict(), "merged"),
        (("log_forget",), dict(masked=True), "merged"),
        (("slopes",), dict(is_causal=False, rate=3000.0), "rows"),
        (("power",), dict(), "rows"),
        (("taps",), dict(smoothing="masked"), "rows"),
        (("log_gate",), dict(queries=1), "rows"),
    ],
)
def test_every_route(parts, options, route):
    given = dict(queries=150, rate=0.01, masked=False) | options
    numbers = {n: given.pop(n) for n in ("queries", "rate", "masked")}
    case = Case(
        2, 1, 2, numbers["queries"], 150, 8, 8, parts, numbers["rate"], numbers["masked"], 1
    )
    case.options = given
    tensors, mask, _ = case.tensors()
    plan = explain_decay(**tensors, key_mask=mask, enable_gqa=True, **given)
    assert plan.route == route, plan
    options = dict(key_mask=mask, enable_gqa=True, **given)
    steps = recorded(lambda: decay_attention(**tensors, **options), NAMES[route])
    assert steps == list(plan.steps) and steps
    expected = run(case, "reference")
    for name, found in run(case, "auto").items():
        assert error(found, expected[name]) < BOUND, (name, error(found, expected[name]))


@pytest.mark.parametrize("length", [255, 256, 257, 515])
@pytest.mark.parametrize("part", ["log_forget", "slopes"])
def test_numbers_per_key_beyond_one_tile(part, length):
    case = Case(3, 2, 1, length, length, 4, 4, (part,), 0.1, False, 1)  # six heads, four at a time
    expected = run(case, "reference")
    for name, found in run(case, "sdpa").items():
        assert error(found, expected[name]) < BOUND, name


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0, 20.0, -0.5])  # steep: no weight but near the query
@pytest.mark.parametrize("scale", [0.5, 30.0])  # large scores: weights relative to the largest one
def test_a_forward_pass_in_tiles(rate, scale, monkeypatch):
    monkeypatch.setattr(biased, "ADD_RANGE", {torch.float64: -1.0})
    case = Case(3, 2, 1, 600, 600, 4, 4, ("slopes",), rate, False, 1, options=dict(scale=scale))
    expected = run(case, "reference")
    for name, found in run(case, "sdpa").items():
        assert error(found, expected[name]) < BOUND, name


def test_tiles_that_vanish_are_left_out(monkeypatch):
    heads = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *a, **k: heads.append(len(a[0])) or bmm(*a, **k))
    q = torch.randn(1, 3, 2048, 8)
    decay_attention(q, q, q, slopes=torch.tensor([1.0, 1e-4, 1.0]), impl="sdpa")
    # of 28 tiles below the diagonal the steep heads keep those beside it
    assert sorted(heads) == 21 * [1] + 7 * [3]


def test_threads_share_the_heads_of_tiles():
    before = torch.get_num_threads()
    case = Case(1, 3, 1, 300, 300, 4, 4, ("log_forget",), 0.1, False, 1)
    expected = run(case, "sdpa")
    try:
        torch.set_num_threads(before + 1)
        found = run(case, "sdpa")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    for name, tensor in found.items():
        assert error(tensor, expected[name]) < BOUND, name


def test_a_forked_process_makes_threads_of_its_own():
    biased._pool(2)
    child = os.fork()
    if child == 0:  # the parent's threads are not there, and waiting for them would never end
        os._exit(biased._pool.cache_info().currsize)
    assert os.waitpid(child, 0)[1] == 0 and biased._pool.cache_info().currsize == 1


def test_a_nan_is_not_left_out():
    q = torch.randn(1, 1, 600, 4)
    q[..., 0, 0] = float("nan")
    assert decay_attention(q, q, q, slopes=torch.ones(1)).isnan().all()


def test_numbers_per_key_in_any_layout():
    x = torch.randn(
        2, 300, 3, 12, dtype=torch.float64
    )  # heads inside positions, as of a projection
    gates = F.logsigmoid(torch.randn(2, 300, 3, dtype=torch.float64) + 4).requires_grad_()
    found = []
    for impl in ("sdpa", "reference"):
        inputs = x.clone().requires_grad_()
        q, k, v = inputs.transpose(1, 2).chunk(3, dim=-1)
        out = decay_attention(q, k, v, log_forget=gates.transpose(1, 2), impl=impl)
        found.append(torch.autograd.grad(out.sum(), [inputs, gates]))  # its gradient has no strides
    for ours, theirs in zip(*found, strict=True):
        assert error(ours, theirs) < BOUND


def test_constant_gates_are_las_and_alibi():
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64).unbind()
    alpha = torch.tensor([0.01, 0.2], dtype=torch.float64)
    taps = smoothing_taps(2, 5).double()
    expected = las_attention(q, k, v, alpha=alpha, window=5, impl="reference")
    torch.testing.assert_close(decay_attention(q, k, v, alpha=alpha, taps=taps), expected)
    gate = -alpha[None, :, None, None].expand(1, 2, 40, 8)
    torch.testing.assert_close(decay_attention(q, k, v, log_gate=gate, taps=taps), expected)
    forget = -alpha[None, :, None].expand(1, 2, 40)
    alibi = decay_attention(q, k, v, slopes=alpha)
    torch.testing.assert_close(decay_attention(q, k, v, log_forget=forget), alibi)
    distance = (torch.arange(40)[:, None] - torch.arange(40)).abs()
    bias = (-alpha[:, None, None] * distance).masked_fill(distance.triu(1) > 0, -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    torch.testing.assert_close(alibi, expected)


def test_the_definition_one_query_at_a_time():
    """A second reading of the text, scalar by scalar."""
    case = Case(1, 1, 2, 6, 6, 3, 2, CAUSAL, 0.5, True, 4, options=dict(smoothing="causal"))
    tensors, mask, _ = case.tensors()
    t = {n: x[0].tolist() if x.ndim > 2 else x.tolist() for n, x in tensors.items()}
    found = reference(
        check(DecayCall(**tensors, key_mask=mask, enable_gqa=True, smoothing="causal"))
    )
    e = torch.e
    for h in range(2):
        for i in range(6):
            weights = {}
            for j in range(i + 1):
                if mask[0, j]:
                    gates = [
                        sum(t["log_gate"][h][x][n] for x in range(j + 1, i + 1)) for n in range(3)
                    ]
                    s = sum(
                        t["query"][h][i][n] * t["key"][0][j][n] * e ** gates[n] for n in range(3)
                    )
                    s *= 3**-0.5 * e ** (-t["alpha"][h] * (i - j))
                    s += -t["slopes"][h] * (i - j) - t["power"][h] * float(
                        torch.tensor(1.0 + i - j).double().log()
                    )
                    s += sum(t["log_forget"][h][j + 1 : i + 1])
                    weights[j] = e**s
            total = sum(weights.values()) + e ** t["sink"][h]
            for c in range(2):
                y = 0.0
                for j, w in weights.items():
                    for n, tap in enumerate(t["taps"][h]):
                        if j - n >= 0 and mask[0, j - n]:
                            y += w / total * tap * t["value"][0][j - n][c]
                assert abs(float(found[0, h, i, c]) - y) < 1e-9


@pytest.mark.parametrize(
    "parts", [("log_gate",), ("log_forget", "taps"), ("slopes", "sink"), ("alpha", "taps")]
)
@pytest.mark.parametrize("rate", [0.01, 40.0])
@pytest.mark.parametrize("length", [90, 600])
def test_the_future_changes_no_bit(parts, rate, length):
    n = length
    case = Case(1, 2, 1, n, n, 8, 8, parts, rate, False, 3, options=dict(smoothing="causal"))
    tensors, _, _ = case.tensors(torch.float32)
    before = decay_attention(**tensors)
    for name in ("query", "key", "value"):
        tensors[name] = tensors[name].clone()
        tensors[name][:, :, n // 2 :] = 1e3 * torch.randn(1, 2, n // 2, 8)
    after = decay_attention(**tensors)
    assert torch.equal(before[:, :, : n // 2], after[:, :, : n // 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "parts", [("log_gate",), ("log_forget",), ("slopes",), ("taps", "alpha"), ("sink", "slopes")]
)
@pytest.mark.parametrize("rate", [1e-3, 0.1, 3.0])
def test_low_precision_within_twice_the_error_of_the_formula(parts, rate, dtype):
    within_budget(Case(1, 2, 1, 200, 200, 16, 16, parts, rate, False, 5), dtype)


@pytest.mark.parametrize("rate", [0.1, 3.0])
def test_gradients_of_slopes_are_as_exact_over_several_tiles(rate):
    for seed in range(6):  # their terms cancel more or less, and positions multiply what is left
        within_budget(Case(1, 2, 1, 600, 600, 16, 16, ("slopes",), rate, False, seed))


@pytest.mark.parametrize("part", ["log_forget", "log_gate"])
def test_gates_lose_no_digits_on_blocks_of_rows(part):
    """Running sums were float32 there: of differences of large ones few digits are left."""
    low = Case(1, 2, 1, 3, 60, 8, 8, (part,), 0.1, False, 3).tensors(torch.float32)[0]
    low[part][:, :, 20] = -10_000.0  # what came before is forgotten
    assert explain_decay(**low).route == "rows"
    found = decay_attention(**low)
    exact = decay_attention(**{n: t.double() for n, t in low.items()}, impl="reference")
    assert error(found.double(), exact) < 2e-6


def within_budget(case, dtype=torch.float32):
    low = case.tensors(dtype)[0]
    case.tensors = lambda wanted=torch.float64, given=case.tensors: (
        {
            n: t.to(
                torch.promote_types(wanted, torch.float32)
                if n not in ("query", "key", "value")
                else wanted
            )
            for n, t in low.items()
        },
        None,
        given(dtype)[2].to(wanted),
    )  # the very numbers that low precision gets
    exact, plain, fast = (
        run(case, "reference"),
        run(case, "reference", dtype),
        run(case, "auto", dtype),
    )
    for name, true in exact.items():
        factor = 2 if name in ("out", "query", "key", "value") or dtype == torch.bfloat16 else 10
        allowed = factor * max(error(plain[name].double(), true), 8 * torch.finfo(dtype).eps)
        assert error(fast[name].double(), true) <= allowed, name


def test_a_token_at_a_time_is_the_whole():
    case = Case(1, 1, 2, 20, 20, 4, 4, ("log_gate", "log_forget", "sink", "taps"), 0.3, False, 2)
    tensors, _, _ = case.tensors()
    whole = decay_attention(**tensors, enable_gqa=True)
    for n in (1, 7, 20):
        cut = {m: t[:, :, :n] if t.ndim > 2 else t for m, t in tensors.items()}
        cut["query"] = cut["query"][:, :, -1:]
        torch.testing.assert_close(decay_attention(**cut, enable_gqa=True), whole[:, :, n - 1 : n])


def test_weights_times_values_is_the_output():
    q, k, v = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64).unbind()
    options = dict(slopes=torch.tensor([0.1, 0.2]), taps=smoothing_taps(2, 3, "gaussian"))
    torch.testing.assert_close(
        decay_weights(q, k, **options) @ v, decay_attention(q, k, v, **options)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(log_forget=torch.ones(1, 2, 5)),
            "log_forget must hold logarithms of gates, at most 0",
        ),
        (
            dict(log_gate=torch.zeros(1, 2, 5, 3)),
            r"log_gate must be a float tensor of shape \(1, 2, 5, 4\)",
        ),
        (dict(log_forget=torch.zeros(1, 2, 5), is_causal=False), "log_forget needs is_causal=True"),
        (dict(alpha=torch.tensor([0.1, -0.1]), impl="reference"), "alpha must hold"),
        (
            dict(alpha=torch.tensor([0.1, 0.2]), slopes=torch.ones(2), rate_max=0.1),
            "alpha must lie between 0 and rate_max=0.1",
        ),
        (dict(log_gate=torch.full((1, 2, 5, 4), -0.2), rate_max=0.1), "rate_max=0.1 must bound"),
        (
            dict(log_gate=torch.full((1, 2, 5, 4), -0.1), alpha=torch.ones(2) / 50, rate_max=0.11),
            "rate_max=0.11 must bound alpha - log_gate",
        ),
        (dict(log_gate=torch.ones(1, 2, 5, 4), rate_max=2.0), "log_gate must hold logarithms"),
        (dict(log_gate=torch.ones(1, 2, 5, 4), impl="reference"), "log_gate must hold logarithms"),
        (dict(taps=torch.ones(3, 2)), r"taps must have shape \(2, window\)"),
        (dict(taps=torch.ones(2, 2), smoothing="centered"), "window must be odd"),
        (dict(sink=torch.zeros(3)), "sink must be a float tensor"),
        (dict(impl="flash"), "impl must be one of"),
        (dict(impl="triton"), "impl='triton' is not possible: nothing that one call"),
        (
            dict(impl="triton", slopes=torch.ones(2), is_causal=False),
            "impl='triton' is not possible: two-sided decay",
        ),
    ],
)
def test_errors(options, message):
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=message):
        decay_attention(q, q, q, **options)


def test_compiled_without_reading_gates():
    q, k, v = (torch.randn(1, 2, 40, 8, requires_grad=True) for _ in range(3))
    forget = F.logsigmoid(torch.randn(1, 2, 40) + 3).requires_grad_()
    compiled = torch.compile(decay_attention, fullgraph=True, backend="aot_eager")
    for form in (compiled, decay_attention):
        out = form(q, k, v, log_forget=forget, taps=smoothing_taps(2, 3))
        grads = torch.autograd.grad(out.square().sum(), (q, k, v, forget))
        if form is compiled:
            expected = (out, *grads)
    for a, b in zip((out, *grads), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_taps_start_at_las():
    assert torch.equal(smoothing_taps(3, 4), torch.full((3, 4), 0.25))
    assert decay_rates(2).shape == (2,)
    for shape in ("triangular", "gaussian"):
        for one_sided in (True, False):
            taps = smoothing_taps(1, 7, shape, one_sided)[0]
            assert float(taps.sum()) == pytest.approx(1)
            assert int(taps.argmax()) == (0 if one_sided else 3)


@pytest.mark.parametrize(
    "parts", [("taps",), ("alpha", "taps"), ("slopes", "taps"), ("log_gate",)], ids="+".join
)
def test_forward_mode_and_second_derivatives(parts):
    """With taps the route `las` was taken, which has neither."""
    tensors = Case(1, 2, 1, 9, 9, 4, 4, parts, 0.1, False, 0).tensors()[0]
    inputs = tuple(tensors.values())

    def form(impl):
        return lambda *x: decay_attention(**dict(zip(tensors, x, strict=True)), impl=impl)

    found, expected = (torch.func.jvp(form(i), inputs, inputs) for i in ("auto", "reference"))
    torch.testing.assert_close(found, expected)
    found, expected = (
        torch.func.hessian(lambda *x, i=i: form(i)(*x).square().sum(), argnums=len(inputs) - 1)(
            *inputs
        )
        for i in ("auto", "reference")
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "parts", [("slopes",), ("log_forget",), ("log_gate", "sink")], ids="+".join
)
def test_mapped_calls_are_one_after_the_other(parts):
    """The range of what is added, which no transform asks for, was read from all calls at once."""
    tensors, _, _ = Case(3, 2, 1, 17, 17, 8, 8, parts, 0.1, False, 0).tensors()
    shared = {n: t for n, t in tensors.items() if n in ("slopes", "sink")}
    mapped = {n: t[:, None] for n, t in tensors.items() if n not in shared}

    def attend(some):
        return decay_attention(**some, **shared)

    def gradient(some):
        return torch.func.grad(lambda some: attend(some).square().sum())(some)

    for run in (attend, gradient):
        found = torch.vmap(run)(mapped)
        each = [run({n: t[i] for n, t in mapped.items()}) for i in range(3)]
        expected = torch.utils._pytree.tree_map(lambda *one: torch.stack(one), *each)
        torch.testing.assert_close(found, expected)
