"""An audit by time: what comes next, what is known when it ends early, and what probes decide."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.lens.audit import AuditOptions, timed, timed_audit
from longlens.lens.audit.judge import judge
from longlens.lens.audit.shown import shown_examples
from longlens.lens.audit.timed import order
from longlens.lens.audit.verdict import summarise
from longlens.lens.probe import Prober
from longlens.report.audit_chart import draw_audit
from longlens.report.audits import audit_text
from longlens.tasks import import_arrays, load

DATA = dict(distance=8, train=160, validation=40, test=100)


def options(tmp_path: Path, **values) -> AuditOptions:
    given = dict(task="far-order", task_options=DATA, fields=(3, 5, 9, 17), progress=False,
                 runs=str(tmp_path / "runs"), root=str(tmp_path))  # fmt: skip
    return AuditOptions(**(given | values))


def test_the_next_field_is_where_accuracy_changes_most():
    fields = [3, 5, 9, 17, 33, 61, 129]
    seen = {3: 0.5, 129: 0.9}
    assert order(seen, fields) == 17
    assert order(seen | {17: 0.85}, fields) == 5, "between 0.5 and 0.85"
    assert order(seen | {17: 0.52}, fields) == 33, "between 0.52 and 0.9"
    assert order(dict.fromkeys(fields, 0.5), fields) is None


def test_probes_then_trained_models_in_time_with_a_verdict_at_every_step(tmp_path, monkeypatch):
    steps: list[dict] = []
    monkeypatch.setattr(timed, "LEAST", 1.0)
    began = time.monotonic()
    report = timed_audit(
        options(tmp_path, seeds=1), "15s", lambda r: steps.append(json.loads(json.dumps(r)))
    )
    assert time.monotonic() - began < 40
    assert all(step["verdict"]["text"] for step in steps), "from the first step on"
    probes = [(p["where"], p["receptive_field"]) for p in report["probes"] if p["seed"] == 0]
    assert probes[:3] == [("anywhere", None), ("window", 3), ("window", 17)]
    assert len(probes) == 6
    assert report["global"] and report["global"][0]["mixer"] == "s4d"
    assert list((tmp_path / "runs").glob("*/record.json")), "trained models are runs like others"
    again = json.loads(json.dumps(report))
    assert json.loads(json.dumps(judge(again))) == {key: again[key] for key in judge(again)}
    assert "probe 9" in audit_text(report) and "probes" in draw_audit(report)


def test_an_interruption_gives_the_verdict_so_far(tmp_path, monkeypatch):
    whole = Prober.probe
    calls = []

    def interrupted(self, where, reach, seed):
        calls.append(where)
        if len(calls) > 5:  # two of them find out how long a probe takes
            raise KeyboardInterrupt
        return whole(self, where, reach, seed)

    monkeypatch.setattr(Prober, "probe", interrupted)
    report = timed_audit(options(tmp_path), "2m")
    assert len(report["probes"]) == 3 and report["verdict"]["text"]
    assert "interrupted" in report["open"][-1]


def test_too_little_time_says_what_is_open(tmp_path):
    report = timed_audit(options(tmp_path, mixers=()), "0.2s")
    assert report["verdict"]["category"] == "open" and report["open"]


def test_a_picture_that_was_not_drawn_is_not_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = [f"task_options.{name}={value}" for name, value in DATA.items()]
    assert main(["audit", "far-order", "--budget", "0.1s", "--no-training", "--root", str(tmp_path),
                 *(word for size in sizes for word in ("--set", size))]) == 0  # fmt: skip
    assert Path("results/audit_far-order.json").exists()
    assert not Path("results/audit_far-order.svg").exists()
    assert "audit_far-order.svg" not in capsys.readouterr().out


def test_the_command_by_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path))
    rng, y = np.random.default_rng(0), np.arange(600) % 2
    x = rng.integers(0, 6, (600, 60))
    x[:, 30], x[:, 32] = 6 + y, 6
    import_arrays("mine", x, y, test=0.5, root=tmp_path)
    words = ["audit", "mine", "--fields", "1,2,3,9", "--budget", "20s", "--no-training"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "without looking" in captured.err and "left out" in captured.err
    report = json.loads((tmp_path / "results" / "audit_mine.json").read_text())
    assert report["verdict"]["category"] == "short range" and report["verdict"]["decided"]
    assert report["ranges"]["of_gain"]["0.95"]["receptive_field"] == 1
    assert report["options"]["total"] == "20s" and not (tmp_path / "runs").exists()
    assert main(["audit", "mine", "--quick", "--budget", "1m"]) == 1
    assert "one of budget" in capsys.readouterr().err


# --------------------------------------------------------------- what probes decide


def probes(accuracies: dict[int | None, float], count=400, chance=0.5, length=1000, **trained):
    """A summary of probes with so many right, three seeds each, and of trained models."""
    points = []
    for reach, accuracy in accuracies.items():
        name = f"probe {reach}" if reach else "probe, anywhere"
        for seed in range(3):
            right = np.arange(count) < accuracy * count
            points.append(dict(model=name, receptive_field=reach, seed=seed, right=right,
                               validation=accuracy, test=right.mean(), probe=True))  # fmt: skip
    for name, (accuracy, seeds) in trained.items():
        points += [dict(model=name, receptive_field=None, seed=seed, validation=accuracy,
                        test=accuracy) for seed in range(seeds)]  # fmt: skip
    floor = {"name": "bigrams", "test": 0.5, "local": {"name": "bigrams", "test": 0.5}}
    return summarise(points, chance, count, length, floor)


def test_a_window_that_explains_all_there_is_needs_no_other_model():
    verdict = probes({3: 0.55, 33: 0.995, None: 0.995})["verdict"]
    assert verdict["category"] == "short range" and verdict["decided"]
    few = probes({3: 0.5, 33: 1.0, None: 1.0}, count=10)["verdict"]
    assert not few["decided"], "ten examples prove little"


@pytest.mark.parametrize(
    "accuracies", [{3: 0.55, 33: 0.8, None: 0.8}, {3: 0.5, 513: 0.6, None: 0.9}]
)
def test_what_probes_say_alone_is_not_decided(accuracies):
    verdict = probes(accuracies)["verdict"]
    assert not verdict["decided"] and "random features alone" in verdict["text"]
    assert verdict["confidence"] > 0.9


def test_a_trained_model_that_is_better_takes_over_and_one_that_lags_is_listed():
    better = probes({3: 0.55, 33: 0.8, None: 0.8}, s4d=(0.95, 1))
    assert better["best"]["model"] == "s4d" and better["verdict"]["seeds"] == 1
    assert not better["verdict"]["decided"] and better["verdict"]["confidence"] is None
    worse = probes({3: 0.55, 33: 0.995, None: 0.995}, s4d=(0.7, 1))
    assert worse["verdict"]["decided"] and "s4d" in [row["model"] for row in worse["curve"]]


def test_examples_are_drawn_together_for_all_probes():
    """Two probes that are right about the same examples do not differ by chance of the draw."""
    same = probes({33: 0.8, None: 0.8})
    assert same["ranges"]["of_gain"]["0.99"]["interval"] == [33, 33]
    apart = probes({33: 0.78, None: 0.8})
    assert apart["ranges"]["of_gain"]["0.95"]["interval"] == [33, None]


@pytest.mark.parametrize("name", ["lag", "shift-above", "listops", "needle"])
def test_examples_are_drawn_as_a_curve_or_a_text(tmp_path, name):
    sizes = dict(train=20, validation=4, test=9)
    if name == "listops":
        sizes |= dict(min_length=10, max_length=60)
    task = load(name, tmp_path, **sizes)
    shown = shown_examples(task)
    assert [each["what"] for each in shown] == ["typical", "longest"][: 1 + (name == "listops")]
    assert shown[-1]["length"] == task["test"].lengths.max()
    text = audit_text({"verdict": {"text": "open"}, "shown": shown})
    assert f"Typical example, {shown[0]['length']:,} positions: {shown[0]['label']}" in text
    if name == "shift-above":
        assert len(shown[0]["curve"]) == 240 and "┤" in text
    if name == "needle":
        assert " key " in text
