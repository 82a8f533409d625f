"""Gray photographs: AutoAugment's CIFAR-10 policy, mirroring, shifts and changes of scale.

Every image of a batch gets operations of its own. Published runs transform the colour image and
convert it to gray afterwards; here the data are gray already. Mirroring, shifting, turning,
shearing, inverting, brightness, contrast and sharpness commute with the conversion (up to
rounding); ``color`` has nothing to change; equalize, autocontrast, solarize and posterize act on
the luma rather than on each colour.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from longlens.training.augment.affine import (
    Interpolation,
    affine_matrix,
    check_options,
    resample,
)
from longlens.training.augment.base import Transform, to_images, to_tokens
from longlens.training.augment.gray import TABLES, lookup_tables, sharpen

# AutoAugment (Cubuk et al. 2019), Table 7: operation, probability, level 0 … 9.
CIFAR_POLICY = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
# What an operation is made of; a row of zeros leaves an image as it is.
COLUMNS = (
    "table", "level", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "rotate",
)  # fmt: skip
_NOISE = 11  # uniform numbers an image needs


def describe(operation: str, level: int, sign: int, shape: tuple[int, int]) -> list[float]:
    """One operation at a level 0 … 9 as a row of ``COLUMNS``; magnitudes as published.

    >>> dict(zip(COLUMNS, describe("translate_x", 9, -1, (32, 32))))["translate_x"]
    -14.0
    """
    row = dict.fromkeys(COLUMNS, 0.0)
    part = level / 9
    if operation in TABLES:
        row["table"] = float(TABLES.index(operation))
    match operation:
        case "solarize":
            row["level"] = 256 * (1 - part)
        case "posterize":
            row["level"] = 8.0 - round(4 * part)
        case "brightness" | "contrast":
            row["level"] = 1 + sign * 0.9 * part
        case "sharpness":
            row["sharpness"] = sign * 0.9 * part
        case "shear_x" | "shear_y":
            row[operation] = sign * 0.3 * part
        case "translate_x" | "translate_y":
            size = shape[1] if operation == "translate_x" else shape[0]
            row[operation] = float(sign * int(size * 150 / 331 * part))
        case "rotate":
            row[operation] = sign * math.radians(30 * part)
        case "invert" | "autocontrast" | "equalize" | "color":
            pass  # take no level; there is no colour in gray images
        case _:
            raise ValueError(f"unknown operation {operation!r}")
    return [row[column] for column in COLUMNS]


def apply_operation(
    images: Tensor, rows: Tensor, fill: float, interpolation: Interpolation = "nearest"
) -> Tensor:
    """Apply to images (B, H, W) float the operations ``rows`` (B, 8)."""
    part = dict(zip(COLUMNS, rows.unbind(1), strict=True))
    pixels = images.flatten(1).long()
    tables = lookup_tables(pixels, part["level"])
    which = part["table"].long()[:, None, None].expand(-1, 1, 256)
    images = tables.gather(1, which)[:, 0].gather(1, pixels).view_as(images).float()
    images = sharpen(images, 1 + part["sharpness"])
    matrix = affine_matrix(
        angle=part["rotate"], shear_x=part["shear_x"], shear_y=part["shear_y"],
        shift_x=part["translate_x"], shift_y=part["translate_y"], like=images,
    )  # fmt: skip
    return resample(images, matrix, fill, interpolation).round()


class AugmentImage(Transform):
    """Two operations of a random AutoAugment sub-policy, then mirroring, shift and scale.

    Args:
        shape: rows and columns of an image; the inputs hold its gray values row by row.
        policy: use AutoAugment's sub-policies.
        flip: probability of exchanging left and right.
        shift: up to this share of the size, in either direction and axis.
        scale: least and greatest enlargement.
        cutout: side of a square at a random place that is filled; 0: none.
        fill: gray value of what was outside the image.
        interpolation: of turned, sheared, enlarged and shifted images.

    >>> augment = AugmentImage((32, 32))
    >>> pixels = torch.randint(256, (4, 1024))
    >>> out = augment(pixels, None, torch.Generator().manual_seed(0))
    >>> out.shape, out.dtype, bool((out >= 0).all() and (out < 256).all())
    (torch.Size([4, 1024]), torch.int64, True)
    """

    operations: Tensor
    probability: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        policy: bool = True,
        flip: float = 0.5,
        shift: float = 0.1,
        scale: tuple[float, float] = (0.9, 1.1),
        cutout: int = 0,
        fill: int = 128,
        interpolation: Interpolation = "nearest",
    ) -> None:
        super().__init__()
        check_options(interpolation, flip=flip, shift=shift)
        if not 0 < scale[0] <= scale[1]:
            raise ValueError(f"scale must be a pair 0 < least <= greatest, got {scale}")
        self.shape, self.policy, self.flip, self.shift = shape, policy, flip, shift
        self.scale, self.cutout, self.fill = scale, cutout, fill
        self.interpolation: Interpolation = interpolation
        rows = [
            [[describe(name, level, sign, shape) for sign in (-1, 1)] for name, _, level in pair]
            for pair in CIFAR_POLICY
        ]
        probabilities = [[probability for _, probability, _ in pair] for pair in CIFAR_POLICY]
        self.register_buffer("operations", torch.tensor(rows), persistent=False)
        self.register_buffer("probability", torch.tensor(probabilities), persistent=False)

    def noise(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """(B, 11) uniform numbers."""
        return torch.rand(len(inputs), _NOISE, generator=generator, device=inputs.device)

    def transform(self, inputs: Tensor, mask: Tensor | None, noise: Tensor) -> Tensor:
        """Gray values (B, H·W) -> (B, H·W); ``noise`` (B, 11) in 0 … 1 decides everything."""
        images = to_images(inputs, self.shape)
        which, use_1, sign_1, use_2, sign_2, *rest = noise.unbind(1)
        if self.policy:
            pair = (which * len(CIFAR_POLICY)).long()
            for step, use, sign in ((0, use_1, sign_1), (1, use_2, sign_2)):
                rows = self.operations[pair, step, (2 * sign).long()]
                used = use < self.probability[pair, step]
                images = apply_operation(
                    images, rows * used[:, None], self.fill, self.interpolation
                )
        flip, across, down, scale, cut_x, cut_y = rest
        height, width = self.shape
        matrix = affine_matrix(
            flip_x=torch.where(flip < self.flip, -1.0, 1.0),
            scale=self.scale[0] + (self.scale[1] - self.scale[0]) * scale,
            shift_x=(2 * across - 1) * self.shift * width,
            shift_y=(2 * down - 1) * self.shift * height,
            like=images,
        )
        images = resample(images, matrix, self.fill, self.interpolation)
        if self.cutout:
            images = cut_square(images, cut_x, cut_y, self.cutout, self.fill)
        return to_tokens(images, inputs)


def cut_square(images: Tensor, x: Tensor, y: Tensor, side: int, fill: float) -> Tensor:
    """Fill a square of ``side`` pixels whose centre is at x, y (B,) in 0 … 1 of (B, H, W)."""
    height, width = images.shape[1:]
    left = (x * width).floor() - side // 2
    top = (y * height).floor() - side // 2
    columns = torch.arange(width, device=images.device)
    rows = torch.arange(height, device=images.device)
    inside_x = (columns >= left[:, None]) & (columns < left[:, None] + side)
    inside_y = (rows >= top[:, None]) & (rows < top[:, None] + side)
    return images.masked_fill(inside_y[:, :, None] & inside_x[:, None, :], fill)
