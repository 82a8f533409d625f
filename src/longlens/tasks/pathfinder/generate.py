"""The Pathfinder generator: scenes, labels, markers, and the task made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.build import Job
from longlens.tasks.errors import DataError
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.draw import (
    Images,
    claim_tips,
    contours_apart,
    draw_dashes,
    draw_markers,
)
from longlens.tasks.pathfinder.grow import (
    Bools,
    Floats,
    Scene,
    add_distractors,
    grow_contours,
    join,
)
from longlens.tasks.pathfinder.lra_images import build_from_lra
from longlens.tasks.pathfinder.markers import TOGETHER, Choice, choose
from longlens.tasks.pathfinder.parameters import CONTOUR_LENGTH, Parameters, parameters
from longlens.tasks.spec import SPLITS, Spec

_CANDIDATES = {32: 2048, 64: 512, 128: 256, 256: 128}
GROWN_AT_ONCE = 1024  # long contours, where more are made than are used
SPARE = 64  # scenes more, so that a handful of images finds good ones too
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
        if self.images < 10:
            raise DataError(f"pathfinder: images must be 10 or more, got {self.images}")
        if self.seed < 0:
            raise DataError(f"pathfinder: seed must be 0 or more, got {self.seed}")
        if self.origin not in ("generated", "lra"):
            raise DataError(f"pathfinder: origin must be 'generated' or 'lra', got {self.origin!r}")


@dataclass(frozen=True)
class PathXOptions(PathfinderOptions):
    """Options of Path-X; all but the size are Pathfinder's."""

    size: int = 128


def _finish(p: Parameters, rng: np.random.Generator, scene: Scene) -> tuple[Images, Bools]:
    """Add distractors and draw all but the markers: images (N, S·S), and which are good (N,)."""
    scene, good = add_distractors(p, rng, scene)
    images, number, whole = draw_dashes(p, scene)
    claim_tips(p, number, scene.tips)
    return images, good & whole & contours_apart(p, number)


def _all_used(
    p: Parameters, rng: np.random.Generator, labels: npt.NDArray[np.uint8]
) -> tuple[Images, Floats]:
    """Images without their markers, and the markers: every good scene is used."""
    pictures: list[Images] = []
    tips: list[Floats] = []
    missing = len(labels)
    while missing:
        candidates = min(_CANDIDATES[p.size], 32 + 3 * missing)  # about one in three is used
        scene = grow_contours(p, rng, candidates)
        images, usable = _finish(p, rng, scene)
        good = np.flatnonzero(usable)[:missing]
        pictures.append(images[good])
        tips.append(scene.tips[good])
        missing -= len(good)
    return np.concatenate(pictures), choose(np.concatenate(tips), labels, p.size, p.scale)


def _best_used(
    p: Parameters, rng: np.random.Generator, labels: npt.NDArray[np.uint8]
) -> tuple[Images, Floats]:
    """Images without their markers, and the markers: chosen among ``p.scenes`` times as many.

    Contours cost little, distractors and drawing much, so only what is chosen is drawn. A scene
    that turns out bad, whatever its markers, is dropped and the choice goes on without it.
    """
    wanted = p.scenes * len(labels) + SPARE
    grown: list[Scene] = []
    while (missing := wanted - sum(len(scene.tips) for scene in grown)) > 0:
        grown.append(grow_contours(p, rng, min(GROWN_AT_ONCE, 32 + 4 * missing)))
    scenes = join(grown).pick(np.arange(wanted))
    choice = Choice(scenes.tips, labels, p.size, p.scale)
    pictures: dict[int, npt.NDArray[np.uint8]] = {}
    while True:
        choice.search()
        new = np.array([scene for scene in choice.scenes() if scene not in pictures], np.int64)
        if not len(new):
            break
        for start in range(0, len(new), _CANDIDATES[p.size]):
            part = new[start : start + _CANDIDATES[p.size]]
            images, good = _finish(p, rng, scenes.pick(part))
            pictures.update(zip(part[good].tolist(), images[good], strict=True))
            choice.drop(part[~good])
    return np.stack([pictures[scene] for scene in choice.scenes()]), choice.markers()


def make_images(
    p: Parameters, rng: np.random.Generator, count: int
) -> tuple[Images, npt.NDArray[np.uint8], Floats]:
    """Make ``count`` images (count, S·S), labels (count,) and marker centres (count, 2, 2).

    Both long contours are in every picture and grow from neighbouring seeds, and all four tips have
    room for a marker whether or not they get one. Labels are coins, thrown in pairs;
    ``markers.py`` sees to it that where the markers are does not depend on them.

    >>> images, labels, markers = make_images(parameters(32), generator(0), 5)
    >>> images.shape, images.dtype, labels.shape, markers.shape
    ((5, 1024), dtype('uint8'), (5,), (5, 2, 2))
    """
    coin = rng.integers(0, 2, (count + 1) // 2)  # one of every two images: classes stay even
    labels = np.stack([coin, 1 - coin], axis=1).reshape(-1)[:count].astype(np.uint8)
    used = _all_used if p.scenes == 1 else _best_used
    together = [labels[start : start + TOGETHER] for start in range(0, count, TOGETHER)]
    parts = [used(p, rng, part) for part in together]
    images, markers = (np.concatenate(column) for column in zip(*parts, strict=True))
    draw_markers(p, images, markers)
    return images, labels, markers


def make_block(
    options: PathfinderOptions, split: str, block: int, count: int
) -> dict[str, npt.NDArray[Any]]:
    """Make one block of the task, a pure function of the arguments."""
    p = parameters(options.size, options.difficulty)
    key = (options.seed, options.size, p.contour_length, SPLITS.index(split), block)
    images, labels, _ = make_images(p, generator(*key), count)
    return {"inputs": images, "targets": labels}


def build(job: Job) -> tuple[Spec, dict[str, int]]:
    """Write the three splits: generated, or read from the Long Range Arena's folders."""
    options: PathfinderOptions = job.options
    if (job.source is not None) != (options.origin == "lra"):
        raise DataError(
            f"{job.name}: --from PATH and --origin lra go together (the Long Range Arena's own "
            "images); without them the images are generated"
        )
    if options.origin == "lra":
        sizes = build_from_lra(job, options.size, options.difficulty, options.subset)
        stands_in = None
    else:
        tenth = options.images // 10
        sizes = {"train": options.images - 2 * tenth, "validation": tenth, "test": tenth}
        job.blocks(make_block, sizes, BLOCKS[options.size])
        stands_in = "Pathfinder images of the Long Range Arena (own generator, same parameters)"
    spec = Spec(
        kind="classification",
        inputs="tokens",
        max_length=options.size**2,
        vocab_size=256,
        num_classes=2,
        image=(options.size, options.size),
        encoding="pixels",
        class_names=("two contours", "one contour"),
        stands_in_for=stands_in,
    )
    return spec, sizes


def estimate(options: PathfinderOptions) -> int:
    """Bytes of the result."""
    return options.images * (options.size**2 + 1)


def newer(options: PathfinderOptions) -> int:
    """Version 4 of the generator has the same bits on every processor; LRA's images stay at 2."""
    return 2 if options.origin == "generated" else 0


DIFFICULTIES = tuple(CONTOUR_LENGTH)
