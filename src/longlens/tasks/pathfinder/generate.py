"""The Pathfinder generator: scenes, labels, markers, and the task made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longlens.tasks.arrays import Array, Bytes, Ints
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.grow import (
    Ground,
    Scene,
    add_distractors,
    grow_contours,
    join,
    stamp,
)
from longlens.tasks.pathfinder.lra_images import build_from_lra
from longlens.tasks.pathfinder.parameters import Parameters, parameters
from longlens.tasks.pathfinder.tables import Tables, tables
from longlens.tasks.spec import SPLITS, Spec

AT_ONCE = {32: 4096, 64: 2048, 128: 512, 256: 256}  # candidate images, by size
BLOCKS = {32: 2000, 64: 2000, 128: 2000, 256: 1000}  # images in a block, by size


@dataclass(frozen=True)
class PathfinderOptions:
    """Options of Pathfinder.

    Args:
        size: of the images, which are square: 32, 64, 128 or 256.
        difficulty: easy, intermediate or hard: contours of 6, 9 or 14 dashes.
        images: in all; split 80/10/10.
        seed: of everything that is drawn.
        origin: "generated", or "lra" for the Long Range Arena's own images (with --from).
        subset: with origin "lra", accept fewer images than were published.
    """

    size: int = 32
    difficulty: str = "hard"
    images: int = 200_000
    seed: int = 0
    origin: str = "generated"
    subset: bool = False

    def __post_init__(self) -> None:
        parameters(self.size, self.difficulty)
        check_least(self, "pathfinder", images=10, seed=0)
        if self.origin not in ("generated", "lra"):
            raise DataError(f"pathfinder: origin must be 'generated' or 'lra', got {self.origin!r}")


@dataclass(frozen=True)
class PathXOptions(PathfinderOptions):
    """Options of Path-X; all but the size are Pathfinder's."""

    size: int = 128


def _scenes(p: Parameters, t: Tables, rng: np.random.Generator, count: int) -> Scene:
    """Make ``count`` scenes with the margin of ``t``."""
    bare = Ground.bare(p, t, 1)
    ground = Ground.bare(p, t, min(AT_ONCE[p.size], 64 + 32 * count))
    scenes: list[Scene] = []
    missing = count
    while missing:
        ground.zone[:], ground.near[:] = bare.zone, bare.near  # new arrays would cost more
        scene, rows = grow_contours(p, t, rng, ground)
        scene, rows = scene.pick(slice(missing)), rows[:missing]
        scenes.append(add_distractors(p, t, rng, scene, ground.pick(rows)))
        missing -= len(rows)
    return join(scenes)


def draw(p: Parameters, t: Tables, scene: Scene, markers: Ints) -> Bytes:
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


def mark(tips: Ints, labels: Array, first: Ints) -> Ints:
    """Choose two of the four tips (N, 2 contours, 2 ends, 2): markers (N, 2, 2).

    One is the seed of contour ``first`` (N,), the other the far end of the same contour where the
    label is 1, of the other where it is 0.

    >>> mark(np.arange(8).reshape(1, 2, 2, 2), np.array([0]), np.array([1])).tolist()
    [[[4, 5], [2, 3]]]
    """
    image, last = np.arange(len(tips)), np.where(labels == 1, first, 1 - first)
    return np.stack([tips[image, first, 0], tips[image, last, 1]], axis=1)


def make_images(p: Parameters, rng: np.random.Generator, count: int) -> tuple[Bytes, Bytes, Ints]:
    """Make ``count`` images (count, S·S), labels (count,) and markers (count, 2, 2).

    A marker is (row, column). The first is on the seed of one of the long contours, the second on
    the far end of the same contour (label 1) or of the other (label 0).

    >>> images, labels, markers = make_images(parameters(32), generator(0), 5)
    >>> images.shape, images.dtype, labels.shape, markers.shape
    ((5, 1024), dtype('uint8'), (5,), (5, 2, 2))
    """
    coin = rng.integers(0, 2, (count + 1) // 2)  # one of every two images: classes stay even
    labels = np.stack([coin, 1 - coin], axis=1).reshape(-1)[:count].astype(np.uint8)
    first = rng.integers(0, 2, count)
    margin = rng.integers(0, len(p.margins), count)
    images = np.zeros((count, p.size**2), np.uint8)
    markers = np.zeros((count, 2, 2), np.int64)
    for number in np.unique(margin):
        rows = np.flatnonzero(margin == number)
        t = tables(p, p.margins[number])
        scene = _scenes(p, t, rng, len(rows))
        markers[rows] = mark(scene.tips, labels[rows], first[rows])
        images[rows] = draw(p, t, scene, markers[rows])
    return images, labels, markers


def make_block(options: PathfinderOptions, split: str, block: int, count: int) -> dict[str, Array]:
    """Make one block of the task, a pure function of the arguments."""
    p = parameters(options.size, options.difficulty)
    key = (options.seed, options.size, p.contour_length, SPLITS.index(split), block)
    images, labels, _ = make_images(p, generator(*key), count)
    return {"inputs": images, "targets": labels}


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits: generated, or read from the Long Range Arena's folders."""
    options: PathfinderOptions = draft.options
    if (draft.source is not None) != (options.origin == "lra"):
        raise DataError(
            f"{draft.name}: --from PATH and --set origin=lra go together (the Long Range Arena's "
            "own images); without them the images are generated"
        )
    if options.origin == "lra":
        sizes = build_from_lra(draft, options.size, options.difficulty, options.subset)
    else:
        tenth = options.images // 10
        sizes = {"train": options.images - 2 * tenth, "validation": tenth, "test": tenth}
        draft.blocks(make_block, sizes, BLOCKS[options.size])
    return spec(options), sizes


def spec(options: PathfinderOptions) -> Spec:
    """The shape of the task."""
    original = "Pathfinder images of the Long Range Arena (own generator, the original's rules)"
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=options.size**2,
        vocab_size=256,
        num_classes=2,
        image=(options.size, options.size),
        encoding="pixels",
        class_names=("two contours", "one contour"),
        stands_in_for=original if options.origin == "generated" else None,
    )


def estimate(options: PathfinderOptions) -> int:
    """Bytes of the result."""
    return options.images * (options.size**2 + 1)


def newer(options: PathfinderOptions) -> int:
    """Version 5 of the generator draws as the original does; LRA's images stay at 2."""
    return 3 if options.origin == "generated" else 0
