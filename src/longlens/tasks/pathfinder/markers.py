"""Where the two markers go, so that nothing but the contours tells the label.

Contour A has the tips a0 (its seed) and a1, contour B the tips b0 and b1. One contour (label 1) is
marked by (a0, a1) or (b0, b1), two (label 0) by (a0, b1) or (b0, a1): always one seed and one far
end. The label is drawn without a look at the picture. But a1 grew from a0 and b1 did not: left to
chance, markers of one contour would be a little nearer or farther, and lie a little differently
about the centre, which a classifier could use without seeing any contour. So of the two pairs that
a label allows, the one is marked that keeps both labels alike: in marker distance, marker
positions, and all their squares and products, summed over the images so far.
"""

from __future__ import annotations

import numpy as np

from longlens.tasks.pathfinder.grow import Floats

CUES = 20  # five numbers and the products of any two of them


def cues(markers: Floats, size: int) -> Floats:
    """Distance and positions of markers (…, 2, 2), with their squares and products: (…, CUES).

    Markers are not told apart in a picture; the left one counts as the first.
    """
    left = markers[..., 0, 0] > markers[..., 1, 0]
    ordered = np.where(left[..., None, None], markers[..., ::-1, :], markers)
    place = (ordered.reshape(*markers.shape[:-2], 4) / size - 0.5) * 4
    distance = np.linalg.norm(markers[..., 0, :] - markers[..., 1, :], axis=-1) / size * 4 - 2
    plain = np.concatenate([place, distance[..., None]], axis=-1)
    first, second = np.triu_indices(5)
    return np.concatenate([plain, plain[..., first] * plain[..., second]], axis=-1)


def choose(tips: Floats, labels: Floats, size: int, balance: Floats) -> tuple[Floats, Floats]:
    """Choose which tips to mark.

    Args:
        tips: (N, 2 contours, 2 ends, 2).
        labels: (N,) 1 for one contour, 0 for two.
        size: of the image.
        balance: (CUES,) the cues of label 1 minus those of label 0, summed over earlier images.

    Returns:
        Markers (N, 2, 2) and the new balance.

    """
    seed, end = tips[:, :, 0], tips[:, :, 1]
    one = np.stack([seed, end], axis=2)  # (N, 2 choices, 2 markers, 2)
    two = np.stack([seed, end[:, ::-1]], axis=2)
    allowed = np.where(labels[:, None, None, None] == 1, one, two)
    values = cues(allowed, size)
    chosen = np.empty((len(tips), 2, 2), np.float32)
    for number, (pairs, label) in enumerate(zip(allowed, labels, strict=True)):
        sums = balance + (1 if label == 1 else -1) * values[number]
        best = int((sums**2).sum(axis=1).argmin())
        chosen[number], balance = pairs[best], sums[best]
    return chosen, balance
