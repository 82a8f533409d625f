"""A flood fill that answers Pathfinder's question, from the picture alone, if contours keep apart.

The two markers are the places where the picture is brightest over a marker's width. From one of
them the tracer walks from bright pixel to bright pixel, over gaps of up to ``link`` pixels, and
says whether it arrives at the other. It shares no code with the generator. In the original's
pictures, and so in ours, contours touch and cross: it is near chance there, which is measured in
docs/tasks.md.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError

Picture = npt.NDArray[np.uint8]


def find_markers(picture: Picture, radius: float) -> list[tuple[int, int]]:
    """Rows and columns of the two brightest discs of ``radius`` in a picture (S, S)."""
    size = len(picture)
    reach = int(np.ceil(radius))
    padded = np.pad(picture.astype(np.int64), reach)
    total = np.zeros((size, size), np.int64)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dy * dy + dx * dx <= radius * radius:
                total += padded[reach + dy : reach + dy + size, reach + dx : reach + dx + size]
    markers = []
    for _ in range(2):
        y, x = divmod(int(total.argmax()), size)
        markers.append((y, x))
        rows, columns = np.ogrid[:size, :size]
        total[(rows - y) ** 2 + (columns - x) ** 2 <= (2 * radius) ** 2] = 0
    return markers


def trace(picture: Picture, marker_radius: float, link: float, ink: int) -> bool:
    """Whether the two markers of a picture (S, S) lie on one contour.

    Args:
        picture: gray values.
        marker_radius: of the two discs, in pixels.
        link: the longest step from one pixel with ink to the next.
        ink: a pixel brighter than this has ink.
    """
    if picture.ndim != 2 or picture.shape[0] != picture.shape[1]:
        raise DataError(f"picture must be square, got shape {picture.shape}")
    size = len(picture)
    start, goal = find_markers(picture, marker_radius)
    inked = picture > ink
    reach = int(link)
    steps = [
        (dy, dx)
        for dy in range(-reach, reach + 1)
        for dx in range(-reach, reach + 1)
        if 0 < dy * dy + dx * dx <= link * link
    ]
    seen = np.zeros((size, size), bool)
    seen[start] = True
    queue = deque([start])
    while queue:
        y, x = queue.popleft()
        if (y - goal[0]) ** 2 + (x - goal[1]) ** 2 <= marker_radius**2:
            return True
        for dy, dx in steps:
            ny, nx = y + dy, x + dx
            if 0 <= ny < size and 0 <= nx < size and inked[ny, nx] and not seen[ny, nx]:
                seen[ny, nx] = True
                queue.append((ny, nx))
    return False
