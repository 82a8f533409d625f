"""Operations on the gray values of images, batched: each image has its own table of 256 values.

Whatever maps a pixel by its value alone (and by the image's histogram) is such a table, so a batch
in which every image undergoes another operation is one gather. Definitions are those of AutoAugment
(Cubuk et al. 2019), that is of Pillow's ``ImageOps`` and ``ImageEnhance``, in integers 0 … 255.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TABLES = (
    "identity", "invert", "solarize", "posterize", "brightness", "contrast", "autocontrast",
    "equalize",
)  # fmt: skip


def cumulative(pixels: Tensor) -> Tensor:
    """How many pixels of each image have at most each value: (B, N) int in 0 … 255 -> (B, 256).

    >>> cumulative(torch.tensor([[0, 1, 1, 255]]))[0, [0, 1, 2, 254, 255]]
    tensor([1, 3, 3, 3, 4])
    """
    values = torch.arange(256, device=pixels.device).expand(len(pixels), 256).contiguous()
    return torch.searchsorted(pixels.sort(1).values, values, right=True)


def lookup_tables(pixels: Tensor, magnitude: Tensor) -> Tensor:
    """All tables of each image: (B, N) pixels, (B,) -> (B, 8, 256), in the order of ``TABLES``.

    Args:
        pixels: int64 gray values.
        magnitude: what each operation takes: ``solarize`` inverts values from this threshold on;
            ``posterize`` keeps this many high bits; ``brightness`` and ``contrast`` go from black,
            or from the image's mean gray, by this factor (1 leaves an image as it is).
    """
    count = cumulative(pixels)
    total = pixels.shape[1]
    value = torch.arange(256, device=pixels.device).expand(len(pixels), 256)
    level = magnitude[:, None]
    solarized = torch.where(value < level, value, 255 - value)
    drop = (8 - level.long()).clamp(0, 8)
    posterized = (value >> drop) << drop
    brighter = (value * level).clamp(0, 255).long()
    mean = (pixels.sum(1, keepdim=True) + total // 2) // total
    contrasted = (mean + (value - mean) * level).clamp(0, 255).long()
    tables = [value, 255 - value, solarized, posterized, brighter, contrasted]
    tables += [_autocontrast(value, count, total), _equalize(value, count)]
    return torch.stack(tables, dim=1)


def _autocontrast(value: Tensor, count: Tensor, total: int) -> Tensor:
    """Stretch each image's darkest value to 0 and its brightest to 255."""
    low = (count == 0).sum(1, keepdim=True)
    high = (count < total).sum(1, keepdim=True)
    # In integers, rounded down, so that every device gives the same table.
    stretched = ((value - low) * 255 // (high - low).clamp(min=1)).clamp(0, 255)
    return torch.where(high > low, stretched, value)


def _equalize(value: Tensor, count: Tensor) -> Tensor:
    """Spread values so that all are about equally frequent."""
    histogram = count.diff(dim=1, prepend=torch.zeros_like(count[:, :1]))
    brightest = (histogram * (count == count[:, -1:])).amax(1, keepdim=True)
    step = (count[:, -1:] - brightest) // 255
    spread = ((step // 2 + count - histogram) // step.clamp(min=1)).clamp(0, 255)
    return torch.where(step > 0, spread, value)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend (B, H, W) with a smoothed copy: factor (B,) 0 is smooth, 1 the image, 2 sharp.

    The smoothed copy is [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13, rounded; the border keeps its
    pixels.
    """
    smooth = images.clone()
    # sums rather than a convolution, which autocast would round to bfloat16
    around = F.avg_pool2d(images[:, None], 3, stride=1, divisor_override=1)[:, 0]
    smooth[:, 1:-1, 1:-1] = torch.floor((around + 4 * images[:, 1:-1, 1:-1] + 6.5) / 13.0)
    blended = smooth + (images - smooth) * factor[:, None, None]
    return blended.clamp(0, 255).floor()
