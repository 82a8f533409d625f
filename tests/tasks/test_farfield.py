"""Far-field tasks: the proofs by enumeration, the certificates, and models at chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from longlens.config import ModelConfig
from longlens.models.build import build_model
from longlens.tasks import DataError, Spec, import_arrays, load
from longlens.tasks.decode import listops_value
from longlens.tasks.farfield import certificate, segments
from longlens.tasks.farfield.bags import first_difference, same_bags, window_names
from longlens.tasks.farfield.build import MEMBERS, READOUT
from longlens.tasks.farfield.certificate import OPTIONS
from longlens.tasks.farfield.options import MatchOptions, OrderOptions
from longlens.tasks.order import generator

TINY = dict(train=40, validation=8, test=8)


def plain_bag(row, width):
    """The bag of windows with edges, as the definition reads."""
    line = ["<"] * (width - 1) + list(row) + [">"] * (width - 1)
    return Counter(tuple(line[i : i + width]) for i in range(len(line) - width + 1))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 6, 9])
def test_named_windows_are_the_windows(width):
    tokens = np.random.default_rng(width).integers(0, 2, (6, 9))
    names = window_names(tokens, width)
    by_name = {}
    for row, named in zip(tokens, names, strict=True):
        line = ["<"] * (width - 1) + row.tolist() + [">"] * (width - 1)
        for place, name in enumerate(named.tolist()):
            window = tuple(line[place : place + width])
            assert by_name.setdefault(name, window) == window
    assert len(set(by_name.values())) == len(by_name)
    bags = [plain_bag(row.tolist(), width) for row in tokens]
    assert same_bags(tokens, width) == all(bag == bags[0] for bag in bags)


@pytest.mark.parametrize(
    "options",
    [
        OrderOptions(distance=4, noise=0.0, width=2, slack=3),
        OrderOptions(distance=3, noise=0.0, width=1, slack=2, difficulty=3),
        MatchOptions(distance=3, noise=0.0, width=1, slack=1, difficulty=3),
    ],
)
def test_label_and_bag_are_independent_by_full_enumeration(options):
    """P(label, bag) = P(label) P(bag) over every outcome of the generator, to the last example."""
    distance = options.distance
    for width in (1, distance - 1, distance, distance + 1):
        joint, prior = Counter(), Counter()
        for drawn in segments.everything(options):
            orbit, weights = segments.orbit(options, drawn, 0)
            tokens, labels = segments.render(options, orbit), segments.labels(options, orbit)
            for row, label, weight in zip(tokens, labels, weights, strict=True):
                bag = frozenset(plain_bag(row.tolist(), width).items())
                joint[bag, int(label)] += weight
                prior[int(label)] += weight
        total = sum(prior.values())
        bags = Counter()
        for (bag, _), weight in joint.items():
            bags[bag] += weight
        gap = max(abs(joint[b, y] / total - bags[b] * prior[y] / total**2)
                  for b in bags for y in prior)  # fmt: skip
        assert (gap < 1e-12) == (width <= distance), width
        assert len(prior) == segments.sizes(options).classes


def test_the_generator_draws_what_the_enumeration_lists():
    options = OrderOptions(distance=3, noise=0.0, width=1, slack=1)
    listed = set()
    for drawn in segments.everything(options):
        orbit, _ = segments.orbit(options, drawn, 0)
        listed |= {tuple(row) for row in segments.render(options, orbit).tolist()}
    made = segments.render(options, segments.draw(options, generator(0), 400))
    counts = Counter(map(tuple, made.tolist()))
    assert set(counts) == listed and min(counts.values()) > 60


@pytest.mark.parametrize("task", OPTIONS)
def test_certificates_hold_and_are_sharp(task):
    found = certificate(task, samples=40, distance=12)
    assert found.holds and not found.problems and found.range == 12
    # Without the start, which stands first, the tables of far-pointer tell nothing at all.
    assert found.fails_at == (found.length if task == "far-pointer" else 13)
    assert found.method == "monte carlo" and found.draws == 4000
    assert found.chance < found.detectable < found.chance + 0.1
    assert found.chance < found.accuracy_bound < found.chance + 0.1
    assert found.to_json()["holds"]


def test_a_blank_background_is_certified_exactly():
    for task in ("far-order", "far-match"):
        found = certificate(task, distance=9, noise=0.0)
        assert (found.method, found.accuracy_bound, found.holds) == ("exact", 0.5, True)


def test_a_false_claim_is_found_out(monkeypatch):
    """Guards one token too short, or a bit inside the last D positions, fail the certificate."""
    short = segments.guarded
    monkeypatch.setattr(segments, "guarded", lambda guard, *rest: short(guard[:, 1:], *rest))
    assert certificate("far-order", distance=9, noise=0.0).failing > 0
    found = certificate("far-injection", distance=9, samples=5)
    assert found.failing == 5 and "5 of 5 orbits" in found.problems[-1]
    xor = MEMBERS["far-xor"]
    monkeypatch.setattr(xor, "draw", _late(xor.draw))
    found = certificate("far-xor", distance=9, samples=20)
    assert not found.holds and found.accuracy_bound > 0.6


def _late(draw):
    def moved(options, rng, count):
        drawn = draw(options, rng, count)
        return replace(drawn, places=drawn.places + options.distance)

    return moved


@pytest.mark.parametrize("task", ["far-order", "far-match", "far-injection"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_untrained_bounded_model_gives_one_answer_for_a_whole_orbit(task, pooling):
    """The theorem itself, on the library's own model: zero padding, even kernels, norms and all."""
    from longlens.tasks.farfield.sample import draw_sample

    sample = draw_sample(task, OPTIONS[task](distance=12), 3)
    for tokens, labels, _ in map(sample.orbit, range(3)):
        assert len(set(labels.tolist())) > 1
        x = torch.from_numpy(tokens.astype(np.int64))
        for kernels, alike in (((7, 6), True), ((8, 7), False)):  # receptive fields 12 and 14
            config = ModelConfig(mixer="conv", mixer_options={"kernel_size": list(kernels)},
                                 dim=8, depth=2, vocab_size=64, pooling=pooling)  # fmt: skip
            out = build_model(config).double()(x)
            if alike or pooling == "mean":
                assert torch.allclose(out, out[:1].expand_as(out), atol=1e-12, rtol=0) == alike


@pytest.mark.parametrize("task", ["far-xor", "far-pointer", "far-listops"])
def test_read_out_models_that_reach_too_short_see_nothing(task):
    member, options = MEMBERS[task], OPTIONS[task](distance=10, noise=0.3)
    drawn = member.draw(options, generator(3), 12)
    orbit, _ = member.orbit(options, drawn, 0)
    tokens = member.render(options, orbit)
    x = torch.from_numpy(tokens.astype(np.int64))
    for kernel, alike in ((10, True), (member.sizes(options).length, False)):
        config = ModelConfig(mixer="conv", mixer_options={"kernel_size": kernel},
                             bidirectional=False, dim=8, depth=1, vocab_size=64, pooling="last",
                             positions="learned",
                             max_length=tokens.shape[1])  # fmt: skip
        out = build_model(config).double()(x)
        assert torch.allclose(out, out[:1].expand_as(out), atol=1e-12, rtol=0) == alike


def test_labels_follow_the_definitions():
    order = OPTIONS["far-order"](distance=5, difficulty=3, noise=0.5)
    member = MEMBERS["far-order"]
    drawn = member.draw(order, generator(1), 50)
    for row, label in zip(member.render(order, drawn), member.labels(order, drawn), strict=True):
        marks = [t for t in row.tolist() if 1 <= t <= 3]
        assert marks[0] == label + 1 and sorted(marks) == sorted([1, 2, 3] * 4)
    match = OPTIONS["far-match"](distance=5, width=1)
    drawn = member.draw(match, generator(1), 50)
    for row, label in zip(member.render(match, drawn), member.labels(match, drawn), strict=True):
        marks = [t for t in row.tolist() if 1 <= t <= 2]
        assert len(marks) == 3 and (marks[0] == marks[1]) == label and len(set(marks)) == 2
    xor = OPTIONS["far-xor"](distance=5, difficulty=3, noise=0.5)
    member = MEMBERS["far-xor"]
    drawn = member.draw(xor, generator(1), 50)
    for row, label in zip(member.render(xor, drawn), member.labels(xor, drawn), strict=True):
        bits = [t - 1 for t in row.tolist() if t in (1, 2)]
        assert len(bits) == 3 and sum(bits) % 2 == label and not set(row[-5:].tolist()) & {1, 2}
    pointer = OPTIONS["far-pointer"](distance=5, noise=0.5, hops=3)
    member = MEMBERS["far-pointer"]
    drawn = member.draw(pointer, generator(1), 50)
    for row, label in zip(
        member.render(pointer, drawn), member.labels(pointer, drawn), strict=True
    ):
        at, places = row[0] - 5, [i for i, t in enumerate(row.tolist()) if 1 <= t <= 8]
        tables = [places[1 + 8 * h : 9 + 8 * h] for h in range(3)]
        for before, table in zip([places[:1], *tables], tables, strict=False):
            assert table[0] - before[-1] >= 5
            at = {row[i] - 1: row[i + 1] - 5 for i in table[::2]}[at]
        assert at == label and len(row) - 1 - places[-1] == 5
    far = OPTIONS["far-listops"](distance=5, noise=0.5)
    member = MEMBERS["far-listops"]
    drawn = member.draw(far, generator(1), 50)
    for row, label in zip(member.render(far, drawn), member.labels(far, drawn), strict=True):
        places = [i for i, t in enumerate(row.tolist()) if 1 <= t <= 15]
        assert np.diff(places).min() == np.diff(places).max() == 5
        assert listops_value(row[places])[0] == label and len(row) - 1 - places[-1] >= 5


@pytest.mark.parametrize("task", OPTIONS)
def test_the_task_end_to_end(tmp_path, task):
    made = load(task, tmp_path, distance=6, **TINY)
    assert made["train"].arrays["inputs"].shape == (40, made.spec.max_length)
    assert int(made["train"].arrays["inputs"].whole().max()) < made.spec.vocab_size
    assert set(np.unique(made["train"].targets)) <= set(range(made.spec.num_classes))
    assert made.spec.readout == ("last" if task in READOUT else None)
    again = load(task, tmp_path / "again", distance=6, workers=2, **TINY)
    assert again.identity == made.identity


def test_injection_into_sequences_of_varying_length(tmp_path):
    small = dict(train=30, validation=6, test=6, min_length=5, max_length=40, max_depth=4)
    inner = load("listops", tmp_path, **small)
    task = load(
        "far-injection", tmp_path, inner="listops", inner_options=small, distance=7, train=20
    )
    assert [len(task[s]) for s in ("train", "validation", "test")] == [20, 6, 6]
    assert task.spec.extras == ("inner", "first", "operator", "depth", "decided")
    for outer, example in zip(task["test"], inner["test"], strict=True):
        z = outer.inputs[0]
        assert len(z) == len(example.inputs[0]) + 4 * 6 + 2 * 4
        np.testing.assert_array_equal(z[6 + 4 + 6 : -16], example.inputs[0])
        assert outer.extras["inner"] == example.target
        assert outer.target == (int(example.target) >= 8) ^ (outer.extras["first"] % 2)
        assert z[6] == 16 + 1 + outer.extras["first"]
    assert inner.identity in task.manifest.notes[0]


def test_a_spec_without_read_out_keeps_its_identity():
    spec = Spec(kind="classification", inputs="tokens", max_length=4, vocab_size=3, num_classes=2)
    assert "readout" not in spec.to_json() and Spec.from_json(spec.to_json()) == spec
    far = replace(spec, readout="last")
    assert Spec.from_json(far.to_json()) == far
    with pytest.raises(DataError, match="readout"):
        replace(spec, readout="first")


def test_wrong_use_is_named(tmp_path):
    import_arrays("floats", np.zeros((20, 5), np.float32), np.arange(20) % 2, root=tmp_path)
    for task, options, match in (
        ("far-order", {"distance": 0}, "distance"),
        ("far-order", {"noise": 1.5}, "noise"),
        ("far-order", {"difficulty": 1}, "difficulty"),
        ("far-xor", {"span": 1}, "span"),
        ("far-pointer", {"hops": 0}, "hops"),
        ("far-listops", {"tokens": 3}, "tokens"),
        ("far-injection", {"difficulty": 3}, "even"),
        ("far-injection", {"inner_options": {"train": 4}}, "pattern"),
        ("far-injection", {"inner": "cumsum"}, "regression"),
        ("far-injection", {"inner": "floats"}, "floats"),
        ("far-injection", {"inner": "far-xor"}, "read-out"),
        ("far-injection", {"inner": "bogus"}, "unknown task"),
        ("far-injection", {"inner": "far-order", "inner_options": TINY, "train": 41}, "at most"),
    ):
        with pytest.raises(DataError, match=match):
            load(task, tmp_path, **options)
    with pytest.raises(DataError, match="task must be one of"):
        certificate("listops")
    with pytest.raises(DataError, match="samples"):
        certificate("far-order", samples=0)
    with pytest.raises(DataError, match="draws"):
        certificate("far-order", draws=0)
    assert first_difference(np.array([[0, 1], [0, 1]]), 1, 2) is None


def train(task, mixer, tmp_path, **options):
    from longlens.runs import train_run
    from longlens.training.options import TrainOptions

    values = dict(dim=32, depth=2, steps=300, batch_size=32, lr=3e-3, progress=False, device="cpu",
                  task=task, mixer=mixer, root=str(tmp_path),
                  runs=str(tmp_path / "runs"))  # fmt: skip
    return train_run(TrainOptions(**values | options)).value("test")


def test_a_task_whose_shape_its_data_tell_is_trained(tmp_path):
    value = train("far-injection", "conv", tmp_path, steps=2, task_options=dict(distance=8, **TINY))
    assert 0 <= value <= 1


def test_a_pooled_model_is_refused_where_the_task_has_a_read_out(tmp_path):
    with pytest.raises(ValueError, match=r"pooling must be 'last' .--pooling last., got 'mean'"):
        train("far-xor", "conv", tmp_path, task_options=dict(distance=8, **TINY))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "steps"), [("far-order", 300), ("far-injection", 1200)])
def test_a_convolution_is_at_chance_where_a_global_mixer_succeeds(tmp_path, task, steps):
    data = dict(distance=12, train=20_000, validation=300, test=2000)
    bound = certificate(task, samples=300, distance=12).accuracy_bound
    conv = {"kernel_size": [6, 7]}  # a receptive field of 12
    local = train(task, "conv", tmp_path, task_options=data, mixer_options=conv)
    assert abs(local - 0.5) < 0.03 and local < bound + 0.03
    more = dict(steps=steps, evaluate_every=steps // 4)
    assert train(task, "s4d", tmp_path, task_options=data, **more) > 0.95


@pytest.mark.slow
def test_a_wider_convolution_solves_what_a_narrow_one_cannot(tmp_path):
    """The range is sharp in practice as well: fields of D and of 3 D, everything else equal."""
    data = dict(distance=6, noise=0.05, train=6000, validation=300, test=1000)
    found = [
        train("far-order", "conv", tmp_path, task_options=data, steps=400,
              mixer_options={"kernel_size": kernels})
        for kernels in ([3, 4], [9, 10])
    ]  # fmt: skip
    assert abs(found[0] - 0.5) < 0.05 and found[1] > 0.95
