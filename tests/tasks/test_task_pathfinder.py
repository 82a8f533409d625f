"""Pathfinder: the label is in the picture, and only in the contours."""

from __future__ import annotations

import time

import numpy as np
import pytest

from longlens.tasks import DataError, load
from longlens.tasks.order import generator
from longlens.tasks.pathfinder.generate import make_images
from longlens.tasks.pathfinder.parameters import INK, parameters
from longlens.tasks.pathfinder.trace import find_markers, trace


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


def cues(p, images, markers):
    """Ink, marker distance and marker positions, with their squares."""
    distance = np.linalg.norm(markers[:, 0] - markers[:, 1], axis=1)
    left_first = np.take_along_axis(markers, markers[:, :, :1].argsort(axis=1), axis=1)
    plain = np.column_stack(
        [
            distance,
            images.sum(axis=1),
            (images > INK).sum(axis=1),
            left_first.reshape(-1, 4) / p.size,
        ]
    )
    features = np.column_stack(
        [plain, plain**2, plain[:, 3] * plain[:, 5], plain[:, 4] * plain[:, 6]]
    )
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return np.column_stack([features, np.ones(len(features))])


def logistic_accuracy(features, labels):
    """Accuracy of a logistic regression (Newton's method) on the half that it was not fitted to."""
    half = len(labels) // 2
    x, y, weights = features[:half], labels[:half], np.zeros(features.shape[1])
    for _ in range(25):
        share = 1 / (1 + np.exp(-x @ weights))
        curvature = (x * (share * (1 - share))[:, None]).T @ x + 1e-3 * np.eye(x.shape[1])
        weights += np.linalg.solve(curvature, x.T @ (y - share))
    return ((features[half:] @ weights > 0) == labels[half:]).mean()


def test_the_cue_detector_detects():
    """The regression below would see a cue: markers of one contour moved apart give it away."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 4000)
    features = np.column_stack([rng.normal(size=4000) + 0.3 * labels, np.ones(4000)])
    assert logistic_accuracy(features, labels) > 0.53


@pytest.mark.slow
@pytest.mark.parametrize(("size", "count"), [(32, 12000), (128, 8000)])
def test_trivial_cues_do_not_give_the_label_away(size, count):
    p = parameters(size)
    images, labels, markers = make_images(p, generator(4), count)
    accuracy = logistic_accuracy(cues(p, images.astype(np.float64), markers), labels)
    assert abs(accuracy - 0.5) < 0.02


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
