"""One process or many: ranks from torchrun, DDP and FSDP2, and tensors that lie in shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """The place of this process among all that train one model.

    >>> ranks = Ranks(torch.device("cpu"))
    >>> ranks.main, ranks.any(True), ranks.same(3)
    (True, True, 3)
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Take the maximum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any rank; waits for the device."""
        if self.world_size == 1:
            return flag
        return bool(self.largest(torch.tensor(float(flag), device=self.device)).item())

    def same(self, value: Any) -> Any:
        """The main rank's value, on all ranks."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device)
        return box[0]

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """The ranks that torchrun started (one where it did not), joined inside the block."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and "RANK" not in os.environ:
        yield Ranks(device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(device, dist.get_rank(), dist.get_world_size())
    finally:
        if started:
            dist.destroy_process_group()


def distribute(
    model: nn.Module, ranks: Ranks, kind: str, units: Sequence[nn.Module] = ()
) -> nn.Module:
    """The module to call in place of ``model`` so that gradients are averaged over the ranks.

    Args:
        model: on its device, with equal weights on all ranks.
        ranks: all that train the model.
        kind: "ddp": weights on every rank; "fsdp": weights, gradients and moments in shards.
        units: for fsdp: the parts that are gathered one after the other.
    """
    if ranks.world_size == 1:
        return model
    if kind == "ddp":
        ids = [ranks.device.index] if ranks.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def gradients_kept_local(module: nn.Module, local: bool) -> Iterator[None]:
    """Inside the block gradients add up on this rank alone (all micro-batches but the last)."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(not local)
        yield
    elif local and isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        yield


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies here; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(like: Tensor, part: Tensor) -> Tensor:
    """The whole of a tensor that is sharded as ``like`` and whose part here is ``part``."""
    if not isinstance(like, DTensor):
        return part
    joined = DTensor.from_local(
        part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
    return joined.full_tensor()


def part_of(like: Tensor, source: Tensor) -> Tensor:
    """The part of the whole tensor ``source`` that lies here if it is sharded as ``like``."""
    if not isinstance(like, DTensor):
        return source
    source = source.to(like.device)
    sharded = distribute_tensor(source, like.device_mesh, like.placements, src_data_rank=None)
    return sharded.to_local()


def whole_stack(like: Tensor, parts: Tensor) -> Tensor:
    """Whole tensors, (N, *), of a stack of their parts here, each sharded as ``like``.

    They travel in one message.
    """
    if not isinstance(like, DTensor):
        return parts
    shape = torch.Size((len(parts), *like.shape))
    stride = torch.empty(shape, device="meta").stride()
    joined = DTensor.from_local(
        parts, like.device_mesh, _in_a_stack(like), shape=shape, stride=stride
    )
    return joined.full_tensor()


def part_of_stack(like: Tensor, stack: Tensor) -> Tensor:
    """The parts that lie here of a stack of whole tensors, (N, *), each sharded as ``like``."""
    if not isinstance(like, DTensor):
        return stack
    placements = _in_a_stack(like)
    return distribute_tensor(stack, like.device_mesh, placements, src_data_rank=None).to_local()


def _in_a_stack(like: DTensor) -> list[Placement]:
    """How a stack lies whose members, after its first axis, are sharded as ``like``."""
    return [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in like.placements]


def whole_state(model: nn.Module, *, keep_vars: bool = True) -> dict[str, Tensor]:
    """The model's state with whole tensors on the CPU; every rank must call it.

    With `keep_vars` parameters are as the optimizer left them, so that training goes on bit for
    bit; without, as `state_dict` saves them for other models: learned rates within their bound.
    """
    state = model.state_dict(keep_vars=keep_vars).items()
    return {
        name: copy_to_cpu(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)
        for name, tensor in state
    }


def copy_to_cpu(tensor: Tensor) -> Tensor:
    """A copy in the CPU's memory, also of what lies there."""
    return tensor.detach().to("cpu", copy=True)


@torch.no_grad()
def load_whole_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into a model that may be sharded; names must be the model's."""
    for name, target in model.state_dict(keep_vars=True).items():  # the tensors, no copies
        local(target).copy_(part_of(target, state[name]))
