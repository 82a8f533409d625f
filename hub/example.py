"""Load the kernel from this folder, after `kernel-builder build`."""

from pathlib import Path

import torch
from kernels import get_local_kernel

las = get_local_kernel(Path(__file__).parent)
device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v = (torch.randn(1, 8, 1000, 64, device=device) for _ in range(3))
alpha = las.decay_rates(8, bound=1e-3, device=device)
print(las.las_attention(q, k, v, alpha=alpha, window=5).shape)
print(las.explain(q, k, v, alpha=alpha, window=5))
