"""Pathfinder: mirrored, turned a little and shifted; contours stay contours."""

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


class TurnAndShift(Transform):
    """Mirror along both axes, turn and shift; what comes in from outside is black.

    Args:
        shape: rows and columns of an image; the inputs hold its gray values row by row.
        flip: probability of each of the two mirrorings.
        angle: up to this many degrees in either direction.
        shift: up to this share of the size, in either direction and axis.
        interpolation: ``nearest`` keeps the brightness of the thin dashes, which pixel tokens
            depend on; ``bilinear`` keeps them whole and dims them.

    >>> turn = TurnAndShift((4, 4), angle=0.0, shift=0.0, flip=1.0)
    >>> turn(torch.arange(16).view(1, 16), None, torch.Generator())[0, :5]
    tensor([15, 14, 13, 12, 11])
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        flip: float = 0.5,
        angle: float = 10.0,
        shift: float = 0.1,
        interpolation: Interpolation = "nearest",
    ) -> None:
        super().__init__()
        check_options(interpolation, flip=flip, shift=shift)
        self.shape, self.flip, self.angle, self.shift = shape, flip, angle, shift
        self.interpolation: Interpolation = interpolation

    def noise(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """(B, 5) uniform numbers."""
        return torch.rand(len(inputs), 5, generator=generator, device=inputs.device)

    def transform(self, inputs: Tensor, mask: Tensor | None, noise: Tensor) -> Tensor:
        """Gray values (B, H·W) -> (B, H·W); ``noise`` (B, 5) in 0 … 1 decides everything."""
        images = to_images(inputs, self.shape)
        flip_x, flip_y, turn, across, down = noise.unbind(1)
        matrix = affine_matrix(
            flip_x=torch.where(flip_x < self.flip, -1.0, 1.0),
            flip_y=torch.where(flip_y < self.flip, -1.0, 1.0),
            angle=(2 * turn - 1) * math.radians(self.angle),
            shift_x=(2 * across - 1) * self.shift * self.shape[1],
            shift_y=(2 * down - 1) * self.shift * self.shape[0],
            like=images,
        )
        return to_tokens(resample(images, matrix, 0.0, self.interpolation), inputs)
