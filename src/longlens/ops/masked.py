"""Which of PyTorch's attentions may take a mask.

On Hopper GPUs PyTorch prefers cuDNN's attention (2.11 to 2.13 at least). Its gradient can be NaN
where a mask is given and the number of keys is 64 more than a multiple of 128: the empty half of
the last tile is not left out (pytorch/pytorch#196678, cuDNN 9.20). Without a mask it is right.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def safe_with(mask: Tensor | None, query: Tensor) -> AbstractContextManager[object]:
    """A context for one call of `scaled_dot_product_attention`: with a mask, not by cuDNN.

    The other switches of `torch.backends.cuda` stay as they are; a compiler cannot read them, so
    that compiled code takes the memory-efficient attention, or the formula where that one refuses.

    >>> q = torch.ones(1, 1, 2, 8)
    >>> with safe_with(None, q):
    ...     torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 1, 2, 8])
    """
    if mask is None or not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return nullcontext()
    if torch.compiler.is_compiling():
        return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    cuda = torch.backends.cuda
    enabled = {
        SDPBackend.EFFICIENT_ATTENTION: cuda.mem_efficient_sdp_enabled(),
        SDPBackend.MATH: cuda.math_sdp_enabled(),
    }
    return sdpa_kernel([kind for kind, on in enabled.items() if on] or [SDPBackend.MATH])
