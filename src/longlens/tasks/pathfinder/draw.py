"""Drawing scenes: anti-aliased dashes and markers, many images at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.pathfinder.direction import direction
from longlens.tasks.pathfinder.grow import Bools, Floats, Scene
from longlens.tasks.pathfinder.parameters import INK, Parameters

Images = npt.NDArray[np.uint8]


def _patch(centre: Floats, reach: float, size: int) -> tuple[Any, Any, Any]:
    """Pixels around points (N, 2): flat index (N, n), centres (N, n, 2), inside or not (N, n)."""
    width = int(np.ceil(2 * reach)) + 2
    corner = np.floor(centre - reach).astype(np.int64)
    dy, dx = np.mgrid[0:width, 0:width].reshape(2, -1)
    x, y = corner[:, :1] + dx, corner[:, 1:] + dy
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    flat = np.clip(y, 0, size - 1) * size + np.clip(x, 0, size - 1)
    return flat, np.stack([x + 0.5, y + 0.5], axis=-1), inside


def _overlap(low: Any, high: Any, at: Any) -> Any:
    """Length of [low, high] inside the unit interval around ``at``."""
    return np.clip(np.minimum(at + 0.5, high) - np.maximum(at - 0.5, low), 0.0, 1.0)


def draw_dashes(p: Parameters, scene: Scene) -> tuple[Images, Images, Bools]:
    """Draw all paddles: images (N, S·S), the contour's number at pixels with ink, and wholeness.

    An image is whole (N,) if on both long contours each paddle has ink within ``link`` of the one
    before it; one contour in some thousands falls just between the pixels. A pixel's brightness is
    the share of it that the paddle covers, taken along and across the paddle. Where two contours
    claim a pixel its number is 255: such an image is not used.
    """
    count = len(scene.tails)
    image = np.zeros((count, p.size**2), np.uint8)
    number = np.zeros((count, p.size**2), np.uint8)
    row = np.arange(count)[:, None]
    whole = np.ones(count, bool)
    last: tuple[int, Any] = (0, None)
    for paddle, contour in enumerate(scene.contour):
        heading = scene.headings[:, paddle]
        along = direction(heading)
        tail = scene.tails[:, paddle]
        centre = tail + along * (p.paddle_length / 2)
        flat, pixels, inside = _patch(centre, (p.paddle_length + p.thickness) / 2 + 0.5, p.size)
        offset = pixels - tail[:, None]
        forward = (offset * along[:, None]).sum(-1)
        across = offset[..., 0] * along[:, None, 1] - offset[..., 1] * along[:, None, 0]
        cover = _overlap(0.0, p.paddle_length, forward) * _overlap(
            -p.thickness / 2, p.thickness / 2, across
        )
        value = (255 * np.minimum(p.contrast * cover, 1.0) * inside).astype(np.uint8)
        if contour <= 2:
            ink = np.where((value > INK)[..., None], pixels, np.inf)
            if last[0] == contour:
                whole &= _nearest(last[1], ink) <= p.link
            last = (int(contour), ink)
        # within one paddle no pixel occurs twice, except clipped ones outside, whose value is 0
        keep = inside
        rows, where = np.broadcast_to(row, flat.shape)[keep], flat[keep]
        image[rows, where] = np.maximum(image[rows, where], value[keep])
        inked = value[keep] > INK
        rows, where = rows[inked], where[inked]
        before = number[rows, where]
        number[rows, where] = np.where((before == 0) | (before == contour), contour, 255)
    return image, number, whole


def _nearest(a: Floats, b: Floats) -> Floats:
    """Least distance between two sets of pixels (N, n, 2); absent ones are at infinity."""
    a, b = np.where(np.isfinite(a), a, -1e4), np.where(np.isfinite(b), b, 1e4)
    dx = (a[:, :, None, 0] - b[:, None, :, 0]).astype(np.float32)
    dy = (a[:, :, None, 1] - b[:, None, :, 1]).astype(np.float32)
    return np.asarray(np.sqrt((dx * dx + dy * dy).min(axis=(1, 2))))


def _disc(p: Parameters, centre: Floats) -> tuple[Any, Any, Any]:
    """Pixels of a marker at ``centre`` (N, 2): image row, flat index and brightness, each (n,)."""
    flat, pixels, inside = _patch(centre, p.marker_radius + 0.5, p.size)
    distance = np.linalg.norm(pixels - centre[:, None], axis=-1)
    value = 255 * np.clip(p.marker_radius + 0.5 - distance, 0.0, 1.0)
    rows = np.broadcast_to(np.arange(len(centre))[:, None], flat.shape)
    return rows[inside], flat[inside], value[inside].astype(np.uint8)


def claim_tips(p: Parameters, number: Images, tips: Floats) -> None:
    """Give the pixels of all four possible markers to their contours in ``number``, in place."""
    for contour in (0, 1):
        for end in (0, 1):
            rows, where, value = _disc(p, tips[:, contour, end])
            rows, where = rows[value > INK], where[value > INK]
            before = number[rows, where]
            mine = (before == 0) | (before == contour + 1)
            number[rows, where] = np.where(mine, contour + 1, 255)


def draw_markers(p: Parameters, images: Images, centres: Floats) -> None:
    """Draw white discs at centres (N, 2, 2) into images (N, S·S), in place."""
    for which in (0, 1):
        rows, where, value = _disc(p, centres[:, which])
        images[rows, where] = np.maximum(images[rows, where], value)


def contours_apart(p: Parameters, number: Images) -> npt.NDArray[np.bool_]:
    """Whether no two pixels of different contours are within ``link`` of each other, (N,)."""
    grid = number.reshape(-1, p.size, p.size)
    apart = ~(grid == 255).any(axis=(1, 2))
    reach = int(p.link)
    for dy in range(reach + 1):
        for dx in range(-reach, reach + 1):
            if (dy == 0 and dx <= 0) or dy**2 + dx**2 > p.link**2:
                continue
            a = grid[:, dy:, max(dx, 0) : p.size + min(dx, 0)]
            b = grid[:, : p.size - dy, max(-dx, 0) : p.size - max(dx, 0)]
            apart &= ~((a != b) & (a > 0) & (b > 0)).any(axis=(1, 2))
    return np.asarray(apart)
