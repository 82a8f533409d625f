"""Probes: their reach is exact, their left-out errors are, and they find what was planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longlens.lens.probe import Prober, nested
from longlens.lens.probe.ridge import STRENGTHS, fit_ridge
from longlens.lens.probe.series import SeriesFeatures, dilations, kernels
from longlens.lens.probe.tokens import TokenFeatures, patterns
from longlens.tasks import import_arrays, load
from longlens.tasks.farfield import certificate
from longlens.tasks.order import generator


def series_features(examples, reach, **options):
    return SeriesFeatures(examples, reach, 600, seed=0, **options)


@pytest.mark.parametrize("reach", [1, 2, 3, 5, 8, 9, 17, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_series_features_see_reach_positions_together_and_no_more(reach, channels):
    """Changes at p and q add up exactly where no window holds both, and only there."""
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (80, channels)).astype(np.float32)
    features = series_features([x, -x], reach)

    def sums(*changed):
        values = x.copy()
        values[list(changed)] += 5
        count = features([values])[0].double()
        keep = torch.ones_like(count, dtype=torch.bool)
        for start, rows in zip(*_moments(features), strict=True):  # maxima do not add up
            keep[start : start + rows] = False
        return count[keep]

    for q in (40 + reach, 40 + reach + 3, 79):
        mixed = sums(40, q) - sums(40) - sums(q) + sums()
        assert mixed.abs().max() < 2e-5 * (1 + sums().abs().max()), (reach, q)
    if reach in (2, 3, 5, 8, 9, 17, 33):  # reaches that the taps fill
        mixed = sums(40, 40 + reach - 1) - sums(40) - sums(40 + reach - 1) + sums()
        assert mixed.abs().max() > 1e-3


def _moments(features):
    """Where the largest and least outputs stand among the features, and how many they are."""
    starts, sizes, start = [], [], 0
    for weight, thresholds in zip(features.weights, features.thresholds, strict=True):
        start += thresholds.numel()
        starts.append(start)
        sizes.append(2 * len(weight))
        start += 3 * len(weight)
    return starts, sizes


@pytest.mark.parametrize("reach", [1, 2, 3, 5, 9, 33])
def test_token_features_see_reach_positions_together_and_no_more(reach):
    x = np.random.default_rng(0).integers(0, 4, 90)
    features = TokenFeatures(6, reach, 3000, seed=0)

    def counts(*changed):
        values = x.copy()
        values[list(changed)] = 5
        return features([values])[0].double().expm1().round()

    for q in (40 + reach, 40 + reach + 3, 89):
        assert not (counts(40, q) - counts(40) - counts(q) + counts()).any(), (reach, q)
    if reach > 1:
        q = 40 + reach - 1
        assert (counts(40, q) - counts(40) - counts(q) + counts()).any()


@pytest.mark.parametrize("kind", ["series", "tokens"])
def test_equal_bags_of_windows_have_equal_features_up_to_the_guard(kind):
    """Two segments between equal guards of D − 1: swapped, no window of D positions changes."""
    rng, distance = np.random.default_rng(0), 17
    guard, a, b = rng.integers(0, 4, 16), rng.integers(4, 6, 9), rng.integers(6, 8, 9)
    first = np.concatenate([guard, a, guard, b, guard])
    second = np.concatenate([guard, b, guard, a, guard])

    def both(reach):
        if kind == "tokens":
            made = TokenFeatures(8, reach, 2000, 0)([first, second])
        else:
            values = [each.astype(np.float32)[:, None] for each in (first, second)]
            made = series_features(values, reach)(values)
        return made[0], made[1]

    for reach in (3, 9, distance):
        assert torch.allclose(*both(reach), atol=1e-4), reach
    assert not torch.allclose(*both(60), atol=1e-2)


@pytest.mark.parametrize(("count", "size"), [(30, 8), (12, 40)])
def test_left_out_errors_are_those_of_fits_without_the_example(count, size):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(count, size, generator=rng, dtype=torch.double)
    y = torch.randint(0, 3, (count,), generator=rng)
    fit = fit_ridge(x, y, 3)
    centred = (x - fit.mean) * fit.scale
    targets = 2.0 * torch.nn.functional.one_hot(y, 3).double() - 1
    gram = centred @ centred.T if count <= size else centred.T @ centred
    strength = fit.strength * float(torch.linalg.eigvalsh(gram).clamp_min(0).mean())
    errors, right = [], 0
    for out in range(count):
        rest = [i for i in range(count) if i != out]
        middle, level = centred[rest].mean(0), targets[rest].mean(0)
        a, b = centred[rest] - middle, targets[rest] - level
        weight = torch.linalg.solve(a.T @ a + strength * torch.eye(size).double(), a.T @ b)
        scores = (centred[out] - middle) @ weight + level
        errors.append((scores - targets[out]).square().mean())
        right += int(scores.argmax() == y[out])
    assert float(torch.stack(errors).mean()) == pytest.approx(fit.error, rel=1e-8)
    assert fit.left_out == pytest.approx(right / count) and fit.strength in STRENGTHS


def planted(reach, root, kind, count=700, length=200):
    """Two marks at distance reach − 1 (label 1) or further apart (label 0), in noise."""
    rng = np.random.default_rng(reach)
    y = np.arange(count) % 2
    x = rng.integers(0, 6, (count, length))
    for row, label in zip(x, y, strict=True):
        gap = reach - 1 if label else int(rng.integers(2 * reach, 3 * reach))
        start = rng.integers(0, length - gap)
        row[start], row[start + gap] = (6, 7) if kind == "tokens" else (40, 40)
    values = x if kind == "tokens" else x.astype(np.float32)
    import_arrays(f"{kind}{reach}", values, y, root=root)
    return load(f"{kind}{reach}", root)


@pytest.mark.parametrize("kind", ["tokens", "series"])
@pytest.mark.parametrize("reach", [9, pytest.param(33, marks=pytest.mark.slow)])
def test_probes_find_the_reach_of_a_planted_task(tmp_path, kind, reach):
    prober = Prober(planted(reach, tmp_path, kind), 630, 70)
    outcomes = {r: prober.probe("window", r, 0) for r in (3, 5, 9, 17, 33, 61)}
    narrow = max(o.left_out for r, o in outcomes.items() if r < reach)
    assert narrow < 0.62 and outcomes[reach].left_out > 0.9, outcomes
    assert all(o.left_out > 0.85 for r, o in outcomes.items() if r >= reach)


@pytest.mark.parametrize(
    ("name", "options"),
    [("far-order", {}), ("far-match", {}), ("far-injection", {}), ("far-xor", {}),
     ("far-pointer", {}), ("far-listops", {})],
)  # fmt: skip
def test_probes_stay_inside_the_certificate(tmp_path, name, options):
    data = dict(distance=24, train=500, validation=100, test=600, **options)
    bound = certificate(name, 20, **data).accuracy_bound
    task = load(name, tmp_path, **data)
    prober = Prober(task, 600, 600)
    for reach in (3, 9, 23):
        test = prober.probe("window", reach, 0).test
        chance = max(1 / prober.classes, np.bincount(task["test"].targets).max() / 600)
        assert test < max(bound, chance) + 4 * np.sqrt(0.25 / 600), (reach, test, bound)


def test_probes_are_the_same_by_seed_and_differ_between_seeds(tmp_path):
    prober = Prober(planted(9, tmp_path, "series"), 300, 70)
    first, again, other = (prober.probe("window", 9, seed) for seed in (0, 0, 1))
    assert first.error == again.error and np.array_equal(first.right, again.right)
    assert other.error != first.error


def test_what_sees_more_may_use_less(tmp_path):
    prober = Prober(planted(9, tmp_path, "tokens"), 300, 70)
    outcomes = [prober.probe("window", r, 0) for r in (61, 9, 3)]
    outcomes.append(prober.probe("in place", None, 0))
    best = nested(outcomes)
    assert best[1] is outcomes[1] and best[2] is outcomes[2], "fewer may not use more"
    assert best[0].error == min(o.error for o in outcomes[:3])
    assert best[3].error == min(o.error for o in outcomes)


def test_numbers_and_symbols_are_told_apart(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(300) % 2
    smooth = np.cumsum(rng.integers(-2, 3, (300, 60)), 1) * (1 + y[:, None]) + 500
    import_arrays("numbers", smooth.clip(0), y, root=tmp_path)
    symbols = rng.integers(0, 40, (300, 60))
    symbols[np.arange(300), 30], symbols[np.arange(300), 31] = 17 + y, 3
    import_arrays("symbols", symbols, y, root=tmp_path)
    assert Prober(load("numbers", tmp_path), 300, 30).series
    assert not Prober(load("symbols", tmp_path), 300, 30).series


def test_examples_of_different_lengths_and_shorter_than_the_reach(tmp_path):
    rng, lengths = np.random.default_rng(0), np.arange(60) % 30 + 1
    import_arrays("short", rng.standard_normal((60, 30)).astype(np.float32), np.arange(60) % 2,
                  lengths=lengths, root=tmp_path)  # fmt: skip
    prober = Prober(load("short", tmp_path), 60, 6)
    for where, reach in (("window", 9), ("anywhere", None), ("in place", None)):
        assert 0 <= prober.probe(where, reach, 0).test <= 1
    values = [rng.standard_normal((n, 1)).astype(np.float32) for n in (20, 30)]
    features = series_features(values, 9)
    alone = torch.cat([features([value]) for value in values])
    assert torch.allclose(features(values), alone, atol=1e-6), "padding is not seen"


def test_patterns_and_dilations_fill_the_reach():
    for reach in (2, 3, 9, 17, 61, 129, 1000):
        assert max((size - 1) * gap for size, gap in patterns(reach)) == reach - 1
        taps = min(9, reach)
        assert max(dilations(reach, taps)) == (reach - 1) // (taps - 1)
    assert (
        kernels(9, generator(0)).shape == (84, 9)
        and len({*map(tuple, kernels(9, generator(0)))}) == 84
    )


@pytest.mark.parametrize(
    ("name", "options", "distance"),
    [("shift-above", dict(length=32), 28), ("lag", dict(length=64, distance=28, tokens=3), 28)],
)
def test_what_is_read_out_at_the_end_is_found_at_its_distance(tmp_path, name, options, distance):
    task = load(name, tmp_path, train=900, validation=100, test=600, **options)
    prober = Prober(task, 1000, 600)
    short = prober.probe("window", distance - 2, 0)  # the first value that matters is one more away
    enough = prober.probe("window", distance + 1, 0)
    assert short.test < 0.6
    assert enough.test > 0.85


@pytest.mark.parametrize("taps", [3, 5, 9])
def test_some_kernels_see_levels(taps):
    """Half of the random ones have a sum that is not zero, half have none."""
    sums = np.abs(kernels(taps, generator(0), fixed=False).sum(1))
    assert 84 // 4 - 1 <= (sums > 1e-3).sum() <= 84 // 2


def test_features_of_a_series_do_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    examples = [rng.standard_normal((n, 1)).astype(np.float32) - 5 for n in (90, 60, 100, 20, 3)]
    features = series_features(examples, 9)
    together = features(examples)
    assert torch.isfinite(together).all()
    for row, example in enumerate(examples):
        torch.testing.assert_close(together[row : row + 1], features([example]))


def test_a_fit_does_not_depend_on_the_unit():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    one, other = (fit_ridge(x * unit, labels, 2).left_out for unit in (1.0, 1e-6))
    assert one == other


def test_a_validation_split_that_is_the_test_split_is_not_learned(tmp_path):
    x, y = np.arange(200).reshape(50, 4) % 7, np.arange(50) % 2
    for name, held in (("same", slice(20, 35)), ("other", slice(35, 50))):
        parts = {"train": slice(0, 20), "validation": held, "test": slice(20, 35)}
        split = np.concatenate([[part] * len(x[place]) for part, place in parts.items()])
        arrays = (np.concatenate([a[place] for place in parts.values()]) for a in (x, y))
        import_arrays(name, *arrays, split=split, root=tmp_path)
    known = {name: len(Prober(load(name, tmp_path), 99, 9).known) for name in ("same", "other")}
    assert known == {"same": 20, "other": 35}


@pytest.mark.parametrize("padded", [False, True])
def test_examples_of_test_may_be_longer_than_those_that_are_fitted(padded):
    rng = np.random.default_rng(0)
    short, long = ([rng.standard_normal((n, 1)) for _ in range(8)] for n in (6, 9))
    found = series_features(short, 9, padded=padded)
    assert found(long).isfinite().all() and found(long).shape == found(short).shape
