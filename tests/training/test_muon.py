"""Muon: every singular value of an update is about 1, of AdamW's size, and nothing else changes."""

import math

import pytest
import torch

from longlens import tasks
from longlens.runs.build import make_model
from longlens.runs.jobs import make_job
from longlens.training.distributed import join_ranks
from longlens.training.engine import Engine
from longlens.training.muon import SIZE, orthogonalized
from longlens.training.optim import Optimizer, parameter_groups


def group(*tensors, **changes):
    names = [f"w{i}" for i in range(len(tensors))]
    own = dict(names=names, params=list(tensors), base_lr=0.1, weight_decay=0.0, muon=True)
    return own | changes


def step(optimizer, scale=1.0, skip=0.0):
    optimizer.step(torch.tensor(scale), torch.tensor(skip))


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_singular_vectors_stay_and_values_become_one(shape):
    matrices = torch.randn(3, *shape) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    u, s, vt = torch.linalg.svd(matrices, full_matrices=False)
    kept = s > 0.05 * s[:, :1]  # far below the largest, a value needs more rounds
    values = torch.diagonal(u.mT @ orthogonalized(matrices) @ vt.mT, dim1=1, dim2=2)
    assert (values[kept] > 0.6).all() and (values < 1.3).all()


def test_it_agrees_with_torch():
    start = torch.randn(6, 10)
    mine, theirs = start.clone(), torch.nn.Parameter(start.clone())
    optimizer = Optimizer([group(mine, weight_decay=0.3), *rest()])
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    for number in range(4):
        gradient = torch.randn(6, 10)
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.set_factor(1.0 / (number + 1))
        reference.param_groups[0]["lr"] = 0.1 / (number + 1)
        step(optimizer)
        reference.step()
    # torch iterates in bfloat16
    torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=0.02 * SIZE)


def rest():
    vector = torch.zeros(2)
    vector.grad = torch.zeros(2)
    return [dict(names=["vector"], params=[vector], base_lr=0.1, weight_decay=0.0)]


def test_matrices_of_one_shape_are_updated_as_if_alone():
    tensors = [torch.randn(4, 6), torch.randn(6, 4), torch.randn(4, 6)]
    gradients = [torch.randn_like(t) for t in tensors]
    together = [t.clone() for t in tensors]
    for t, g in zip(together, gradients, strict=True):
        t.grad = g
    step(Optimizer([group(*together), *rest()]))
    for start, mine, gradient in zip(tensors, together, gradients, strict=True):
        alone = start.clone()
        alone.grad = gradient
        step(Optimizer([group(alone), *rest()]))
        torch.testing.assert_close(mine, alone)
        assert (mine - start).square().mean().sqrt() == pytest.approx(0.1 * SIZE, rel=0.25)


def test_a_skipped_update_and_a_matrix_without_gradient_stay():
    w, unused = torch.randn(3, 3), torch.randn(3, 3)
    optimizer = Optimizer([group(w, unused, weight_decay=0.0), *rest()])
    before, other = w.clone(), unused.clone()
    w.grad = torch.full((3, 3), math.nan)
    step(optimizer, scale=math.nan, skip=1.0)
    assert torch.equal(w, before) and not optimizer.state()["w0"]["exp_avg"].any()
    w.grad = torch.eye(3)
    step(optimizer)
    assert not torch.equal(w, before) and torch.equal(unused, other)


def test_hints_win_over_muon():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
    groups = parameter_groups(
        model.named_parameters(), {"1.weight": {"lr": 1e-3}}, lr=0.1, weight_decay=0.0,
        muon={"0.weight", "1.weight"},
    )  # fmt: skip
    assert [g["names"] for g in groups if g["muon"]] == [["0.weight"]]


def test_only_the_linear_maps_of_blocks_are_updated_by_it(run_options):
    options = run_options(optimizer="muon")
    with join_ranks(torch.device("cpu")) as alone:
        task = tasks.load(options.task, options.root, **options.task_options)
        model = make_model(options, task.spec, "supervised", alone.device)
        optimizer = Engine(make_job(options, task, model, alone), options, alone).optimizer
    block = "backbone.blocks.0"
    maps = ("mix.inner.qkv", "mix.inner.out", "feed.inner.inner", "feed.inner.outer")
    assert set(optimizer.muon.momentum) == {f"{block}.{name}.weight" for name in maps}
    assert len(optimizer.names) == len(list(model.parameters()))
