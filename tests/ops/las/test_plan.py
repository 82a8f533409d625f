"""Plans: `explain` names exactly what runs, plans are kept, and functions stay small."""

import ast
import inspect
import sys
from pathlib import Path

import pytest
import torch

import longlens.ops
import longlens.ops.family
import longlens.ops.las
from longlens import decay_rates, explain, las_attention
from longlens.ops.las import routes
from longlens.ops.launching import Launch

STEPS = {
    "pool_values", "fold_square", "flash_forward", "tile_forward", "band_forward", "full_scores",
    "reference", "with_band",
}  # fmt: skip


def recorded(work, names=STEPS):
    """The steps that run while `work` does, in order: our functions, launches, SDPA itself."""
    found = []

    def watch(frame, event, argument):
        if event == "c_call" and argument.__name__ == "scaled_dot_product_attention":
            found.append(argument.__name__)
        elif event == "call" and "longlens" in frame.f_code.co_filename:
            name = frame.f_code.co_name
            if name == "__call__" and isinstance(frame.f_locals["self"], Launch):
                found.append(frame.f_locals["self"].kernel.fn.__name__)
            elif name in names:
                found.append(name)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


CALLS = [
    dict(),
    dict(window=5),
    dict(is_causal=False, window=5),
    dict(alpha=decay_rates(2)),
    dict(alpha=decay_rates(2), window=4, edge="renormalize"),
    dict(alpha=decay_rates(2, 3.0)),
    dict(alpha=decay_rates(2), is_causal=False, window=3),
    dict(alpha=decay_rates(2, 3.0), is_causal=False),
    dict(alpha=decay_rates(2), window=5, smoothing="masked"),
    dict(window=301, smoothing="masked"),
    dict(query_offset=torch.tensor(4)),
    dict(query_offset=4, alpha=decay_rates(2)),
    dict(query_offset=-4, alpha=decay_rates(2), is_causal=False),
    dict(alpha=decay_rates(2), chunk=64),
    dict(alpha=decay_rates(2, 3.0), chunk=50, window=3),
    dict(impl="reference"),
]


@pytest.mark.parametrize("options", CALLS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_explain_names_the_steps_that_run(options, masked):
    q, k, v = torch.randn(3, 1, 2, 200, 8).unbind()
    mask = torch.rand(1, 200) > 0.2 if masked else None
    plan = explain(q, k, v, key_mask=mask, **options)
    assert plan.steps
    assert recorded(lambda: las_attention(q, k, v, key_mask=mask, **options)) == list(plan.steps)


def test_one_query():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 50, 8)
    plan = explain(q, k, k, window=3)
    assert recorded(lambda: las_attention(q, k, k, window=3)) == list(plan.steps) == ["full_scores"]


@pytest.mark.kernels
@pytest.mark.kernels_short
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize(
    "options",
    [dict(), dict(window=3, alpha=decay_rates(2)), dict(window=3, smoothing="masked"),
     dict(window=71, is_causal=False, alpha=decay_rates(2)), dict(chunk=20, alpha=decay_rates(2))],
    ids=str,
)  # fmt: skip
def test_explain_names_the_kernels_that_run(options):
    q, k, v = torch.randn(3, 1, 2, 40, 16).unbind()
    plan = explain(q, k, v, impl="triton", **options)
    assert "forward_kernel" in plan.steps
    found = recorded(lambda: las_attention(q, k, v, impl="triton", **options))
    assert found == list(plan.steps)


def test_a_plan_is_made_once_for_calls_of_a_kind(monkeypatch):
    made = []
    choose = routes.choose
    monkeypatch.setattr(routes, "choose", lambda *a: made.append(a[1].query.shape) or choose(*a))
    monkeypatch.setattr(routes, "_plans", {})
    alpha, steep = decay_rates(2), decay_rates(2, 9.0)
    for length in (70, 70, 71, 70):
        q, k, v = torch.randn(3, 1, 2, length, 8).unbind()
        for rates in (alpha, alpha.clone(), steep):  # α is read, and decides
            found = las_attention(q, k, v, alpha=rates)
            expected = las_attention(q, k, v, alpha=rates, impl="reference")
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(made) == 2 * 3  # two lengths; in range, out of it, and the reference (α unread)
    with pytest.raises(ValueError, match="alpha must hold finite values"):
        las_attention(q, k, v, alpha=-alpha)
    with pytest.raises(ValueError, match="alpha must be a tensor"):
        las_attention(q, k, v, alpha=alpha[:1])


def functions():
    root = Path(inspect.getfile(longlens.ops)).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                decorators = " ".join(ast.unparse(d) for d in node.decorator_list)
                if "triton.jit" not in decorators:
                    yield path.name, node


def test_functions_take_ten_arguments_at_most():
    """Kernels and the public functions aside, whose options are the interface."""
    public = {*longlens.ops.las.__all__, *longlens.ops.family.__all__}
    for file, node in functions():
        arguments = node.args
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        assert count <= 10 or node.name in public, (file, node.name, count)


@pytest.mark.parametrize("options", [dict(chunk=8), dict(window=5, smoothing="masked")])
def test_options_may_be_symbols_of_a_compiler(options):
    """Reasons were formatted with them, which no compiler does."""
    torch.compiler.reset()
    q = torch.randn(1, 2, 40, 8)
    compiled = torch.compile(las_attention, backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(q, q, q, **options), las_attention(q, q, q, **options))
