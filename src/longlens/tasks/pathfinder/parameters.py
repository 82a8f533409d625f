"""The published parameters of the Pathfinder images, by image size and difficulty.

Names as in Linsley et al. 2018 and Tay et al. 2021: a *contour* is a chain of *paddles* (dashes);
*distractors* are shorter contours. What this generator adds is ``link``: two dashes of one contour
are always nearer than that in the image, dashes of two contours never are. It makes the label a
property of the picture, which ``trace.py`` checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from longlens.tasks.errors import DataError

CONTOUR_LENGTH = {"easy": 6, "intermediate": 9, "hard": 14}
INK = 16  # a pixel brighter than this (of 255) belongs to a dash or a marker


@dataclass(frozen=True)
class Parameters:
    """Geometry in pixels; contrast as a factor of white."""

    size: int
    contour_length: int  # paddles of each of the two long contours
    distractor_length: int  # paddles of a distractor
    distractors: int
    padding: float  # free border
    margins: tuple[float, ...]  # gap between two paddles of a contour; drawn for each image
    seed_distance: float  # between the first tips of the two long contours
    marker_radius: float
    paddle_length: float
    thickness: float
    continuity: float  # a turn δ has density ∝ cos²(continuity·δ)
    contrast: float
    link: float  # dashes nearer than this in the image belong together
    clearance: float  # between centre lines of different contours while growing
    scenes: int  # grown for each image, to choose from; with 1, every scene is used
    scale: float  # of the image's width: marker pairs much nearer than this are alike

    @property
    def tip_clearance(self) -> float:
        """Distance from a possible marker's centre to every other contour."""
        return self.marker_radius + self.link + 0.75 + self.thickness / 2


#        padding margins seed  radius length thick contin. contrast   link  clearance  distractors
_BY_SIZE = {
    32: (1.0, (1.0,), 7.0, 1.5, 2.0, 0.5, 1.0, 2 * 0.75, 2.25, 3.25, 20),
    64: (1.0, (1.0,), 12.0, 2.5, 5.0, 1.0, 1.8, 0.8, 2.25, 3.75, 22),
    128: (1.0, (2.0, 3.0), 20.0, 3.0, 5.0, 1.5, 1.8, 0.9, 4.25, 6.5, 35),
    256: (22.0, (3.0,), 27.0, 5.0, 5.0, 2.0, 1.8, 1.0, 4.25, 7.0, 30),
}

# Contours that end near their own seed need more scenes to choose from, and markers that all lie
# about as far apart are compared on a finer scale; both found by the probes of docs/tasks.md.
_CHOICE = {
    32: {"easy": (2, 0.025), "intermediate": (1, 0.05), "hard": (1, 0.05)},
    64: {"easy": (8, 0.025), "intermediate": (4, 0.025), "hard": (2, 0.025)},
    128: {"easy": (4, 0.0125), "intermediate": (4, 0.025), "hard": (1, 0.05)},
    256: {"easy": (8, 0.0125), "intermediate": (4, 0.05), "hard": (2, 0.025)},
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
    padding, margins, seed, radius, length, thickness, continuity, contrast, link, clear, total = (
        _BY_SIZE[size]
    )
    contour = CONTOUR_LENGTH[difficulty]
    scenes, scale = _CHOICE[size][difficulty]
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
        contrast=contrast,
        link=link,
        clearance=clear,
        scenes=scenes,
        scale=scale,
    )
