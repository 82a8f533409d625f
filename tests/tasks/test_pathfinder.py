"""Pathfinder: scenes obey the original's rules, pictures have the original's figures."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from docs.pictures.flood_fill import find_markers, trace

from longlens.tasks import DataError, load
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.generate import PathXOptions, _scenes, draw, make_images, mark
from longlens.tasks.pathfinder.parameters import parameters
from longlens.tasks.pathfinder.stamps import INK, _line, dashes, marker, reduce, reduce_bytes
from longlens.tasks.pathfinder.tables import tables
from longlens.tasks.registry import find_task

RECORD = json.loads((Path(__file__).parents[2] / "results" / "pathfinder.json").read_text())
FIGURES = {row["figure"]: row for row in RECORD["rows"]}
SETS = [(size, name) for size in (32, 64, 128, 256) for name in ("easy", "intermediate", "hard")]


def add(a, b):
    return [a[0] + b[0], a[1] + b[1]]


class Replay:
    """One scene, dash by dash, with plain numbers: does every dash obey the rules?"""

    def __init__(self, p, margin, scene, image):
        self.p, self.margin = p, margin
        self.t = tables(p, margin)
        self.taken = np.zeros((p.size, p.size))
        rim = p.padding
        self.taken[:rim], self.taken[-rim:] = 255, 255
        self.taken[:, :rim], self.taken[:, -rim:] = 255, 255
        self.anchor, self.way = scene.anchor[image].tolist(), scene.direction[image].tolist()

    def angle(self, number):
        """Direction of a dash in radians."""
        step = len(self.t.step)
        if self.way[number] >= step:
            return math.radians(self.way[number] - step)
        y, x = self.t.step[self.way[number]]
        return math.atan2(y, x)

    def forward(self, number, distance):
        """Rounded up, how far one gets along a dash."""
        angle = self.angle(number)
        return [math.ceil(distance * f(angle) - 1e-9) for f in (math.sin, math.cos)]

    def zone(self, number):
        """The zone of a dash in the picture, (S, S)."""
        angle = self.angle(number)
        if self.way[number] < len(self.t.step):
            angle += math.pi  # drawn from its head
        unit = np.array([math.sin(angle), math.cos(angle)])
        own = dashes(unit[None], self.p.paddle_length, self.p.thickness, self.margin)[1][0]
        reach, size = len(own) // 2, self.p.size
        wide = np.zeros((size + 2 * reach, size + 2 * reach))
        y, x = self.anchor[number]
        wide[y : y + len(own), x : x + len(own)] = own
        return wide[reach : reach + size, reach : reach + size]

    def pivot(self, number, before):
        """The pivot of a dash, from the one before it and its pivot."""
        if before is None:
            head = add(self.anchor[number], self.forward(number, self.p.paddle_length))
            return add(head, self.forward(number, -(self.p.paddle_length + self.margin)))
        way = self.forward(before[0], self.p.paddle_length + 2 * self.margin)
        return add(before[1], way)

    def check(self, number, before):
        """Check a dash after ``before`` (its number and pivot); return its own pivot."""
        pivot = self.pivot(number, before)
        if before is not None:
            radius = self.p.paddle_length + self.margin
            circle = {
                tuple(math.floor(radius * f(k / radius)) for f in (math.sin, math.cos))
                for k in range(math.ceil(2 * math.pi * radius))
            }
            head = self.anchor[number]
            assert (head[0] - pivot[0], head[1] - pivot[1]) in circle
            turn = abs(self.angle(number) - self.angle(before[0])) % (2 * math.pi)
            assert min(turn, 2 * math.pi - turn) * self.p.continuity < math.pi / 2
            assert (self.taken + self.zone(number)).max() < 1.8 * 255 + 8
            reach = range(-self.margin, self.margin + 1)
            near = [(head[0] + dy, head[1] + dx) for dy in reach for dx in reach
                    if dy * dy + dx * dx <= self.margin**2]  # fmt: skip
            inside = [self.taken[y, x] for y, x in near if 0 <= y < self.p.size > x >= 0]
            assert max(inside) < 255
        return pivot


@pytest.mark.parametrize(("size", "margin"), [(32, 1), (64, 1), (128, 2), (128, 3), (256, 3)])
def test_every_dash_obeys_the_rules(size, margin):
    p = parameters(size, "intermediate")
    scene = _scenes(p, tables(p, margin), generator(3), 2)
    long = 2 * p.contour_length
    for image in range(2):
        replay = Replay(p, margin, scene, image)
        apart = np.subtract(*replay.anchor[:2])
        assert abs(math.hypot(*apart) - p.seed_distance) < 0.75
        last = [(c, replay.check(c, None)) for c in (0, 1)]
        for number in range(2, long):
            before = last[number % 2]
            last[number % 2] = (number, replay.check(number, before))
            replay.taken = np.maximum(replay.taken, replay.zone(before[0]))
        replay.taken = np.maximum(replay.taken, replay.zone(long - 1))
        for start in range(long, scene.direction.shape[1], p.distractor_length):
            if not scene.present[image, start]:
                continue
            before = (start, replay.check(start, None))
            for number in range(start + 1, start + p.distractor_length):
                new = (number, replay.check(number, before))
                replay.taken = np.maximum(replay.taken, replay.zone(before[0]))
                before = new
            replay.taken = np.maximum(replay.taken, replay.zone(before[0]))


def test_few_directions_can_begin_a_distractor_at_32():
    """As docs/tasks.md says: the core of a first dash must surround its tail."""
    p = parameters(32)
    t = tables(p, 1)
    assert t.can_begin.sum() == 31
    scene = _scenes(p, t, generator(7), 300)
    begins = scene.present[:, 2 * p.contour_length :: p.distractor_length]
    assert 0.9 < begins.sum(axis=1).mean() < 1.3
    first = scene.direction[:, 2 * p.contour_length :: p.distractor_length][begins]
    assert t.can_begin[first - len(t.step)].all()


def test_pictures_are_the_brightest_of_their_dashes():
    p = parameters(32)
    scene = _scenes(p, tables(p, 1), generator(4), 4)
    markers = mark(scene.tips, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    pictures = draw(p, tables(p, 1), scene, markers).reshape(-1, 32, 32)
    for image in range(4):
        replay, total = Replay(p, 1, scene, image), np.zeros((32, 32))
        stamps = []
        for number in np.flatnonzero(scene.present[image]):
            angle = replay.angle(number) + math.pi * (replay.way[number] < len(replay.t.step))
            unit = np.array([[math.sin(angle), math.cos(angle)]])
            ink = dashes(unit, 2, 0.5, 1)[0][0]
            contrast = 1.5 if number < 28 else 2.0  # distractors are brighter
            stamps.append((replay.anchor[number], ink * contrast))
        stamps += [(place, marker(1.5)) for place in markers[image].tolist()]
        for (y, x), ink in stamps:
            reach = len(ink) // 2
            for dy, dx in np.argwhere(ink) - reach:
                if 0 <= y + dy < 32 and 0 <= x + dx < 32:
                    value = ink[dy + reach, dx + reach]
                    total[y + dy, x + dx] = max(total[y + dy, x + dx], value)
        np.testing.assert_array_equal(pictures[image], np.floor(total * 255 / total.max()))


def test_stamps_are_reduced_as_pillow_reduces():
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for fine, coarse in ((17, 9), (41, 21), (22, 11)):
        picture = rng.random((fine, fine)) < 0.3
        floats = image.fromarray(picture.astype(np.float32)).resize((coarse, coarse), image.LANCZOS)
        np.testing.assert_allclose(reduce(picture, coarse) / INK, np.array(floats), atol=6e-4)
        gray = image.fromarray((picture * 255).astype(np.uint8))
        shrunk = np.array(gray.resize((coarse, coarse), image.LANCZOS)).astype(int)
        assert abs(reduce_bytes(picture, coarse).astype(int) - shrunk).max() <= 1


@pytest.mark.parametrize(("width", "wrong"), [(1, 0.0), (3, 0.04)])
def test_lines_are_drawn_as_pillow_draws(width, wrong):
    image, drawing = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageDraw")
    differ, total = 0, 0
    for degrees in range(0, 360, 5):
        angle = math.radians(degrees)
        end = np.array([math.ceil(10 * f(angle) - 1e-9) for f in (math.sin, math.cos)])
        sheet = image.new("L", (41, 41))
        ends = [(20, 20), (20 + int(end[1]), 20 + int(end[0]))]
        drawing.Draw(sheet).line(ends, fill=1, width=width)
        drawn = np.array(sheet).astype(bool)
        differ, total = differ + (drawn != _line(41, end, width)).sum(), total + drawn.sum()
    assert differ <= wrong * total


def test_markers_are_one_seed_and_one_far_end_as_the_label_says():
    p = parameters(32)
    tips = _scenes(p, tables(p, 1), generator(5), 40).tips
    rng = np.random.default_rng(0)
    labels, first = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    for own, label, which, marked in zip(
        tips, labels, first, mark(tips, labels, first), strict=True
    ):
        assert (marked[0] == own[which, 0]).all()
        assert (marked[1] == own[which if label else 1 - which, 1]).all()


def test_markers_can_be_found():
    p = parameters(32)
    images, _, markers = make_images(p, generator(2), 200)
    right = 0
    for image, centres in zip(images, markers, strict=True):
        found = np.array(find_markers(image.reshape(32, 32), p.marker_radius))
        right += all(np.linalg.norm(found - centre, axis=1).min() < 1.5 for centre in centres)
    assert right >= 194


def within(figure, size):
    """Whether ours is as near to the original as it has to be: 10 %, 4 points of accuracy."""
    row = FIGURES[figure]
    one, other = row[f"original, {size}"], row[f"ours, {size}"]
    chance = figure.startswith(("flood", "network", "markers"))
    return abs(one - other) <= (4 if chance else 0.1 * one)


@pytest.mark.parametrize("figure", [name for name in FIGURES if name != "images"])
def test_the_recorded_figures_are_the_originals(figure):
    sizes = [size for size in (32, 128) if f"original, {size}" in FIGURES[figure]]
    assert sizes and all(within(figure, size) for size in sizes), FIGURES[figure]


@pytest.mark.parametrize(("size", "count", "near"), [(32, 500, 0.03), (128, 24, 0.05)])
def test_the_record_is_of_this_generator(size, count, near):
    images = make_images(parameters(size), generator(8), count)[0]
    ink = FIGURES["pixels with ink"][f"ours, {size}"]
    assert (images > 16).sum(axis=1).mean() == pytest.approx(ink, rel=near)
    bright = FIGURES["mean brightness of ink"][f"ours, {size}"]
    assert images[images > 16].mean() == pytest.approx(bright, rel=near)


def test_the_tracer_follows_a_dashed_line():
    picture = np.zeros((32, 32), np.uint8)
    for y in (8, 22):
        picture[y, 4:28] = 150
        picture[y, 6:28:4] = 0
    for y, x in ((8, 4), (8, 27)):
        picture[y - 1 : y + 2, x - 1 : x + 2] = 255
    assert trace(picture, 1.5, 2.25, 16)
    cut = picture.copy()
    cut[:, 12:15] = 0
    assert not trace(cut, 1.5, 2.25, 16)
    moved = picture.copy()
    moved[7:10, 26:29], moved[21:24, 26:29] = 0, 255
    assert not trace(moved, 1.5, 2.25, 16)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("size", [32, 64, 128, 256])
def test_a_handful_of_images(size, count):
    images, labels, markers = make_images(parameters(size, "easy"), generator(6), count)
    assert images.shape == (count, size**2) and markers.shape == (count, 2, 2)
    assert abs(2 * int(labels.sum()) - count) <= 1
    assert (images.max(axis=1) == 255).all()
    assert len({image.tobytes() for image in images}) == count


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [(32, 250), (128, 8)])
def test_speed(size, least):
    tables(parameters(size), parameters(size).margins[0])
    started = time.process_time()
    make_images(parameters(size), generator(5), 6 * least)
    assert 6 * least / (time.process_time() - started) > least


def test_all_generated_sets_are_newer(tmp_path):
    options = {"size": 64, "difficulty": "easy", "images": 40}
    task = load("pathx", tmp_path / "a", **options)
    assert load("pathx", tmp_path / "b", workers=2, **options).identity == task.identity
    versions = {
        find_task("pathx").version_of(PathXOptions(size=size, difficulty=name))
        for size, name in SETS
    }
    assert versions == {5}
    assert find_task("pathx").version_of(PathXOptions(size=64, origin="lra")) == 2


def test_the_task_is_split_and_reproducible(tmp_path):
    task = load("pathfinder", tmp_path / "a", images=40)
    assert [len(task[s]) for s in ("train", "validation", "test")] == [32, 4, 4]
    assert task.spec.image == (32, 32) and task.spec.stands_in_for
    assert load("pathfinder", tmp_path / "b", images=40, workers=2).identity == task.identity
    assert load("pathfinder", tmp_path / "b", images=40, seed=1).identity != task.identity


@pytest.mark.parametrize(
    ("option", "value"),
    [("size", 48), ("difficulty", "brutal"), ("images", 3), ("origin", "moon"), ("seed", -2)],
)
def test_wrong_options_are_named(tmp_path, option, value):
    with pytest.raises(DataError, match=option):
        load("pathfinder", tmp_path, **{option: value})
