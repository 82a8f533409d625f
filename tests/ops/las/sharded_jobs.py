"""What the ranks of a `World` do in the tests of split sequences."""

import copy
import resource

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from longlens import LaSAttention, SoftmaxAttention, decay_rates
from longlens.ops.las import folded_inputs_sharded, las_attention_sharded

KINDS = {"las": LaSAttention, "softmax": SoftmaxAttention}


def _own(rank, lengths):
    start = sum(lengths[:rank])
    return slice(start, start + lengths[rank])


def attend(rank, group, case, lengths, dtype, through, tell_lengths=False, **options):
    """Output and gradients of this rank's piece, and its share of the gradient of alpha."""
    q, k, v, alpha, mask, grad = case.tensors(dtype, through=through)
    own = _own(rank, lengths)
    inputs = [t[:, :, own].clone().requires_grad_() for t in (q, k, v)]
    mask = None if mask is None else mask[:, own]
    if alpha is not None:
        alpha = alpha.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    out = las_attention_sharded(
        *inputs,
        group=group,
        lengths=lengths if tell_lengths else None,
        alpha=alpha,
        key_mask=mask,
        enable_gqa=True,
        **case.options | options,
    )
    out.backward(grad[:, :, own])
    found = [out.detach(), *(t.grad for t in inputs)]
    if alpha is not None:
        found.append(torch.zeros_like(alpha) if alpha.grad is None else alpha.grad)
    return [t.double().numpy() for t in found]


def layer(rank, group, kind, lengths, masked, exchange, **options):
    """Output, input gradient and this rank's share of the parameters' gradients."""
    torch.manual_seed(0)
    module = KINDS[kind](
        16, 4, sequence_group=group, sequence_exchange=exchange, **options
    ).double()
    x = torch.randn(2, sum(lengths), 16, dtype=torch.float64)
    mask = torch.rand(2, sum(lengths)) > 0.3 if masked else None
    own = _own(rank, lengths)
    piece = x[:, own].clone().requires_grad_()
    y = module(piece, None if mask is None else mask[:, own])
    (y * torch.arange(1.0, 17)).sum().backward()
    found = [y.detach(), piece.grad, *(p.grad for p in module.parameters())]
    return [t.numpy() for t in found]


def fold(rank, group, case, lengths, **options):
    q, k, v, alpha, _, _ = case.tensors()
    own = _own(rank, lengths)
    pieces = [t[:, :, own] for t in (q, k, v)]
    found = folded_inputs_sharded(*pieces, group=group, alpha=alpha, enable_gqa=True, **options)
    return [t.numpy() for t in found]


def peak_growth(rank, group, length, **options):
    """Bytes by which forward and backward raise this process's peak memory."""
    heads, width = 1, 8

    def call(n):
        q, k, v = (torch.randn(1, heads, n, width, requires_grad=True) for _ in range(3))
        out = las_attention_sharded(q, k, v, group=group, alpha=decay_rates(heads), **options)
        out.sum().backward()

    def peak():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    call(130)  # code, threads, pools
    before = peak()
    call(length)
    return peak() - before


def wrong(rank, team, /, **by_rank):
    """A call whose arguments are lists with one entry per rank; `length` makes the tensors."""
    mine = {name: values[rank] for name, values in by_rank.items()}
    length, dtype = mine.pop("length", 5), mine.pop("dtype", torch.float32)
    q = torch.zeros(mine.pop("batch", 1), 2, length, 4, dtype=dtype)
    if mine.pop("masked", False):
        mine["key_mask"] = torch.ones(1, length, dtype=torch.bool)
    las_attention_sharded(q, q, q, **{"group": team, **mine})


def outsider(rank, group):
    """A group that the first process is not part of."""
    pair = dist.new_group([1, 2])
    q = torch.ones(1, 1, 3, 4)
    return las_attention_sharded(q, q, q, group=pair).numpy()


def mesh(rank, group):
    """A mesh of one dimension in place of a group; one of two is refused."""
    q = torch.ones(1, 1, 3, 4)
    out = las_attention_sharded(q, q, q, group=init_device_mesh("cpu", (3,)))
    try:
        las_attention_sharded(q, q, q, group=init_device_mesh("cpu", (1, 3)))
    except ValueError as error:
        return out.numpy(), str(error)


def copied(rank, group):
    """A layer with a group can be copied, as averages of weights do, and works as before."""
    torch.manual_seed(0)
    module = LaSAttention(8, 2, sequence_group=group)
    x = torch.randn(1, 5, 8)
    return bool(torch.equal(module(x), copy.deepcopy(module)(x)))
