"""Draw the pictures of docs/augmentation.md: ``python docs/pictures/augmentation.py [IMAGES]``.

Without an argument the photographs are a painted landscape; IMAGES is (N, 32, 32) uint8, .npy.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from longlens.tasks.gallery import contact_sheet
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.generate import make_images
from longlens.tasks.pathfinder.parameters import parameters
from longlens.tasks.png import write_png
from longlens.training.augment import AugmentImage, TurnAndShift
from longlens.training.augment.image import apply_operation, describe

HERE = Path(__file__).parent
OPERATIONS = (
    ("invert", 0), ("autocontrast", 0), ("equalize", 0), ("solarize", 5), ("posterize", 9),
    ("brightness", 7), ("contrast", 7), ("sharpness", 9), ("rotate", 9), ("shear_x", 9),
    ("shear_y", 9), ("translate_x", 5), ("translate_y", 5),
)  # fmt: skip


def landscape() -> np.ndarray:
    """A sun, a sky, a hill and a house, (32, 32)."""
    y, x = np.mgrid[0:32, 0:32].astype(float)
    picture = 190 - 2.5 * y
    picture[(x - 24) ** 2 + (y - 7) ** 2 < 14] = 235
    hill = y > 20 + 3 * np.sin(x / 5)
    picture[hill] = (95 - 1.5 * (y - 20) + 12 * np.sin(2 * x + y))[hill]
    house = (np.abs(x - 11) < 5) & (y > 14) & (y < 25)
    picture[house] = 150
    picture[(y > 8) & (y <= 14) & (np.abs(x - 11) < y - 8)] = 60
    picture[house & (np.abs(x - 9) < 1.2) & (np.abs(y - 18) < 1.5)] = 40
    return picture.clip(20, 235).round()


def sheet(name: str, tokens: torch.Tensor, columns: int) -> None:
    """Write a contact sheet of 32 × 32 pictures."""
    pictures = [row.reshape(32, 32) for row in tokens.numpy().astype(np.uint8)]
    write_png(HERE / name, contact_sheet(pictures, columns=columns, scale=2))


def main() -> None:
    """Write the three pictures."""
    photographs = np.load(sys.argv[1])[:6] if len(sys.argv) > 1 else landscape()[None]
    rows = torch.tensor(
        [describe(name, level, sign, (32, 32)) for sign in (1, -1) for name, level in OPERATIONS]
    )
    first = torch.from_numpy(photographs[0].astype(np.float32))
    made = apply_operation(first.repeat(len(rows), 1, 1), rows, fill=128.0)
    sheet("augmentation-operations.png", made.flatten(1), columns=len(OPERATIONS))

    random = torch.Generator().manual_seed(0)
    many = torch.from_numpy(photographs.astype(np.int64)).flatten(1)
    many = many.repeat(-(-39 // len(many)), 1)[:39]
    sheet("augmentation-image.png", AugmentImage((32, 32))(many, None, random), columns=13)

    images, _, _ = make_images(parameters(32), generator(0), 13)
    stored = torch.from_numpy(images.astype(np.int64))
    turn = TurnAndShift((32, 32))
    turned = [stored, turn(stored, None, random), turn(stored, None, random)]
    sheet("augmentation-pathfinder.png", torch.cat(turned), columns=13)


if __name__ == "__main__":
    main()
