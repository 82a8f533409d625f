"""Batched image operations against plain ones, written pixel by pixel from their definitions."""

import math

import numpy as np
import pytest
import torch

from longlens.training.augment import AugmentImage, build
from longlens.training.augment.affine import affine_matrix, resample
from longlens.training.augment.gray import cumulative, lookup_tables, sharpen
from longlens.training.augment.image import (
    CIFAR_POLICY,
    COLUMNS,
    apply_operation,
    cut_square,
    describe,
)

SIDE = 20  # more than 255 pixels: fewer, and equalize would do nothing


def pictures():
    """Noise, a dark ramp, one gray, two grays, and a bright picture with one black pixel."""
    rng = np.random.default_rng(0)
    ramp = np.arange(SIDE * SIDE).reshape(SIDE, SIDE) // 2 + 20
    two = np.where(rng.random((SIDE, SIDE)) < 0.5, 30, 31)
    bright = rng.integers(200, 256, (SIDE, SIDE))
    bright[3, 4] = 0
    noise = rng.integers(0, 256, (2, SIDE, SIDE))
    return np.stack([*noise, ramp, np.full((SIDE, SIDE), 77), two, bright])


def clip(value):
    return min(255, max(0, int(value)))


def per_pixel(image, function):
    return np.array([[function(int(p)) for p in row] for row in image])


def plain_autocontrast(image, level):
    low, high = int(image.min()), int(image.max())
    if low == high:
        return image
    return per_pixel(image, lambda p: (p - low) * 255 // (high - low))


def plain_equalize(image, level):
    counts = [int((image == value).sum()) for value in range(256)]
    used = [count for count in counts if count]
    step = (sum(used) - used[-1]) // 255
    if step == 0:
        return image
    return per_pixel(image, lambda p: min(255, (step // 2 + sum(counts[:p])) // step))


def plain_sharpness(image, factor):
    smooth = image.copy()
    for y in range(1, SIDE - 1):
        for x in range(1, SIDE - 1):
            total = image[y - 1 : y + 2, x - 1 : x + 2].sum() + 4 * image[y, x]
            smooth[y, x] = math.floor(total / 13 + 0.5)
    out = np.float32(factor) * (image - smooth).astype(np.float32) + smooth.astype(np.float32)
    return np.vectorize(clip)(out)


def plain_contrast(image, factor):
    mean = math.floor(image.mean() + 0.5)
    return per_pixel(image, lambda p: clip(np.float32(mean) + np.float32(factor) * (p - mean)))


PLAIN = {
    "identity": lambda image, level: image,
    "invert": lambda image, level: 255 - image,
    "solarize": lambda image, level: per_pixel(image, lambda p: p if p < level else 255 - p),
    "posterize": lambda image, level: per_pixel(image, lambda p: p - p % 2 ** (8 - int(level))),
    "brightness": lambda image, f: per_pixel(image, lambda p: clip(np.float32(f) * np.float32(p))),
    "contrast": plain_contrast,
    "autocontrast": plain_autocontrast,
    "equalize": plain_equalize,
}
LEVELS = {"solarize": [0.0, 56.9, 128.0, 256.0], "posterize": [4.0, 5.0, 8.0]}


@pytest.mark.parametrize("operation", PLAIN)
def test_tables_are_the_plain_operations(operation):
    images = pictures()
    pixels = torch.from_numpy(images).flatten(1)
    for level in LEVELS.get(operation, [0.1, 0.7, 1.0, 1.6, 1.9]):
        tables = lookup_tables(pixels, torch.full((len(images),), level))
        got = tables[:, list(PLAIN).index(operation)].gather(1, pixels)
        want = np.stack([PLAIN[operation](image, level) for image in images])
        assert np.array_equal(got.view(-1, SIDE, SIDE).numpy(), want), level


def test_cumulative_counts():
    pixels = torch.randint(256, (3, 50))
    want = (pixels[:, :, None] <= torch.arange(256)).sum(1)
    assert torch.equal(cumulative(pixels), want)


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.0, 1.3, 1.9])
def test_sharpness(factor):
    images = pictures()
    got = sharpen(torch.from_numpy(images).float(), torch.full((len(images),), factor))
    want = np.stack([plain_sharpness(image, factor) for image in images])
    assert np.array_equal(got.numpy(), want)


def plain_affine(image, forward, fill, interpolation):
    """Resampling pixel by pixel; ``forward`` (2, 3) takes old places to new ones.

    NaN where two pixels are equally near, and either may be taken.
    """
    matrix, move = np.array(forward)[:, :2], np.array(forward)[:, 2]
    height, width = image.shape
    centre = np.array([(width - 1) / 2, (height - 1) / 2])

    def at(px, py):
        return image[py, px] if 0 <= px < width and 0 <= py < height else fill

    out = np.zeros(image.shape)
    for y in range(height):
        for x in range(width):
            ox, oy = np.linalg.solve(matrix, np.array([x, y]) - centre - move) + centre
            if interpolation == "nearest":
                tie = min(abs(ox % 1 - 0.5), abs(oy % 1 - 0.5)) < 1e-4
                out[y, x] = math.nan if tie else at(round(ox), round(oy))
                continue
            for cx, cy in ((0, 0), (1, 0), (0, 1), (1, 1)):
                px, py = math.floor(ox) + cx, math.floor(oy) + cy
                out[y, x] += (1 - abs(ox - px)) * (1 - abs(oy - py)) * at(px, py)
    return out


def turn(angle):
    return [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]]


@pytest.mark.parametrize(
    ("arguments", "forward"),
    [
        (dict(angle=0.4), turn(0.4)),
        (dict(shear_x=0.3), [[1, 0.3, 0], [0, 1, 0]]),
        (dict(shear_y=-0.2), [[1, 0, 0], [-0.2, 1, 0]]),
        (dict(shift_x=3.0, shift_y=-2.0), [[1, 0, 3], [0, 1, -2]]),
        (dict(shift_x=0.25, shift_y=1.5), [[1, 0, 0.25], [0, 1, 1.5]]),
        (dict(scale=1.1), [[1.1, 0, 0], [0, 1.1, 0]]),
        (dict(scale=0.8, flip_x=-1.0, shift_x=1.0), [[-0.8, 0, 1], [0, 0.8, 0]]),
        (dict(flip_y=-1.0), [[1, 0, 0], [0, -1, 0]]),
    ],
)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
def test_affine_maps(arguments, forward, shape, interpolation):
    images = np.random.default_rng(0).integers(0, 256, (2, *shape))
    tensor = torch.from_numpy(images).float()
    matrix = affine_matrix(**arguments, like=tensor)
    got = resample(tensor, matrix, fill=128.0, interpolation=interpolation)
    want = np.stack([plain_affine(image, forward, 128, interpolation) for image in images])
    assert np.nanmax(np.abs(got.numpy() - want), initial=0) < 0.01


def test_a_map_of_its_own_for_each_image():
    images = torch.from_numpy(pictures()).float()
    angles = torch.linspace(-0.5, 0.5, len(images))
    together = resample(images, affine_matrix(angle=angles, like=images), 0.0)
    for image, angle, got in zip(images, angles, together, strict=True):
        alone = resample(image[None], affine_matrix(angle=angle[None], like=image[None]), 0.0)
        assert torch.equal(alone[0], got)


def plain_operation(image, name, level, sign, interpolation):
    """One AutoAugment operation as published, on one image."""
    part, size = level / 9, SIDE
    if name in ("brightness", "contrast"):
        return PLAIN[name](image, 1 + sign * 0.9 * part)
    if name == "sharpness":
        return plain_sharpness(image, 1 + sign * 0.9 * part)
    if name == "solarize":
        return PLAIN[name](image, 256 - 256 * part)
    if name == "posterize":
        return PLAIN[name](image, [8, 8, 7, 7, 6, 6, 5, 5, 4, 4][level])
    if name in PLAIN:
        return PLAIN[name](image, 0)
    if name == "color":
        return image
    shear, pixels = sign * 0.3 * part, sign * int(size * 150 / 331 * part)
    forward = {
        "rotate": turn(sign * math.radians(30 * part)),
        "shear_y": [[1, 0, 0], [shear, 1, 0]],
        "translate_x": [[1, 0, pixels], [0, 1, 0]],
        "translate_y": [[1, 0, 0], [0, 1, pixels]],
    }[name]
    return plain_affine(image, forward, 128, interpolation)  # before rounding


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_every_operation_of_the_policy(step, sign, interpolation):
    """All 25 in one batch, each image with its own, as the policy says."""
    image = pictures()[0]
    names = [pair[step] for pair in CIFAR_POLICY]
    rows = torch.tensor([describe(name, level, sign, (SIDE, SIDE)) for name, _, level in names])
    batch = torch.from_numpy(image).float().repeat(len(names), 1, 1)
    done = apply_operation(batch, rows, 128.0, interpolation)
    for got, (name, _, level) in zip(done, names, strict=True):
        want = plain_operation(image, name, level, sign, interpolation)
        blends = interpolation == "bilinear" and name in ("rotate", "shear_y")
        assert np.isnan(want).mean() < 0.1
        assert np.nanmax(np.abs(got.numpy() - want)) <= (0.51 if blends else 0), (name, level)


def test_unknown_operation():
    with pytest.raises(ValueError, match="'blur'"):
        describe("blur", 1, 1, (32, 32))
    assert len(describe("color", 9, 1, (32, 32))) == len(COLUMNS)


def test_each_image_goes_its_own_way_as_often_as_the_policy_says():
    augment = AugmentImage((SIDE, SIDE), flip=0.0, shift=0.0, scale=(1.0, 1.0))
    image = torch.randint(20, 220, (1, SIDE * SIDE))  # every operation but `color` changes it
    out = augment(image.repeat(5000, 1), None, torch.Generator().manual_seed(0))
    unused = [
        math.prod(1.0 if name == "color" else 1 - p for name, p, _ in pair) for pair in CIFAR_POLICY
    ]
    changed = (out != image).any(1).double().mean().item()
    assert abs(changed - (1 - sum(unused) / 25)) < 0.025  # four standard deviations


def test_flip_shift_and_scale():
    image = torch.from_numpy(pictures()[0]).view(1, -1)
    never = dict(policy=False, shift=0.0, scale=(1.0, 1.0))
    generator = torch.Generator().manual_seed(0)
    same = AugmentImage((SIDE, SIDE), flip=0.0, **never)(image, None, generator)
    assert torch.equal(same, image)
    flipped = AugmentImage((SIDE, SIDE), flip=1.0, **never)(image, None, generator)
    assert torch.equal(flipped.view(SIDE, SIDE), image.view(SIDE, SIDE).flip(1))
    half = AugmentImage((SIDE, SIDE), flip=0.5, **never)(image.repeat(4000, 1), None, generator)
    assert abs((half == image).all(1).double().mean().item() - 0.5) < 0.03
    moved = AugmentImage((SIDE, SIDE), policy=False, flip=0.0, shift=0.25, scale=(1.0, 1.0))
    noise = torch.full((1, 11), 0.5)
    noise[0, 6] = 1 - 1e-7  # fully to the right: a quarter of 20 pixels
    out = moved.transform(image, None, noise).view(SIDE, SIDE)
    assert torch.equal(out[:, 5:], image.view(SIDE, SIDE)[:, :-5]) and (out[:, :5] == 128).all()


def test_cutout():
    images = torch.ones(2, 8, 8)
    out = cut_square(images, torch.tensor([0.5, 0.0]), torch.tensor([0.5, 0.99]), 4, fill=0.0)
    assert (out[0, 2:6, 2:6] == 0).all() and out[0].sum() == 64 - 16
    assert (out[1, 5:, :2] == 0).all() and out[1].sum() == 64 - 6


def test_the_generator_decides_and_dtype_stays():
    augment = AugmentImage((SIDE, SIDE), cutout=3)
    pixels = torch.from_numpy(pictures()).flatten(1).to(torch.int32)
    generator = torch.Generator().manual_seed(5)
    first, second = augment(pixels, None, generator), augment(pixels, None, generator)
    again = augment(pixels, None, torch.Generator().manual_seed(5))
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert first.dtype == torch.int32 and first.min() >= 0 and first.max() <= 255
    noise = augment.noise(pixels, torch.Generator().manual_seed(5))
    assert torch.equal(first[3:], augment.transform(pixels[3:], None, noise[3:]))


def test_wrong_input_is_named():
    augment = AugmentImage((32, 32))
    with pytest.raises(ValueError, match=r"\(B, 1024\) in integers, got torch.float32 \(2, 1024\)"):
        augment(torch.rand(2, 1024), None, torch.Generator())
    with pytest.raises(ValueError, match=r"got torch.int64 \(2, 784\)"):
        augment(torch.zeros(2, 784, dtype=torch.long), None, torch.Generator())
    with pytest.raises(ValueError, match="flip must be in 0 … 1, got 2"):
        AugmentImage((32, 32), flip=2)
    with pytest.raises(ValueError, match="scale must be"):
        AugmentImage((32, 32), scale=(1.2, 0.9))
    with pytest.raises(ValueError, match="'nearest' or 'bilinear', got 'cubic'"):
        AugmentImage((32, 32), interpolation="cubic")
    with pytest.raises(ValueError, match="nothing is known for 'text'"):
        build("text", None)
    with pytest.raises(ValueError, match="image=None"):
        build("image", None)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.filterwarnings("ignore")  # inductor warns of its own parts
def test_compiled_in_one_graph(backend):
    augment = AugmentImage((32, 32))
    compiled = torch.compile(augment.transform, fullgraph=True, backend=backend)
    pixels = torch.randint(256, (50, 1024))
    noise = augment.noise(pixels, torch.Generator().manual_seed(0))
    off = (compiled(pixels, None, noise) - augment.transform(pixels, None, noise)).abs()
    assert (off > 1).double().mean() < 1e-3  # fused multiply-adds round a few pixels elsewhere
