"""Affine maps of small gray images, a map of its own for each, by one resampling."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Interpolation = Literal["nearest", "bilinear"]


def affine_matrix(
    *,
    angle: Tensor | float = 0.0,
    shear_x: Tensor | float = 0.0,
    shear_y: Tensor | float = 0.0,
    scale: Tensor | float = 1.0,
    shift_x: Tensor | float = 0.0,
    shift_y: Tensor | float = 0.0,
    flip_x: Tensor | float = 1.0,
    flip_y: Tensor | float = 1.0,
    like: Tensor,
) -> Tensor:
    """Maps (B, 2, 3) from a place in the new image to the place in the old one that it shows.

    Coordinates are pixels from the image's centre, x to the right and y down. An image is first
    mirrored (``flip_x=-1``: left and right), then enlarged by ``scale`` and turned by ``angle``
    radians (clockwise on the screen), then sheared, then moved right and down by ``shift`` pixels:

        old = flip · R(-angle) / scale · S⁻¹ · (new - shift),   S⁻¹ = [[1, -shear_x], [-shear_y, 1]]

    (one of the two shears at a time, as in AutoAugment). Each argument is a number or (B,);
    ``like`` (B, ...) gives batch and device.

    >>> affine_matrix(shift_x=2.0, scale=0.5, like=torch.zeros(1))[0, 0]
    tensor([ 2.,  0., -4.])
    """

    def column(value: Tensor | float) -> Tensor:
        if not isinstance(value, Tensor):
            return torch.full(like.shape[:1], value, dtype=torch.float32, device=like.device)
        return value.float()

    angle, scale = column(angle), column(scale)
    shear_x, shear_y = column(shear_x), column(shear_y)
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    flip_x, flip_y = column(flip_x), column(flip_y)
    xx, xy = flip_x * (cos - sin * shear_y), flip_x * (sin - cos * shear_x)
    yx, yy = flip_y * (-sin - cos * shear_y), flip_y * (cos + sin * shear_x)
    dx, dy = column(shift_x), column(shift_y)
    rows = [xx, xy, -(xx * dx + xy * dy), yx, yy, -(yx * dx + yy * dy)]
    return torch.stack(rows, dim=1).view(-1, 2, 3)


def resample(
    images: Tensor, matrix: Tensor, fill: float, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Images (B, H, W) float, seen through ``matrix`` (B, 2, 3); ``fill`` where there was no image.

    ``nearest`` keeps gray values as they are (thin lines stay bright, though some pixels of them go
    missing); ``bilinear`` blends four pixels, which blurs.

    >>> image = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> resample(image, affine_matrix(shift_x=1.0, like=image), fill=9.0)
    tensor([[[9., 1.],
             [9., 3.]]])
    """
    height, width = images.shape[1:]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = torch.arange(height, device=images.device) - (height - 1) / 2
    a = matrix[:, :, None, None, :]
    old = a[..., 0] * x + a[..., 1] * y[:, None] + a[..., 2]  # (B, 2, H, W)
    # grid_sample (align_corners=False) puts the centres of the outer pixels at ±(1 - 1/size).
    grid = torch.stack([old[:, 0] * (2 / width), old[:, 1] * (2 / height)], dim=-1)
    moved = F.grid_sample(
        (images - fill)[:, None], grid, mode=interpolation, padding_mode="zeros",
        align_corners=False,
    )  # fmt: skip
    return moved[:, 0] + fill


def check_options(interpolation: str, **shares: float) -> None:
    """Raise unless the first is an :data:`Interpolation` and the others are in 0 … 1."""
    if interpolation not in get_args(Interpolation):
        raise ValueError(f"interpolation must be 'nearest' or 'bilinear', got {interpolation!r}")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in 0 … 1, got {value}")
