"""The published parameters of the Pathfinder images, by image size and difficulty.

Names as in Linsley et al. 2018 and Tay et al. 2021: a *contour* is a chain of *paddles* (dashes);
*distractors* are shorter contours.
"""

from __future__ import annotations

from dataclasses import dataclass

from longlens.tasks.errors import DataError

CONTOUR_LENGTH = {"easy": 6, "intermediate": 9, "hard": 14}
FINENESS = 2  # dashes and markers are drawn on a grid this much finer, then reduced


@dataclass(frozen=True)
class Parameters:
    """Geometry in pixels; contrast as a factor of white."""

    size: int
    contour_length: int  # paddles of each of the two long contours
    distractor_length: int  # paddles of a distractor
    distractors: int
    padding: int  # border that no paddle's keep-out zone may enter
    margins: tuple[int, ...]  # room at *each* end of a paddle; drawn for each image
    seed_distance: int  # between the first tips of the two long contours
    marker_radius: float
    paddle_length: int
    thickness: float
    continuity: float  # a turn δ has weight cos²(continuity·δ)
    contrast: float  # of the two long contours
    distractor_contrast: float


#        padding margins seed radius length thick contin. contrasts distractors' paddles
_BY_SIZE = {
    32: (1, (1,), 7, 1.5, 2, 0.5, 1.0, (1.5, 2.0), 20),
    64: (1, (1,), 12, 2.5, 5, 1.0, 1.8, (0.8, 0.8), 22),
    128: (1, (2, 3), 20, 3.0, 5, 1.5, 1.8, (0.9, 0.9), 35),
    256: (22, (3,), 27, 5.0, 5, 2.0, 1.8, (1.0, 1.0), 30),
}


def parameters(size: int, difficulty: str = "hard") -> Parameters:
    """Return the parameters of one image size and difficulty.

    >>> parameters(32).contour_length, parameters(32).distractors
    (14, 5)
    """
    if size not in _BY_SIZE:
        raise DataError(f"size must be one of {sorted(_BY_SIZE)}, got {size}")
    if difficulty not in CONTOUR_LENGTH:
        raise DataError(f"difficulty must be one of {list(CONTOUR_LENGTH)}, got {difficulty!r}")
    padding, margins, seed, radius, length, thickness, continuity, contrasts, total = _BY_SIZE[size]
    contour = CONTOUR_LENGTH[difficulty]
    return Parameters(
        size=size,
        contour_length=contour,
        distractor_length=contour // 3,
        distractors=total // (contour // 3),
        padding=padding,
        margins=margins,
        seed_distance=seed,
        marker_radius=radius,
        paddle_length=length,
        thickness=thickness,
        continuity=continuity,
        contrast=contrasts[0],
        distractor_contrast=contrasts[1],
    )
