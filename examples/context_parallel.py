"""Causal LaS attention on PyTorch's ring attention (`context_parallel`): needs two or more GPUs.

    torchrun --nproc-per-node 2 examples/context_parallel.py

Each rank turns its piece of q, k and v into q·u, k·w and pool(v); with those, plain causal
attention over the whole sequence is LaS attention, and PyTorch's own ring does the rest. Compared
with `las_attention_sharded` on the same pieces.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from longlens import decay_rates
from longlens.ops.las import folded_inputs_sharded, las_attention_sharded

BATCH, HEADS, LENGTH, WIDTH = 1, 8, 32_768, 64  # LENGTH: positions per rank


def main() -> None:
    """Both ways, output and gradients, and how far they are apart."""
    if torch.cuda.device_count() < 2:
        raise SystemExit("this example needs two or more GPUs: context_parallel is for CUDA only")
    if "RANK" not in os.environ:
        raise SystemExit("start it by torchrun --nproc-per-node 2 examples/context_parallel.py")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    lengths = [LENGTH] * mesh.size()  # context_parallel wants equal pieces

    # By default it deals out the positions in a balanced order (first and last, ...). Smoothing
    # wants neighbours, so keep them in order: later ranks then do more of the work.
    _cp_options.enable_load_balance = False

    torch.manual_seed(dist.get_rank())
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    pieces = [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3)]
    # α times the length of the whole sequence must stay below 60 here.
    alpha = decay_rates(HEADS, bound=min(1e-3, 50 / sum(lengths)), device=device)
    options = dict(group=mesh, lengths=lengths, alpha=alpha, window=5)

    def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(out.float().square().sum(), inputs))

    inputs = [t.clone().requires_grad_() for t in pieces]
    marker = torch.zeros(mesh.size(), device=device)  # it insists on a buffer to split
    with (
        context_parallel(mesh, buffers=[marker], buffer_seq_dims=[0]),
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    ):
        q, k, v = folded_inputs_sharded(*inputs, **options)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = [out, *gradients(out, inputs)]  # the backward pass belongs inside the context too

    inputs = [t.clone().requires_grad_() for t in pieces]
    out = las_attention_sharded(*inputs, exchange="ring", **options)
    expected = [out, *gradients(out, inputs)]
    for name, a, b in zip(("output", "d q", "d k", "d v"), found, expected, strict=True):
        off = (a - b).abs().max() / b.abs().max()
        print(f"rank {dist.get_rank()}: {name:6} differs by {float(off.detach()):.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
