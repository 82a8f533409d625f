"""Drawing scenes: every dash is a stamp, and an image is as bright as its brightest pixel allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from longlens.tasks.pathfinder.grow import Scene, stamp
from longlens.tasks.pathfinder.parameters import Parameters
from longlens.tasks.pathfinder.stamps import Bytes, Integers
from longlens.tasks.pathfinder.tables import Tables


def draw(p: Parameters, t: Tables, scene: Scene, markers: Integers) -> Bytes:
    """Draw images (N, S·S) with markers at (N, 2, 2).

    The brightest pixel of an image is white. At 32 × 32 distractors are drawn brighter than long
    contours and may outshine the markers; then everything else is a little darker.
    """
    count, long = len(markers), 2 * p.contour_length
    contours, distractors, discs = (t.canvas(count) for _ in range(3))
    rows = np.arange(count)
    for number in range(scene.direction.shape[1]):
        way, flat = scene.direction[:, number], t.flat(scene.anchor[:, number])
        ink = t.ink.value[way] * scene.present[:, number, None]
        stamp(contours if number < long else distractors, rows, flat[:, None] + t.ink.where[way], ink)
    for which in (0, 1):
        where = t.flat(markers[:, which])[:, None] + t.marker.where
        stamp(discs, rows, where, t.marker.value)
    picture: Any = np.maximum(t.crop(contours) * p.contrast, t.crop(discs))
    picture = np.maximum(picture, t.crop(distractors) * p.distractor_contrast)
    brightest = picture.max(axis=1, keepdims=True)
    return np.asarray(np.floor(picture * 255 / brightest).astype(np.uint8))
