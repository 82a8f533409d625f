"""Certificates look at the generator that runs: planted leaks fail, and the test has its power."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from longlens.tasks.farfield import certificate, injection
from longlens.tasks.farfield.bags import same_bags
from longlens.tasks.farfield.build import MEMBERS
from longlens.tasks.farfield.certificate import OPTIONS
from longlens.tasks.farfield.leaks import find_leaks
from longlens.tasks.farfield.sample import draw_sample
from longlens.tasks.order import generator

PART = {"far-order": "guard", "far-match": "guard", "far-xor": "around", "far-pointer": "around",
        "far-listops": "around"}  # fmt: skip


def planted(monkeypatch, task, change):
    """Replace the task's ``draw`` by one whose result is changed, with the labels at hand."""
    if task == "far-injection":
        draw = injection.draw

        def leaky(options, rng, count, vocab):
            drawn = draw(options, rng, count, vocab)
            return change(drawn, drawn.marks[:, 0] % 2, vocab + 1 + options.difficulty, rng)

        monkeypatch.setattr(injection, "draw", leaky)
        return
    member = MEMBERS[task]
    draw = member.draw

    def leaky(options, rng, count):
        drawn = draw(options, rng, count)
        letter = member.sizes(options).vocabulary - 8
        return change(drawn, member.labels(options, drawn), letter, rng)

    monkeypatch.setattr(member, "draw", leaky)


def caught(task, word, **options):
    found = certificate(task, samples=100, distance=12, **options)
    assert not found.holds and found.accuracy_bound == 1.0
    assert any(word in problem for problem in found.problems), found.problems
    return found


# --------------------------------------------------------------- three kinds of leaks


@pytest.mark.parametrize("task", OPTIONS)
def test_a_draw_that_gives_the_answer_away_in_one_token_is_caught(monkeypatch, task):
    part = PART.get(task, "guard")

    def told(drawn, labels, letter, rng):
        tokens = getattr(drawn, part).copy()
        tokens[:, -1] = letter + labels % 8
        return replace(drawn, **{part: tokens})

    planted(monkeypatch, task, told)
    found = caught(task, "windows of width 1")
    assert found.failing == 0, "the orbits alone do not show it"


@pytest.mark.parametrize("task", ["far-order", "far-injection"])
def test_a_draw_that_prefers_a_label_is_caught(monkeypatch, task):
    def preferred(drawn, labels, letter, rng):
        some = rng.random(len(labels)) < 0.2
        marks = np.where(some[:, None], np.sort(drawn.marks, axis=1), drawn.marks)
        return replace(drawn, marks=marks)

    planted(monkeypatch, task, preferred)
    options = {} if task == "far-order" else {"combine": "pair"}
    caught(task, "are not balanced: [2", **options)


def test_a_draw_that_hides_the_label_in_what_an_orbit_keeps_is_caught(monkeypatch):
    """No window tells where segments stand, but their place depends on their order."""

    def moved(drawn, labels, letter, rng):
        before = np.where(rng.random(len(labels)) < 0.5, 3 * labels, drawn.before)
        return replace(drawn, before=before)

    planted(monkeypatch, "far-order", moved)
    caught("far-order", "'before'")


def test_a_label_that_changes_how_much_background_there_is_is_caught(monkeypatch):
    def noisier(drawn, labels, letter, rng):
        share = 0.12 * labels[:, None]  # beside the tenth that all have
        more = rng.random(drawn.guard.shape) < share
        return replace(drawn, guard=np.where(more, letter, drawn.guard).astype(np.uint8))

    planted(monkeypatch, "far-order", noisier)
    caught("far-order", "windows of width 1")


def test_examples_that_no_orbit_lists_are_caught(monkeypatch):
    member = MEMBERS["far-order"]
    render = member.render

    def other(options, drawn):
        tokens = render(options, drawn)
        if len(tokens) > 100:  # what is written, not the orbits of single examples
            tokens[::10, 0] = 1
        return tokens

    monkeypatch.setattr(member, "render", other)
    caught("far-order", "no member of their orbit")


@pytest.mark.parametrize("task", OPTIONS)
def test_the_shipped_generators_pass(task):
    for seed, noise in ((1, 0.1), (2, 0.0), (3, 0.5)):
        found = certificate(task, samples=50, distance=8, seed=seed, noise=noise)
        assert found.holds, found.problems


def test_the_chance_of_far_listops():
    found = certificate("far-listops", samples=10, distance=4)
    assert found.chance == pytest.approx(0.122, abs=0.004)


# --------------------------------------------------------------- the test itself


def test_leaks_of_the_stated_size_are_found_and_nothing_else():
    rng, count, tries = np.random.default_rng(0), 2000, 200
    labels = np.arange(count) % 2
    null = np.array([np.bincount(labels[rng.random(count) < 0.5], minlength=2)
                     for _ in range(500)])  # fmt: skip
    sizes = np.bincount(labels)
    calm = find_leaks([("null", null)], sizes)
    assert not calm.worst
    share, hits = calm.detectable, 0
    for _ in range(tries):
        has = rng.random(count) < np.where(labels == 1, share, 1 - share)
        leak = np.bincount(labels[has], minlength=2)[None]
        hits += bool(find_leaks([("null", null), ("leak", leak)], sizes).worst)
    assert hits >= 0.9 * tries


def test_the_theorem_is_one_of_exact_arithmetic():
    """Equal bags, and yet a float32 mean of large features tells the order."""
    tokens, labels, _ = draw_sample("far-order", OPTIONS["far-order"](distance=12), 1).orbit(0)
    assert same_bags(tokens, 12) and labels[0] != labels[1]
    value = np.ones(12)
    value[1:3] = 1e8, 3.0  # the features of the two marks
    features = value[tokens]
    assert len({math.fsum(row) for row in features}) == 1
    total = torch.zeros(2)
    for column in torch.tensor(features, dtype=torch.float32).T:
        total = total + column
    assert total[0] != total[1]


def test_certificates_sample_what_is_written(tmp_path, monkeypatch):
    """The files of a task come from the same function as the certificate's draws."""
    from longlens.tasks import load

    planted(monkeypatch, "far-order", lambda drawn, labels, letter, rng: replace(
        drawn, guard=np.full_like(drawn.guard, letter)))  # fmt: skip
    made = load("far-order", tmp_path, distance=6, noise=0.0, train=8, validation=4, test=4)
    letter = MEMBERS["far-order"].sizes(OPTIONS["far-order"]()).vocabulary - 8
    assert (made["train"].arrays["inputs"].whole() == letter).any()
    drawn, tokens, _ = _parts()
    assert (tokens == letter).any() and (drawn.guard == letter).all()


def _parts():
    from longlens.tasks.farfield.build import examples

    return examples("far-order", OPTIONS["far-order"](distance=6, noise=0.0), generator(0), 3)
