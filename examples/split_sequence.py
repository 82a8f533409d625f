"""One training step of a LaS layer on a sequence split across processes, compared with one process.

    torchrun --nproc-per-node 2 examples/split_sequence.py
    torchrun --nproc-per-node 2 examples/split_sequence.py --exchange ring --length 8001

Every process makes the same input from one seed and keeps its own piece; a real data loader would
read no more than that. Uses NCCL where there are GPUs and gloo on CPUs.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from longlens import LaSAttention


def make_layer() -> LaSAttention:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return LaSAttention(64, 4, window=5, bound=0.01, learned_alpha=True, rotary=True)


def loss_sum(layer: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The squared error, summed over the positions given."""
    return (layer(x) - target).square().sum(-1).sum()


def gradients(layer: nn.Module) -> Tensor:
    """Those of all parameters, end to end."""
    return torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None])


def main() -> None:
    """One step, split and whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2049, help="positions in the whole sequence")
    parser.add_argument("--exchange", choices=("gather", "ring"), default="gather")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it by torchrun --nproc-per-node 2 examples/split_sequence.py")

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    length = options.length
    x, target = (torch.randn(1, length, 64).to(device) for _ in range(2))
    cuts = [length * r // ranks for r in range(ranks + 1)]  # pieces may differ in length
    own = slice(cuts[rank], cuts[rank + 1])

    layer = make_layer().to(device)
    layer.sequence_group, layer.sequence_exchange = dist.group.WORLD, options.exchange
    model = DistributedDataParallel(layer)
    start = time.perf_counter()
    loss = loss_sum(model, x[:, own], target[:, own])
    # DDP averages the ranks' gradients, and the whole is their sum over all positions.
    (loss * ranks / length).backward()
    took = time.perf_counter() - start
    dist.all_reduce(loss.detach())
    print(f"rank {rank}: positions {own.start} to {own.stop - 1}, {took:.2f} s", flush=True)

    if rank == 0:
        alone = make_layer().to(device)
        expected = loss_sum(alone, x, target)
        (expected / length).backward()
        found, true = gradients(layer), gradients(alone)
        losses = [float(total.detach()) / length for total in (loss, expected)]
        print("loss {:.6f}, in one process {:.6f}".format(*losses))
        print(f"gradient off by {float((found - true).abs().max() / true.abs().max()):.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
