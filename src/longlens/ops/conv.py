"""Long depth-wise convolution, causal or two-sided, by FFT; the direct sum beside it.

Shapes: B batch, L sequence length, D channels, K kernel length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from longlens.ops.numerics import full_precision, no_autocast

if TYPE_CHECKING:
    from torch import Tensor


def fft_length(minimum: int) -> int:
    """An FFT length of at least ``minimum`` with no prime factor above 13.

    FFT libraries are several times slower at lengths with large prime factors. A compiled program
    serves all sequences whose length follows by the same formula, so there are few of these.

    >>> [fft_length(n) for n in (1, 65, 1999, 2049, 8193)]
    [64, 128, 2048, 2304, 10240]
    """
    for most, step in ((1024, 64), (4096, 256), (8192, 512)):
        if minimum <= most:
            return -(-minimum // step) * step
    octave = 2048
    while 6 * octave < minimum:
        octave *= 2
    return next(n * octave for n in (4, 5, 6) if n * octave >= minimum)


def _check(x: Tensor, kernel: Tensor, backward: Tensor | None) -> None:
    for name, k in (("kernel", kernel), ("backward", backward)):
        if k is not None and (k.ndim != 2 or k.shape[0] != x.shape[-1]):
            raise ValueError(
                f"{name} must have shape (D, K) with D = {x.shape[-1]}, got {tuple(k.shape)}"
            )


def fft_conv(x: Tensor, kernel: Tensor, backward: Tensor | None = None) -> Tensor:
    """Convolve every channel of a sequence with its own long kernel in O(L log L).

        y_i = Σ_{j ≤ i} kernel[i-j] · x_j  +  Σ_{j > i} backward[j-i-1] · x_j

    The kernel covers the present and the past, ``backward`` the strict future, so the present is
    counted once. Works in float32 (float64 for float64 input), whatever autocast says.

    Args:
        x: (B, L, D).
        kernel: (D, K), any K; what lies beyond L is not used.
        backward: (D, K) or None (causal).

    Returns:
        (B, L, D) in the dtype of ``x``.

    >>> x = torch.tensor([1.0, 0.0, 2.0]).view(1, 3, 1)
    >>> fft_conv(x, torch.tensor([[1.0, 0.5]])).flatten().round(decimals=4)
    tensor([1.0000, 0.5000, 2.0000])
    """
    _check(x, kernel, backward)
    length = x.shape[1]
    if x.numel() == 0:  # FFT libraries refuse an empty batch; kernels get zeros for a gradient
        sums = kernel.sum(-1) if backward is None else kernel.sum(-1) + backward.sum(-1)
        return (x * sums).to(x.dtype)
    with no_autocast(x):
        signal = full_precision(x).transpose(1, 2)
        taps = full_precision(kernel)[:, :length]
        # The first L outputs must not meet taps that wrap around from the other end: distances
        # are at most L - 1 either way, so the longer side alone decides.
        if backward is None:
            n = fft_length(length + taps.shape[-1] - 1)
        else:
            future = full_precision(backward)[:, : length - 1]
            n = fft_length(length + max(taps.shape[-1] - 1, future.shape[-1]))
            # A tap s steps ahead sits at index n - s of the circular kernel.
            gap = taps.new_zeros(taps.shape[0], n - taps.shape[-1] - future.shape[-1])
            taps = torch.cat([taps, gap, future.flip(-1)], dim=-1)
        spectrum = torch.fft.rfft(signal, n=n) * torch.fft.rfft(taps, n=n)
        out: Tensor = torch.fft.irfft(spectrum, n=n)[..., :length]
    return out.transpose(1, 2).to(x.dtype)


def conv_reference(x: Tensor, kernel: Tensor, backward: Tensor | None = None) -> Tensor:
    """The definition of :func:`fft_conv` as a double sum, O(L²): the specification.

    >>> x = torch.tensor([1.0, 0.0, 2.0]).view(1, 3, 1)
    >>> conv_reference(x, torch.tensor([[1.0]]), torch.tensor([[0.0, 0.5]])).flatten()
    tensor([2., 0., 2.])
    """
    _check(x, kernel, backward)
    rows = []
    for i in range(x.shape[1]):
        row = torch.zeros_like(x[:, 0])
        for j in range(x.shape[1]):
            if j <= i and i - j < kernel.shape[1]:
                row = row + kernel[:, i - j] * x[:, j]
            if j > i and backward is not None and j - i - 1 < backward.shape[1]:
                row = row + backward[:, j - i - 1] * x[:, j]
        rows.append(row)
    return torch.stack(rows, dim=1)
