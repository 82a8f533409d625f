"""Drawing scenes: dashes and markers are stamped, and the brightest pixel of an image is white."""

from __future__ import annotations

import numpy as np

from longlens.tasks.pathfinder.grow import Scene, stamp
from longlens.tasks.pathfinder.parameters import Parameters
from longlens.tasks.pathfinder.stamps import Bytes, Integers
from longlens.tasks.pathfinder.tables import Tables


def draw(p: Parameters, t: Tables, scene: Scene, markers: Integers) -> Bytes:
    """Draw images (N, S·S) with markers at (N, 2, 2).

    Distractors may outshine the markers (at 32 × 32 they are drawn brighter than long contours), as
    may a dash on which the filter's ripples fall together; then the rest of the image is darker.
    """
    count, rows = len(markers), np.arange(len(markers))
    contours, distractors, discs = (t.canvas(count) for _ in range(3))
    for number in range(scene.direction.shape[1]):
        way, flat = scene.direction[:, number], t.flat(scene.anchor[:, number])
        ink = t.ink.value[way] * scene.present[:, number, None]
        canvas = contours if number < 2 * p.contour_length else distractors
        stamp(canvas, rows, flat[:, None] + t.ink.where[way], ink)
    for which in (0, 1):
        where = t.flat(markers[:, which])[:, None] + t.marker.where
        stamp(discs, rows, where, t.marker.value)
    # in tenths: contrasts have one digit, and whole numbers are the same on every processor
    layers = (discs, 1.0), (contours, p.contrast), (distractors, p.distractor_contrast)
    parts = [t.crop(canvas).astype(np.int64) * round(10 * factor) for canvas, factor in layers]
    picture = np.maximum(np.maximum(parts[0], parts[1]), parts[2])
    return np.asarray((picture * 255 // picture.max(axis=1, keepdims=True)).astype(np.uint8))
