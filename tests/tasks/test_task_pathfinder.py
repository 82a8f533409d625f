"""Pathfinder: the label is in the picture, and only in the contours."""

from __future__ import annotations

import time

import numpy as np
import pytest

from longlens.tasks import DataError, load
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.generate import PathXOptions, make_images
from longlens.tasks.pathfinder.markers import Choice, Geometry, _pairs, choose
from longlens.tasks.pathfinder.parameters import INK, parameters
from longlens.tasks.pathfinder.trace import find_markers, trace
from longlens.tasks.registry import find_task


def wrong_labels(size, difficulty, count, seed=0):
    p = parameters(size, difficulty)
    images, labels, _ = make_images(p, generator(seed), count)
    pictures = images.reshape(-1, size, size)
    traced = [trace(picture, p.marker_radius, p.link, INK) for picture in pictures]
    return int((np.array(traced) != labels.astype(bool)).sum())


@pytest.mark.parametrize(("size", "count"), [(32, 200), (64, 40), (128, 40), (256, 10)])
def test_the_tracer_finds_the_label_in_the_picture(size, count):
    assert wrong_labels(size, "hard", count) == 0


@pytest.mark.parametrize("difficulty", ["easy", "intermediate"])
def test_easier_sets_too(difficulty):
    assert wrong_labels(32, difficulty, 60) == 0


def test_the_tracer_can_fail():
    """Cut the contour and the tracer must say so: it really walks it."""
    p = parameters(128)
    images, labels, markers = make_images(p, generator(1), 8)
    number = int(np.flatnonzero(labels == 1)[0])
    picture = images[number].reshape(128, 128).copy()
    assert trace(picture, p.marker_radius, p.link, INK)
    x, y = markers[number, 0]
    rows, columns = np.ogrid[:128, :128]
    distance = np.hypot(rows + 0.5 - y, columns + 0.5 - x)
    picture[(distance > p.marker_radius + 1) & (distance < p.marker_radius + 8)] = 0
    assert not trace(picture, p.marker_radius, p.link, INK)


def test_markers_are_visible_and_where_they_should_be():
    p = parameters(32)
    images, _, markers = make_images(p, generator(2), 100)
    for image, centres in zip(images, markers, strict=True):
        picture = image.reshape(32, 32)
        found = np.array(find_markers(picture, p.marker_radius))[:, ::-1] + 0.5
        for centre in centres:
            assert np.linalg.norm(found - centre, axis=1).min() < 1.5
            assert picture[int(centre[1]), int(centre[0])] > 200


def test_no_image_is_degenerate():
    p = parameters(32)
    images, labels, _ = make_images(p, generator(3), 300)
    ink = (images > INK).sum(axis=1)
    assert ink.min() > 100 and ink.max() < 400
    assert len({image.tobytes() for image in images}) == 300
    assert 0.4 < labels.mean() < 0.6


def geometry(size, markers):
    """Marker distance and positions, as they are (left marker first) and folded.

    Folded: every image turned and mirrored until the middle between its markers lies in the same
    eighth of the square. The generator favours no orientation, so this makes a probe stronger.
    """
    place = markers / size - 0.5
    left_first = np.take_along_axis(place, place[:, :, :1].argsort(axis=1), axis=1)
    distance = np.linalg.norm(place[:, 0] - place[:, 1], axis=1)
    middle, half = place.mean(axis=1), (place[:, 1] - place[:, 0]) / 2
    mirror = np.where(middle < 0, -1, 1)
    middle, half = middle * mirror, half * mirror
    turn = (middle[:, 1] > middle[:, 0])[:, None]
    middle, half = (np.where(turn, side[:, ::-1], side) for side in (middle, half))
    half = half * np.where(half[:, :1] < 0, -1, 1)
    return np.column_stack([distance, left_first.reshape(-1, 4)]), np.column_stack(
        [distance, middle, half]
    )


def standard(features):
    return (features - features.mean(axis=0)) / features.std(axis=0)


def linear_cues(size, images, markers):
    """Ink, marker distance and marker positions, with their squares and two products."""
    plain = np.column_stack(
        [geometry(size, markers)[0], images.sum(axis=1), (images > INK).sum(axis=1)]
    )
    products = [plain[:, 1] * plain[:, 3], plain[:, 2] * plain[:, 4]]
    return standard(np.column_stack([plain, plain**2, *products]))


def fourier(features, width, count=300):
    """Random Fourier features: a linear model of them is a non-linear one of ``features``."""
    rng = np.random.default_rng(1)
    waves = rng.normal(size=(features.shape[1], count)) * width
    return np.sqrt(2) * np.cos(standard(features) @ waves + rng.uniform(0, 2 * np.pi, count))


def logistic_accuracy(features, labels, penalty=10.0):
    """Accuracy of a logistic regression (Newton's method) on the half that it was not fitted to."""
    features = np.column_stack([features, np.ones(len(features))])
    half = len(labels) // 2
    x, y, weights = features[:half], labels[:half], np.zeros(features.shape[1])
    for _ in range(10):
        share = 1 / (1 + np.exp(-x @ weights))
        curvature = (x * (share * (1 - share))[:, None]).T @ x + penalty * np.eye(x.shape[1])
        weights += np.linalg.solve(curvature, x.T @ (y - share) - penalty * weights)
    return ((features[half:] @ weights > 0) == labels[half:]).mean()


def probe(size, images, markers, labels):
    """Accuracy of one linear and three non-linear classifiers that see no contour."""
    plain, folded = geometry(size, markers)
    return {
        "linear": logistic_accuracy(linear_cues(size, images, markers), labels),
        "fourier": logistic_accuracy(fourier(plain, 0.7), labels),
        "folded": logistic_accuracy(fourier(folded, 0.5), labels),
        "folded, finer": logistic_accuracy(fourier(folded, 1.0), labels),
    }


def coins(count, seed):
    coin = np.random.default_rng(seed).integers(0, 2, count // 2)
    return np.stack([coin, 1 - coin], axis=1).reshape(-1)


def tips_with_a_cue(count):
    """Tips (count, 2, 2, 2) of contours that end near their own seed: a cue in the distance."""
    rng = np.random.default_rng(3)
    apart = rng.normal(size=(count, 2)) * 2.5
    seeds = rng.uniform(12, 20, (count, 1, 2)) + np.stack([apart, -apart], axis=1)
    return np.stack([seeds, seeds + rng.normal(size=(count, 2, 2)) * 8], axis=2)


def test_the_choice_of_markers_hides_a_cue_that_the_probes_see():
    """4,000 images for testing: a standard deviation is 0.8 points, the bound four of them."""
    count = 8_000
    tips, labels = tips_with_a_cue(count), coins(count, 4)
    ink = np.random.default_rng(5).integers(0, 256, (count, 9))  # tells nothing
    by_chance = np.where(
        labels[:, None, None] == 1, tips[:, 0], np.stack([tips[:, 0, 0], tips[:, 1, 1]], axis=1)
    )
    seen = probe(32, ink, by_chance, labels)
    assert min(seen.values()) > 0.56, seen
    parts = [slice(start, start + 2000) for start in range(0, count, 2000)]
    marked = np.concatenate([choose(tips[part], labels[part], 32, 0.05) for part in parts])
    hidden = probe(32, ink, marked, labels)
    assert max(abs(accuracy - 0.5) for accuracy in hidden.values()) < 0.032, hidden


def test_no_single_exchange_of_markers_makes_the_labels_more_alike():
    """The search ends where it says: checked with sums over all pairs, in floats."""
    count, size = 40, 32
    tips, labels = tips_with_a_cue(count), coins(count, 6)
    pairs = _pairs(tips, labels)
    every = np.arange(2 * count)
    geometry = Geometry(pairs.reshape(-1, 2, 2), size, 0.05)
    table = geometry.likeness(every[:, None], every).astype(float)
    sign = np.where(labels == 1, 1.0, -1.0)
    chosen = choose(tips, labels, size, 0.05)
    now = np.array([int((pairs[i, 1] == chosen[i]).all()) for i in range(count)])

    def unlike(which):
        rows = 2 * np.arange(count) + which
        return sign @ table[np.ix_(rows, rows)] @ sign

    for image in range(count):
        assert unlike(now) <= unlike(np.where(np.arange(count) == image, 1 - now, now))
    assert unlike(now) < 0.5 * unlike(np.zeros(count, int))


def test_markers_are_one_seed_and_one_far_end_as_the_label_says():
    tips, labels = tips_with_a_cue(50), coins(50, 7)
    for own, label, marked in zip(tips, labels, choose(tips, labels, 32, 0.05), strict=True):
        seed = next(c for c in (0, 1) if np.allclose(own[c, 0], marked[0]))
        assert np.allclose(own[seed if label else 1 - seed, 1], marked[1])


def test_more_scenes_hide_a_cue_that_two_pairs_cannot():
    """1,000 images for testing: a standard deviation is 1.6 points, the bound four of them."""
    blocks, count, factor = 4, 500, 4
    rng = np.random.default_rng(8)
    marked, labels = {1: [], factor: []}, coins(blocks * count, 9)
    for block in labels.reshape(blocks, count):
        seeds = rng.uniform(10, 22, (factor * count, 2, 2))
        ends = seeds + rng.normal(size=seeds.shape) * 3  # much nearer to its own seed
        tips = np.stack([seeds, ends], axis=2)
        for scenes in marked:
            choice = Choice(tips[: scenes * count], block, 32, 0.05)
            choice.search()
            marked[scenes].append(choice.markers())
            assert len(set(choice.scenes())) == count
    ink = rng.integers(0, 256, (len(labels), 9))  # tells nothing
    seen, hidden = (probe(32, ink, np.concatenate(marked[k]), labels) for k in (1, factor))
    assert min(seen.values()) > 0.6, seen
    assert max(abs(accuracy - 0.5) for accuracy in hidden.values()) < 0.064, hidden


def test_a_dropped_scene_is_replaced_by_one_of_its_label():
    count = 30
    tips, labels = tips_with_a_cue(3 * count), coins(count, 10)
    choice = Choice(tips, labels, 32, 0.05)
    choice.search()
    bad = np.array(choice.scenes()[:9])
    choice.drop(bad)
    choice.search()
    scenes = np.array(choice.scenes())
    assert len(set(scenes)) == count and not set(scenes) & set(bad)
    assert (labels[scenes % count] == labels).all()
    pairs = _pairs(tips[scenes], labels)
    assert (pairs == choice.markers()[:, None]).all(axis=(2, 3)).any(axis=1).all()
    with pytest.raises(DataError, match="every scene"):
        choice.drop(np.arange(3 * count))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_handful_of_images_where_scenes_are_chosen(count):
    images, labels, markers = make_images(parameters(64, "easy"), generator(6), count)
    assert images.shape == (count, 4096) and markers.shape == (count, 2, 2)
    assert abs(2 * int(labels.sum()) - count) <= 1


SETS = [(size, name) for size in (32, 64, 128, 256) for name in ("easy", "intermediate", "hard")]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "difficulty"), SETS)
def test_trivial_cues_do_not_give_the_label_away(size, difficulty):
    """12,000 images, half of them test the probes: a standard deviation is 0.65 points.

    The logistic regression has to stay within 2 points, about three deviations. The worst of three
    non-linear probes has to stay within 5.5: what the choice leaves (3.6 at most, 64 easy) and
    three deviations.
    """
    p, block = parameters(size, difficulty), 1000 if size == 256 else 2000
    parts = [make_images(p, generator(4, number), block) for number in range(12_000 // block)]
    images, labels, markers = (np.concatenate(column) for column in zip(*parts, strict=True))
    accuracies = probe(size, images, markers.astype(np.float64), labels)
    print(size, difficulty, accuracies)
    assert abs(accuracies.pop("linear") - 0.5) < 0.02, accuracies
    assert max(abs(accuracy - 0.5) for accuracy in accuracies.values()) < 0.055, accuracies


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [(32, 150), (128, 15)])
def test_speed(size, least):
    started = time.process_time()
    make_images(parameters(size), generator(5), 6 * least)
    assert 6 * least / (time.process_time() - started) > least


@pytest.mark.slow
def test_many_labels_at_every_size_and_difficulty():
    for size, count in ((32, 3000), (64, 500), (128, 500), (256, 100)):
        for difficulty in ("easy", "intermediate", "hard"):
            assert wrong_labels(size, difficulty, count, seed=7) == 0, (size, difficulty)


def test_a_set_chosen_among_more_scenes_is_reproducible_and_newer(tmp_path):
    options = {"size": 64, "difficulty": "easy", "images": 40}
    task = load("pathx", tmp_path / "a", **options)
    assert load("pathx", tmp_path / "b", workers=2, **options).identity == task.identity
    versions = {
        find_task("pathx").version_of(PathXOptions(size=size, difficulty=name))
        for size, name in SETS
    }
    assert versions == {4}
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
