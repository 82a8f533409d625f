"""Looking inside: kernels, attention maps, receptive fields, attention that is a convolution."""

from longlens.lens.theorem import KernelAttention, as_attention

__all__ = ["KernelAttention", "as_attention"]
