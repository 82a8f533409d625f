"""What every transformation of training inputs has in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Transform(nn.Module):
    """A random change of a batch's inputs that leaves its targets true.

    Calling it draws all random numbers from ``generator`` in one go (:meth:`noise`) and applies a
    pure function of them (:meth:`transform`). So a run that restores the generator goes on exactly,
    ranks that draw the noise of the whole batch and take their own rows agree with a single
    process, and ``transform`` can be compiled, which a generator cannot. Nothing waits for the
    device and nothing loops over examples.
    """

    def noise(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the random numbers (B, …) for inputs (B, L), on the inputs' device."""
        raise NotImplementedError

    def transform(self, inputs: Tensor, mask: Tensor | None, noise: Tensor) -> Tensor:
        """Transform inputs (B, L) by ``noise``; ``mask`` (B, L) is True on real positions."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Inputs (B, L) -> (B, L); ``generator`` lives on the inputs' device."""
        return self.transform(inputs, mask, self.noise(inputs, generator))


def to_images(inputs: Tensor, shape: tuple[int, int]) -> Tensor:
    """View gray tokens (B, H·W), read row by row, as images (B, H, W) in float32."""
    if inputs.is_floating_point() or inputs.shape[1:] != (shape[0] * shape[1],):
        raise ValueError(
            f"inputs must be gray values 0 … 255 (B, {shape[0] * shape[1]}) in integers, got "
            f"{inputs.dtype} {tuple(inputs.shape)}"
        )
    return inputs.view(-1, *shape).float()


def to_tokens(images: Tensor, like: Tensor) -> Tensor:
    """Round images (B, H, W) to gray tokens (B, H·W) of the dtype of ``like``."""
    return images.round().clamp(0, 255).to(like.dtype).flatten(1)
