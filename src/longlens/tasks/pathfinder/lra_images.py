"""The Long Range Arena's own Pathfinder images, from its folders or its archive.

Layout: ``…/pathfinder32/curv_contour_length_14/metadata/N.npy`` (in truth text; columns 1, 2 and 4
are folder, file and label) beside ``…/imgs/N/sample_K.png``. The easy set is ``curv_baseline``; who
loads it instead of the hard one gets numbers that nobody can compare. The archive nests duplicate
folders, so one metadata folder is chosen; images that cannot be decoded are skipped and counted.
"""

from __future__ import annotations

import re

import numpy as np

from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError
from longlens.tasks.order import permutation
from longlens.tasks.pathfinder.parameters import CONTOUR_LENGTH
from longlens.tasks.png import decode_png
from longlens.tasks.progress import Progress

_FOLDER = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
PUBLISHED = 200_000
SKIPPABLE = 10  # more unreadable images than this mean a damaged source
BLOCK = 5000


def _scan(draft: Draft, folder: str) -> dict[str, int]:
    """Read the metadata of one copy; return the label of each image by its name."""
    pattern = re.compile(rf"(?:^|.*/){folder}/metadata/[^/]+\.npy$")
    labels: dict[str, dict[str, int]] = {}
    for name, file in draft.need_source().stream(lambda name: bool(pattern.match(name))):
        prefix = name[: name.index(f"{folder}/metadata/")]
        rows = labels.setdefault(prefix, {})
        for line in file.read().decode("utf-8", "replace").splitlines():
            columns = line.split()
            if len(columns) < 4 or columns[3] not in ("0", "1"):
                raise DataError(
                    f"{name}: a line of another layout than the published one: {line!r}"
                )
            image, label = f"{prefix}{folder}/{columns[0]}/{columns[1]}", int(columns[3])
            if rows.setdefault(image, label) != label:
                raise DataError(f"{name}: {image} is listed with both labels")
    if not labels:
        raise DataError(
            f"{draft.need_source().path} holds no {folder}/metadata/*.npy; give what "
            "contains it (for example lra_release/pathfinder32)"
        )
    prefix = min(labels, key=lambda key: (-len(labels[key]), len(key), key))
    return labels[prefix]


def build_from_lra(draft: Draft, size: int, difficulty: str, subset: bool) -> dict[str, int]:
    """Write the three splits, 80/10/10 in a fixed random order; return their sizes."""
    assert difficulty in CONTOUR_LENGTH
    labels = _scan(draft, _FOLDER[difficulty])
    if len(labels) != PUBLISHED and not subset:
        raise DataError(
            f"the metadata list {len(labels)} images instead of {PUBLISHED}; pass subset=True "
            "(--set subset=true) if that is what you want"
        )
    names = sorted(labels)
    place = {name: number for number, name in enumerate(names)}
    pictures = np.zeros((len(names), size * size), np.uint8)
    read = np.zeros(len(names), bool)
    unreadable: list[str] = []
    with Progress(draft.name, len(names), "images", draft.quiet) as progress:
        for name, file in draft.need_source().stream(place.__contains__):
            try:
                picture = decode_png(file.read())
            except DataError:
                unreadable.append(name)
                continue
            if picture.shape != (size, size):
                raise DataError(f"{name} is {picture.shape}, size says {size}")
            pictures[place[name]] = picture.reshape(-1)
            read[place[name]] = True
            progress.advance(1)
    missing = int((~read).sum())
    if missing > SKIPPABLE:
        raise DataError(f"{missing} images of the metadata are missing or unreadable")
    if missing:
        draft.writer.notes.append(f"left out {missing} unreadable or missing: {sorted(unreadable)}")
    order = permutation(int(read.sum()), 0)
    order = np.flatnonzero(read)[order]
    targets = np.array([labels[name] for name in names], np.uint8)
    tenth = len(order) // 10
    bounds = {
        "train": (2 * tenth, len(order)),
        "validation": (0, tenth),
        "test": (tenth, 2 * tenth),
    }
    for split, (start, stop) in bounds.items():
        rows = np.sort(order[start:stop])
        for block, begin in enumerate(range(0, len(rows), BLOCK)):
            part = rows[begin : begin + BLOCK]
            arrays = {"inputs": pictures[part], "targets": targets[part]}
            draft.writer.write_block(split, block, arrays)
    return {split: stop - start for split, (start, stop) in bounds.items()}
