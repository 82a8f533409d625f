"""Verdicts of audits with planted accuracies: what they decide, and what cannot mislead them."""

from __future__ import annotations

import numpy as np
import pytest

from longlens.lens.audit.floor import floor_of
from longlens.lens.audit.judge import judge
from longlens.lens.audit.verdict import summarise

FLOOR = {"name": "trigrams", "test": 0.55, "local": {"name": "trigrams", "test": 0.55}}


def points(curve, seeds=3, mixer="s4d"):
    """Points of an audit from {field or None: accuracy or list of accuracies by seed}."""
    rows = []
    for field, values in curve.items():
        values = np.broadcast_to(values, seeds) if np.ndim(values) == 0 else values
        for seed, value in enumerate(values):
            name = mixer if field is None else f"conv {field}"
            rows.append({"model": name, "receptive_field": field, "seed": seed,
                         "validation": float(value), "test": float(value)})  # fmt: skip
    return rows


def verdict(curve, seeds=3, mixer="s4d", length=1000, test_size=10_000, floor=FLOOR):
    return summarise(points(curve, seeds, mixer), 0.5, test_size, length, floor)["verdict"]


LOCAL = {3: 0.70, 9: 0.89, 33: 0.9, None: 0.9}
FAR = {61: 0.5, 257: 0.51, 601: 0.52, None: 1.0}


def test_a_local_task_is_called_short_range():
    found = summarise(points(LOCAL), 0.5, 10_000, 1000, FLOOR)
    assert found["verdict"]["category"] == "short range" and found["verdict"]["decided"]
    assert found["verdict"]["confidence"] > 0.9 and found["verdict"]["seeds"] == 3
    assert found["ranges"]["of_accuracy"]["0.90"]["receptive_field"] == 9
    assert found["ranges"]["of_gain"]["0.95"]["receptive_field"] == 9
    assert found["ranges"]["of_gain"]["0.99"]["receptive_field"] == 33


def test_a_far_task_is_called_long_range():
    found = summarise(points(FAR), 0.5, 5000, 1200, FLOOR)
    assert found["verdict"]["category"] == "long range" and found["verdict"]["decided"]
    assert found["ranges"]["of_accuracy"]["0.90"] == {
        "receptive_field": None, "interval": [None, None],
    }  # fmt: skip
    assert found["best"]["model"] == "s4d" and "more than 601" in found["verdict"]["text"]


def test_any_global_model_that_has_learned_counts():
    """The best on validation may be one of several, and not the best on test."""
    rows = points({3: 0.6, 33: 0.999, None: 0.999})
    rows += points({None: 1.0}, mixer="probe, in place")
    for row in rows:
        row["validation"] = 1.0 if row["test"] > 0.9 else row["test"]
    floor = {"name": "tokens in place", "test": 1.0, "local": FLOOR["local"]}
    found = summarise(rows, 0.5, 10_000, 128, floor)["verdict"]
    assert "no global model has learned" not in found["text"], found["text"]


def test_random_features_alone_are_not_told_to_train_longer():
    rows = points({3: 0.5, None: 0.5})
    assert summarise(rows, 0.5, 100, 1000, FLOOR)["verdict"]["text"].endswith("train longer")
    for row in rows:
        row.update(probe=True, right=[0, 1] * 50)
    assert "train longer" not in summarise(rows, 0.5, 100, 1000, FLOOR)["verdict"]["text"]


# --------------------------------------------------------------- what must decide nothing


@pytest.mark.parametrize("curve", [LOCAL, FAR])
@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_decide_nothing(curve, seeds):
    found = summarise(points(curve, seeds), 0.5, 1_000_000, 1000, FLOOR)
    assert not found["verdict"]["decided"] and "where 3 are needed" in found["verdict"]["text"]
    assert (found["verdict"]["confidence"] is None) == (seeds == 1), "one seed has no confidence"
    assert (found["ranges"]["of_gain"]["0.95"]["interval"] is None) == (seeds == 1)


def test_one_model_with_too_few_seeds_is_enough_to_doubt():
    rows = [row for row in points(LOCAL) if row["model"] != "conv 9" or row["seed"] < 2]
    assert not summarise(rows, 0.5, 10_000, 1000, FLOOR)["verdict"]["decided"]


def test_a_sweep_that_ends_below_half_the_length_is_no_proof_of_long_range():
    for widest in (5, 257, 499):
        found = verdict({3: 0.5, widest: 0.51, None: 1.0})
        assert found["category"] == "open" and not found["decided"]
        assert found["confidence"] is None and "try fields up to 500" in found["text"]
    assert verdict({3: 0.5, 500: 0.51, None: 1.0})["decided"]


@pytest.mark.parametrize("mixer", ["local", "las-chunk", "softmax-chunk", "mega-chunk"])
def test_bounded_mixers_are_no_global_models(mixer):
    found = verdict(LOCAL, mixer=mixer)
    assert found["category"] == "open" and not found["decided"]
    assert "no global model was trained" in found["text"]


def test_no_short_range_without_a_global_model_that_has_learned():
    nobody = verdict({3: 0.70, 9: 0.89, 33: 0.9})
    assert nobody["category"] == "open" and "nobody looked" in nobody["text"]
    chance = verdict({3: 0.70, 9: 0.89, 33: 0.9, None: 0.5})
    assert chance["category"] == "open" and "no global model has learned" in chance["text"]
    higher = {"name": "trigrams", "test": 0.79, "local": None}
    below = verdict({5: 0.85, 61: 0.86, None: 0.78}, floor=higher)
    assert below["category"] == "open" and "no global model has learned" in below["text"]
    behind = verdict({5: 0.85, 61: 0.86, None: 0.78})
    assert behind["category"] == "short range" and not behind["decided"]
    assert "no global model keeps up (s4d, 78.0%)" in behind["text"]
    middle = verdict({5: 0.6, 257: 0.9})
    assert middle["category"] == "open" and "nobody looked" in middle["text"]


def test_no_verdict_without_a_floor_and_every_verdict_names_it():
    for curve in (LOCAL, FAR):
        assert "without a network 55.0% (trigrams)" in verdict(curve)["text"]
        nothing = verdict(curve, floor=None)
        assert not nothing["decided"] and "was not measured" in nothing["text"]


def test_a_linear_model_of_neighbours_contradicts_all_but_short_range():
    high = {"name": "tokens in place", "test": 1.0, "local": {"name": "trigrams", "test": 0.99}}
    found = verdict(FAR, floor=high)
    assert found["category"] == "open" and "a linear model of trigrams reaches" in found["text"]
    middle = verdict({3: 0.5, 257: 0.95, None: 0.95}, floor=high)
    assert middle["category"] == "open" and "a linear model of trigrams" in middle["text"]
    placed = high | {"local": {"name": "trigrams", "test": 0.5}}
    assert verdict(FAR, floor=placed)["decided"], "places are no neighbours"


# --------------------------------------------------------------- confidence, floor, ratios


def test_confidence_follows_seeds_and_test_size():
    near = {3: [0.80, 0.83, 0.86], 300: [0.88, 0.89, 0.90], None: [0.88, 0.9, 0.92]}
    near |= {125: near[3]}
    same = {key: [np.mean(value)] * 3 for key, value in near.items()}
    unsure, few = verdict(near), verdict(same, test_size=50)
    sure = verdict(same, test_size=1_000_000)
    assert sure["confidence"] == 1.0 and unsure["confidence"] < 0.99 and few["confidence"] < 0.9
    assert sure["decided"] and not few["decided"] and "confidence" in few["text"]


def test_a_border_that_was_not_tried_leaves_the_verdict_undecided():
    found = verdict({9: 0.5, 601: 0.9, None: 0.9})
    assert found["category"] == "long range" and not found["decided"]
    assert "a field of 125 or 500, the border to another verdict, was not tried" in found["text"]
    assert verdict({125: 0.5, 500: 0.5, 601: 0.9, None: 0.9})["decided"]
    assert verdict({125: 0.5, 499: 0.9, None: 0.9})["decided"]


def test_the_floor_is_no_probe_below_chance_if_another_is_above():
    probes = dict(trigrams=dict(validation=0.9, test=0.5), bigrams=dict(validation=0.8, test=0.7))
    assert floor_of(probes, 0.6)["name"] == "bigrams"
    assert floor_of(probes, 0.8)["name"] == "chance"


def test_chance_is_no_success_and_failures_are_left_out():
    rows = points({3: 0.5, None: 0.505})
    assert "train longer" in summarise(rows, 0.5, 1000, 100)["verdict"]["text"]
    failed = dict(rows[0], test=None, validation=None)
    assert summarise([failed], 0.5, 1000, 100)["curve"] == []


def test_the_floor_is_chosen_on_validation():
    probes = {"bag_of_tokens": {"validation": 0.6, "test": 0.58}, "majority": 0.5,
              "trigrams": {"validation": 0.55, "test": 0.7},
              "tokens_in_place": {"validation": 0.7, "test": 0.65}}  # fmt: skip
    found = floor_of(probes, 0.5)
    assert (found["name"], found["test"]) == ("tokens in place", 0.65)
    assert found["local"] == {"name": "bag of tokens", "test": 0.58}
    assert floor_of(probes, 0.9)["name"] == "chance" and floor_of(None, 0.5) is None


def report(**changes):
    rows = points({61: 0.6, 129: 0.7, 241: 0.75, None: 0.8})
    base = {"task": "image", "chance": 0.1, "length": 1024, "diagnostics": {},
            "points": rows[:-3], "global": rows[-3:], "options": {"task_options": {}},
            "data": {"examples": {"test": 10_000}, "stands_in_for": None}}  # fmt: skip
    return base | changes


def test_kernels_of_layers_are_told_from_what_a_stack_sees():
    found = judge(report())
    assert found["ratio"]["receptive_field"] == 61 and found["ratio"]["kernels"] == [16] * 4
    assert found["layer_ratio"]["receptive_field"] == 241
    assert found["layer_ratio"]["kernels"] == [61] * 4
    assert found["layer_ratio"]["ratio"] == pytest.approx(0.75 / 0.8)
    shallow = judge(report(options={"training": {"depth": 2}}))
    assert shallow["layer_ratio"] is None, "two layers of kernel 61 see 121 positions"


def test_other_data_are_put_beside_nothing_published():
    assert judge(report())["published"]["ratio"] == 0.925
    stand_in = {"examples": {"test": 10_000}, "stands_in_for": "the images of the study"}
    for changes in ({"data": stand_in}, {"options": {"quick": True}},
                    {"options": {"task_options": {"color": True}}}):  # fmt: skip
        assert judge(report(**changes))["published"] is None
    assert judge(report(options={"task_options": {"seed": 1}}))["published"]
