"""Second derivatives of gradients that are written out: refused, never wrong."""

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from longlens.models.norms import MaskedBatchNorm
from longlens.ops.family import decay_attention
from longlens.ops.las import las_attention_sharded
from longlens.ops.launching import fused_operator


def square():
    """x², made as the operators of Triton kernels are."""

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * x]

    def backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return 2 * x * grad

    return fused_operator(
        "square_for_a_test", forward, backward, like=(forward, backward), setup=keep,
        differentiate=lambda ctx, run, grads: (run(grads[0], *ctx.saved_tensors),), outputs=1,
    )[1]  # fmt: skip


SQUARE = square()


def launched(x):
    return SQUARE(x)[0]


def tiles(x):
    forget = torch.full(x.shape[:3], -50.0, dtype=x.dtype)
    return decay_attention(x, x, x, log_forget=forget, impl="sdpa")


def ring(x):
    return las_attention_sharded(x, x, x, group=dist.group.WORLD, exchange="ring")


def batch_norm(x):
    return MaskedBatchNorm(4).double()(x[0])


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("function", [launched, tiles, ring, batch_norm])
def test_second_derivatives_raise_beside_another_path(function, one_process):
    """With another path to x, autograd summed up what it had, without a word."""
    x = torch.randn(1, 2, 40, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(1, 2, 40, 4, dtype=torch.float64)
    loss = (function(x) * w).sum() + x.pow(3).sum()  # the upstream gradient w is a constant
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(first, plain)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(first.square().sum(), x)


def test_a_gradient_that_could_be_differentiated_may_be_changed_in_place():
    norm = MaskedBatchNorm(4)
    loss = norm(torch.randn(2, 5, 4)).pow(3).sum()
    (found,) = torch.autograd.grad(loss, norm.weight, create_graph=True)
    with torch.no_grad():
        found.mul_(0.5)  # as clipping does


def test_a_compiled_norm_has_the_gradient():
    norm, x = MaskedBatchNorm(4), torch.randn(2, 5, 4)
    found = []
    for run in (norm, torch.compile(norm, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        run(leaf).pow(3).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("function", [launched, batch_norm])
def test_a_gradient_that_could_be_differentiated_goes_through_a_checkpoint(function):
    """A checkpoint hands out what it computed anew, once."""
    x = torch.randn(1, 2, 40, 4, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(function(x).pow(3).sum(), x)
    loss = checkpoint(function, x, use_reentrant=False).pow(3).sum()
    (found,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(found, plain)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(found.square().sum(), x)
