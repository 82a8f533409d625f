"""The parts of the loop on their own: weights at rest, objectives, optimiser, budgets."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from longlens import LaSAttention
from longlens.runs.build import model_config
from longlens.tasks import Spec
from longlens.training import budget, distributed
from longlens.training.evaluate import _add_groups
from longlens.training.examples import Examples, fill_rows, next_tokens, of_any_length
from longlens.training.faults import largest_that_fits
from longlens.training.objective import Objective
from longlens.training.optim import Optimizer, Schedule, parameter_groups, warmup_steps
from longlens.training.options import TrainOptions
from longlens.weights import load_tensors, save_tensors

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def all_kinds():
    tensors = {str(dtype): torch.randn(3, 2).mul(5).to(dtype) for dtype in DTYPES}
    return tensors | {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "ä": torch.ones(1)}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


def test_tensors_are_exchanged_with_the_safetensors_package(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    save_tensors(tmp_path / "ours", all_kinds() | {"strided": torch.randn(4, 6).T}, {"a": "b"})
    ours = load_tensors(tmp_path / "ours")
    same(package.load_file(tmp_path / "ours"), ours)
    torch.manual_seed(0)
    package.save_file(all_kinds(), tmp_path / "theirs")
    torch.manual_seed(0)
    same(load_tensors(tmp_path / "theirs"), all_kinds())


@pytest.mark.parametrize("cut", [0, 4, 30, -1])
def test_a_truncated_file_is_named(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    save_tensors(path, all_kinds())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"a\.safetensors is not a whole safetensors file"):
        load_tensors(path)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", ["classification", "regression", "next_token", "masked"])
def test_objectives_add_up_over_parts(kind, parts):
    objective = Objective(kind)
    rows = 12
    where = None
    if kind == "classification":
        outputs, targets = torch.randn(rows, 4), torch.randint(4, (rows,))
        loss, metric = F.cross_entropy(outputs, targets), (outputs.argmax(-1) == targets)
        metric = metric.double().mean()
    elif kind == "regression":
        outputs, targets = torch.randn(rows, 7, 2), torch.randn(rows, 5, 2)
        loss = F.mse_loss(outputs[:, 2:], targets)
        metric = 1 - loss.double() / targets.double().var(correction=0)
    else:
        outputs, targets = torch.randn(rows, 7, 4), torch.randint(4, (rows, 7))
        where = torch.rand(rows, 7) < 0.5
        loss = F.cross_entropy(outputs[where], targets[where])
        metric = loss.double() / math.log(2)
        if kind == "masked":
            metric = (outputs.argmax(-1) == targets)[where].double().mean()
    cut = [slice(i, i + rows // parts) for i in range(0, rows, rows // parts)]
    arguments = [(outputs[c], targets[c], None if where is None else where[c]) for c in cut]
    found = objective.metrics(sum(objective.sums(*a) for a in arguments))
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found[objective.metric] == pytest.approx(float(metric), rel=1e-5)
    total = sum(objective.loss_sum(*a) for a in arguments)
    count = sum(objective.count(a[1], a[2]) for a in arguments)
    torch.testing.assert_close(total / count, loss)


def test_classification_does_not_mind_the_mask_and_regression_finds_the_last_real_positions():
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    outputs, targets = torch.randn(2, 3), torch.tensor([1, 2])
    objective = Objective("classification")
    assert torch.equal(objective.sums(outputs, targets, mask), objective.sums(outputs, targets))
    values = torch.arange(10.0).view(2, 5, 1)
    targets = torch.tensor([[[3.0], [4.0]], [[6.0], [7.0]]])
    assert Objective("regression").loss_sum(values, targets, mask) == 0


def test_a_metric_that_is_not_a_number_never_wins():
    objective = Objective("classification")
    assert not objective.better(float("nan"), None)
    assert objective.better(0.2, 0.1) and not objective.better(0.1, 0.1)
    assert Objective("next_token").better(1.0, 2.0)


def test_hints_make_groups_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    hints = {"1.weight": {"lr": 1e-3, "weight_decay": 0.0}}
    groups = parameter_groups(model.named_parameters(), hints, lr=0.1, weight_decay=0.5)
    found = {tuple(g["names"]): (g["base_lr"], g["weight_decay"]) for g in groups}
    assert found == {
        ("0.weight",): (0.1, 0.5), ("0.bias", "1.bias"): (0.1, 0.0), ("1.weight",): (1e-3, 0.0),
    }  # fmt: skip
    (everything,) = parameter_groups(
        model.named_parameters(), lr=0.1, weight_decay=0.5, decay_vectors=True
    )
    assert everything["weight_decay"] == 0.5 and len(everything["names"]) == 4


def test_the_optimizer_is_adamw_with_clipping():
    start, gradients = torch.randn(5, 3), [torch.randn(5, 3) * s for s in (0.1, 10.0, 1.0)]
    mine = start.clone()
    optimizer = Optimizer(
        [dict(names=["w"], params=[mine], base_lr=0.1, weight_decay=0.3)], betas=(0.9, 0.98)
    )
    plain = torch.nn.Parameter(start.clone())
    reference = torch.optim.AdamW([plain], lr=0.1, weight_decay=0.3, betas=(0.9, 0.98))
    for number, gradient in enumerate(gradients):
        factor = 1.0 / (number + 1)
        mine.grad, plain.grad = gradient.clone(), gradient.clone()
        optimizer.set_factor(factor)
        norm = torch.linalg.vector_norm(gradient)
        optimizer.step((norm / 2.0).clamp(min=1.0), torch.tensor(0.0))
        reference.param_groups[0]["lr"] = 0.1 * factor
        torch.nn.utils.clip_grad_norm_([plain], 2.0)
        reference.step()
    torch.testing.assert_close(mine, plain.detach(), rtol=1e-5, atol=1e-6)


def test_checkpoints_keep_rates_beyond_their_bound_and_final_weights_those_that_act():
    """Training goes on from the parameter itself; another layer takes what it loads for a bound."""
    layer, other = (LaSAttention(8, 2, learned_alpha=True, alpha_max=0.1) for _ in range(2))
    with torch.no_grad():
        layer.decay.alpha.copy_(torch.tensor([0.05, 0.3]))
    distributed.load_whole_state(other, distributed.whole_state(layer))
    distributed.load_whole_state(other, distributed.whole_state(layer))  # both beyond it
    assert torch.equal(other.decay.alpha, layer.decay.alpha) and other.alpha_max == 0.1
    final = distributed.whole_state(layer, keep_vars=False)
    assert torch.equal(final["decay.alpha"], torch.tensor([0.05, 0.1]))


def test_a_skipped_update_leaves_everything_as_it_was():
    w = torch.ones(3)
    optimizer = Optimizer([dict(names=["w"], params=[w], base_lr=0.1, weight_decay=0.3)])
    w.grad = torch.ones(3)
    optimizer.step(torch.tensor(1.0), torch.tensor(0.0))
    before = {k: v.clone() for k, v in optimizer.state()["w"].items()} | {"w": w.clone()}
    w.grad = torch.full((3,), math.nan)
    optimizer.step(torch.tensor(math.nan), torch.tensor(1.0))
    after = optimizer.state()["w"] | {"w": w}
    for name in before:
        assert torch.equal(before[name], after[name]), name


def test_schedules():
    cosine = Schedule("cosine", total=110, warmup=10, final=0.1)
    assert cosine.factor(0) == 0.1 and cosine.factor(9) == cosine.factor(10) == 1.0
    assert cosine.factor(60) == pytest.approx(0.55) and cosine.factor(110) == pytest.approx(0.1)
    assert Schedule("constant", total=10, warmup=0).factor(9) == 1.0
    plateau = Schedule("plateau", total=10, warmup=0, patience=1)
    for improved in (True, False, False, True, False, False):
        plateau.evaluated(improved)
    assert plateau.factor(5) == 0.25
    fifth = Schedule("plateau", total=10, warmup=2, patience=1, reduction=0.2)
    for improved in (True, False, False):
        fifth.evaluated(improved)
    assert [fifth.factor(step) for step in (0, 1, 2, 9)] == [0.5, 1.0, 0.2, 0.2]
    assert warmup_steps(0.1, 50) == 5 and warmup_steps(30, 50) == 30


@pytest.mark.parametrize("text", ["", "8", "8 minutes", "m", "-3s", "0s", "1h30", "8mm"])
def test_budgets_that_are_no_durations_are_named(text):
    if text == "8":
        assert budget.seconds(text) == 8.0
        return
    with pytest.raises(ValueError, match="budget must be"):
        budget.seconds(text)


@pytest.mark.parametrize("every", [None, 7, 100])
def test_the_steps_of_a_budget_fit_and_one_more_does_not(every):
    timing = budget.Timing(step=0.01, evaluation=0.3, final=1.0)

    def cost(steps):
        interval = budget.evaluation_interval(every, steps, 250, 30.0)
        return 2.0 + 1.0 + steps * 0.01 + -(-steps // interval) * 0.3

    steps = budget.steps_that_fit(60.0, 2.0, timing, every, 250, 30.0)
    limit = 60.0 * (1 - budget.RESERVE)
    assert cost(steps) <= limit < cost(steps + 1)
    assert budget.steps_that_fit(1.0, 2.0, timing, every, 250, 30.0) == 1  # always at least one


def test_rows_that_fit_gives_up_at_one():
    def never(rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        largest_that_fits(8, never)
    with pytest.raises(RuntimeError, match="something else"):
        largest_that_fits(8, lambda rows: (_ for _ in ()).throw(RuntimeError("something else")))


def test_examples_split_into_rows():
    examples = Examples(torch.arange(10).view(5, 2), torch.arange(5), where=torch.ones(5, 2) > 0)
    parts = list(examples.split(2))
    assert [len(part.inputs) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.targets for part in parts]), examples.targets)
    assert parts[0].mask is None and list(examples.split(9)) == [examples]


def test_next_tokens_leave_out_padding():
    tokens, mask = torch.tensor([[5, 6, 7, 0]]), torch.tensor([[True, True, True, False]])
    made = next_tokens(tokens, mask)
    assert made.where.tolist() == [[True, True, False, False]]
    assert fill_rows(mask, 2).tolist()[1] == [True] * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"protocol": "denoise+magic"}, "protocol must be"),
        ({"task_options": "{min_length: 8}"}, "task_options must be a mapping"),
        ({"protocol": "scratch+denoise"}, "protocol must be"),
        ({"steps": 5, "epochs": 2.0}, "steps and epochs"),
        ({"schedule": "step"}, "schedule must be one of cosine"),
        ({"batch_size": 0}, "batch_size must be 1 or more, got 0"),
        ({"micro_batch": "big"}, "micro_batch must be"),
        ({"beta2": 1.0}, "beta2"),
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"seed": 2**63}, r"seed must be below 2\*\*63, got 9223372036854775808"),
        ({"optimizer": "sgd"}, "optimizer must be one of adamw, muon"),
    ],
)
def test_wrong_options_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions(**wrong)


def test_the_name_depends_on_what_is_computed_alone():
    options = TrainOptions(steps=5)
    assert (
        options.default_name() == TrainOptions(steps=5, runs="x", resume="require").default_name()
    )
    assert options.default_name() != TrainOptions(steps=6).default_name()
    assert options.default_name().startswith("listops-las-0-")


def test_a_program_for_any_length_is_made_at_once():
    programs = []

    def backend(graph, inputs):
        programs.append(graph)
        return graph.forward

    def total(examples, weights):
        return (examples.inputs * examples.mask).sum() * weights.sum()

    compiled = of_any_length(torch.compile(total, backend=backend))
    for length in (4, 6, 9):
        inputs, mask = torch.ones(2, length, dtype=torch.long), torch.ones(2, length) > 0
        examples = Examples(inputs, torch.zeros(2, dtype=torch.long), mask)
        assert compiled(examples, torch.ones(3)) == 6 * length
    assert len(programs) == 1


def test_pixels_are_numbers_unless_tokens_are_hidden():
    spec = Spec(kind="classification", inputs="tokens", max_length=64, vocab_size=256,
                num_classes=10, image=(8, 8), encoding="pixels")  # fmt: skip
    assert model_config(TrainOptions(), spec).numbers
    assert not model_config(TrainOptions(pixels="tokens"), spec).numbers
    assert not model_config(TrainOptions(protocol="denoise"), spec).numbers
    with pytest.raises(ValueError, match="'denoise' hides tokens: pixels must be tokens"):
        model_config(TrainOptions(protocol="denoise", pixels="numbers"), spec)
    words = replace(spec, encoding="bytes", image=None)
    assert not model_config(TrainOptions(), words).numbers
    with pytest.raises(ValueError, match="pixels=numbers is for images, but listops has none"):
        model_config(TrainOptions(pixels="numbers"), words)


def test_accuracy_by_group_leaves_arrays_out():
    """An extra that is a number for each example makes groups; one that is an array does not."""
    extras = {"operator": torch.tensor([0, 1, 1]), "color": torch.zeros(3, 4, 3, dtype=torch.uint8)}
    batch = SimpleNamespace(targets=torch.tensor([0, 1, 0]), extras=extras)
    tables: dict[str, torch.Tensor] = {}
    _add_groups(tables, torch.eye(2)[[0, 1, 1]], batch)
    assert list(tables) == ["operator"]
    assert tables["operator"][:, :2].tolist() == [[1.0, 1.0], [1.0, 2.0]]  # right, seen


def test_accuracy_by_group_counts_no_value_as_another():
    extras = {"place": torch.tensor([63, 64, 99, -1])}
    batch = SimpleNamespace(targets=torch.zeros(4, dtype=torch.long), extras=extras)
    tables: dict[str, torch.Tensor] = {}
    _add_groups(tables, torch.eye(2)[[0, 0, 0, 0]], batch)
    assert tables["place"].sum(1).tolist() == [1.0, 1.0] and tables["place"][1, 63] == 1
