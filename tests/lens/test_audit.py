"""The audit: its parts on made-up numbers and tasks, and the whole end to end at tiny size."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from longlens.cli.main import main
from longlens.config import ModelConfig
from longlens.lens.audit import AuditOptions, audit
from longlens.lens.audit.diagnostics import Sample, diagnose, mutual_information
from longlens.lens.audit.judge import judge
from longlens.lens.audit.options import kernels
from longlens.lens.audit.probe import ngram_counts
from longlens.lens.audit.run import _chance, load_task
from longlens.lens.audit.shuffle import shuffled, shuffled_batch
from longlens.models.build import build_model
from longlens.report.audit_chart import draw_audit
from longlens.report.audits import audit_text
from longlens.tasks import import_arrays, load

TINY = dict(distance=5, train=64, validation=16, test=32)
WORDS = [f"{key}={value}" for key, value in TINY.items()]
RESULTS = Path(__file__).parents[2] / "results"
SMALL = ["--set", "dim=8", "--set", "depth=2", "--set", "batch_size=8", "--steps", "2"]


# --------------------------------------------------------------- parts


@pytest.mark.parametrize(("field", "depth"), [(1, 3), (3, 4), (61, 4), (62, 4), (100, 7)])
def test_kernels_add_up_to_the_field_and_the_model_sees_no_further(field, depth):
    sizes = kernels(field, depth)
    assert len(sizes) == depth and 1 + sum(k - 1 for k in sizes) == field
    config = ModelConfig(mixer="conv", mixer_options={"kernel_size": sizes}, dim=4, depth=depth,
                         vocab_size=3, head="denoising")  # fmt: skip
    model = build_model(config).double()
    h = torch.randn(1, 2 * field + 5, 4, dtype=torch.double, requires_grad=True)
    out = model.backbone(h)[0, field + 2]
    (gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), h)
    reached = gradient.abs().sum((0, 2)).nonzero().flatten()
    assert int(reached.max() - reached.min()) + 1 == field


def test_a_list_of_mixer_options_needs_a_value_for_each_block():
    with pytest.raises(ValueError, match="kernel_size must have a value for each of the 3 blocks"):
        build_model(ModelConfig(mixer="conv", mixer_options={"kernel_size": [3, 3]}, depth=3))


def test_shuffling_keeps_windows_or_their_content():
    tokens, rng = np.arange(23), np.random.default_rng(0)
    within = shuffled(tokens, 5, "within", rng)
    assert not np.array_equal(within, tokens)
    for start in range(0, 23, 5):
        assert set(within[start : start + 5]) == set(tokens[start : start + 5])
    between = shuffled(tokens, 5, "between", rng)
    assert sorted(between) == list(range(23)) and not np.array_equal(between, tokens)
    assert sum(b - a == 1 for a, b in pairwise(between)) >= 18
    x = torch.arange(20).repeat(2, 1)
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    for kind in ("within", "between"):
        out = shuffled_batch(x, mask, 4, kind, torch.Generator().manual_seed(0))
        assert torch.equal(out[1, 13:], x[1, 13:]) and set(out[1, :13].tolist()) == set(range(13))
        assert not torch.equal(out, x)


def test_mutual_information_finds_the_one_position_that_tells():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    rows = [rng.integers(0, 200, 10) for _ in labels]
    for row, label in zip(rows, labels, strict=True):
        row[4] = 66 * label
    found = mutual_information(Sample(rows, labels), 200, 3)
    assert found["most"]["position"] == 4 and found["most"]["bits"] > 1.4
    assert found["share_above_floor"] <= 0.3
    assert all(abs(p["bits"]) < 0.1 for p in found["positions"] if p["position"] != 4)


def test_diagnostics_tell_counts_from_order(tmp_path):
    """Bag of tokens solves the one task, bigrams the other, and shuffling takes that away."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    counts = rng.integers(0, 4, (400, 40)) + 2 * (rng.random((400, 40)) < 0.4 * y[:, None])
    import_arrays("counts", counts, y, root=tmp_path)
    pairs = np.where(rng.random((400, 20, 1)) < 0.5, [[0, 1]], [[2, 3]])
    pairs = np.where(y[:, None, None] == 1, pairs[..., ::-1], pairs).reshape(400, 40)
    padded = np.full((400, 60), 4)
    padded[:, ::3], padded[:, 1::3] = pairs[:, ::2], pairs[:, 1::2]
    import_arrays("pairs", padded, y, root=tmp_path)
    found = diagnose(load("counts", tmp_path), quick=True)
    assert found["bag_of_tokens"]["test"] > 0.9 and 0.3 < found["majority"] < 0.7
    found = diagnose(load("pairs", tmp_path), quick=True)
    assert found["bag_of_tokens"]["test"] < 0.75 < 0.95 < found["bigrams"]["test"]
    mixed = {(r["kind"], r["window"]): r["test"] for r in found["shuffled_trigrams"]}
    assert mixed["within", 16] + 0.1 < mixed["between", 16]


# --------------------------------------------------------------- end to end


def test_the_command_end_to_end_and_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    words = [
        "audit",
        "far-order",
        *SMALL,
        "--set",
        "mixer_options.s4d.state=4",
        "--fields",
        "1,5,global",
        "--seeds",
        "2",
        "--quiet",
    ]
    words += [word for pair in WORDS for word in ("--set", f"task_options.{pair}")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"^s4d +all +2 ", out, re.MULTILINE), "the global model beside the others"
    assert "certificate" in out and "majority" in out and "most informative" in out
    path = tmp_path / "results" / "audit_far-order.json"
    report = json.loads(path.read_text())
    assert report["kind"] == "audit" and report["command"].startswith("longlens audit far-order")
    assert [(p["receptive_field"], p["seed"]) for p in report["points"]] == [
        (1, 0), (5, 0), (1, 1), (5, 1),
    ]  # fmt: skip
    assert all(p["steps"] == 2 and p["test"] is not None for p in report["points"])
    assert [p["mixer"] for p in report["global"]] == ["s4d", "s4d"]
    assert report["certificate"]["holds"] and report["provenance"]["torch"]
    assert {row["kind"] for row in report["shuffled_model"]["rows"]} == {None, "within", "between"}
    ElementTree.fromstring((tmp_path / "results" / "audit_far-order.svg").read_text())
    records = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/record.json")}
    assert len(records) == 6
    assert main(words) == 0  # nothing is trained a second time
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/record.json")} == records
    again = json.loads(path.read_text())
    assert again["points"] == report["points"] and again["verdict"] == report["verdict"]


def test_listops_is_reported_by_operator_and_depth(tmp_path):
    data = dict(train=32, validation=8, test=40, min_length=5, max_length=40, max_depth=4)
    options = AuditOptions("listops", data, fields=(3,), mixers=(), seeds=2, steps=1,
                           training=dict(dim=8, depth=1, batch_size=8), diagnostics=False,
                           progress=False,
                           runs=str(tmp_path / "runs"), root=str(tmp_path))  # fmt: skip
    report = audit(options)
    table = report["groups"]["operator"]["conv 3"]
    assert sum(cell["count"] for cell in table.values()) == 40
    assert "decided" in report["groups"] and report["global"] == []
    assert report["published"] is None, "expressions of 5 to 40 tokens are not those of the study"
    assert report["verdict"]["floor"]["name"] and "mutual_information" not in report["diagnostics"]


def test_a_user_task_with_a_read_out_free_spec_and_floats(tmp_path):
    rng = np.random.default_rng(0)
    import_arrays("mine", rng.standard_normal((60, 12)).astype(np.float32), np.arange(60) % 3,
                  root=tmp_path)  # fmt: skip
    options = AuditOptions("mine", seeds=1, steps=1, training=dict(dim=8, depth=1, batch_size=8),
                           fields=(3,), runs=str(tmp_path / "runs"), root=str(tmp_path),
                           progress=False)  # fmt: skip
    report = audit(options)
    assert report["task"] == "mine" and len(report["points"]) == 1 and report["diagnostics"]
    assert "chance" in audit_text(report) and draw_audit(report).startswith("<svg")


def test_a_read_out_task_is_pooled_at_its_last_position(tmp_path):
    options = AuditOptions("far-xor", TINY, fields=(3,), mixers=(), seeds=1, steps=1,
                           training=dict(dim=8, depth=1, batch_size=8), diagnostics=False,
                           progress=False,
                           runs=str(tmp_path / "runs"), root=str(tmp_path))  # fmt: skip
    assert audit(options)["points"][0]["status"] == "finished"


def test_whole_numbers_for_floats_name_the_same_runs_as_the_sweep(tmp_path):
    data = dict(distance=4, train=8, validation=4, test=4)
    training = dict(dim=8, depth=1, batch_size=4, expansion=3)
    report = audit(AuditOptions(
        "far-order", data, fields=(3,), mixers=(), seeds=1, epochs=1, training=training,
        runs=str(tmp_path / "runs"), root=str(tmp_path), progress=False,
    ))  # fmt: skip
    assert (tmp_path / "runs" / report["points"][0]["run"] / "record.json").exists()


def test_two_workers_find_what_one_finds(tmp_path, monkeypatch):
    """Whichever process finishes first: the same report but for times."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as in this process

    def without_times(report):
        times = ("started", "ended", "train_seconds")
        if isinstance(report, dict):
            return {k: without_times(v) for k, v in report.items() if k not in times}
        return [without_times(one) for one in report] if isinstance(report, list) else report

    reports = [
        audit(AuditOptions(
            "far-order", TINY, fields=(3, 5), mixers=("s4d",), seeds=1, steps=2,
            training=dict(dim=8, depth=1, batch_size=8, device="cpu"), workers=workers,
            runs=str(tmp_path / f"runs{workers}"), root=str(tmp_path), progress=False,
        ))
        for workers in (1, 2)
    ]  # fmt: skip
    one, two = map(without_times, reports)
    assert one == two and len(one["points"]) == 2 and one["shuffled_model"]["rows"]


def test_options_of_training_are_those_of_the_audited_task(tmp_path, capsys):
    """--set pixels=numbers is for images: it must not be judged by another task's input."""
    words = ["audit", "image", "--quick", "--set", "pixels=numbers", "--root", str(tmp_path)]
    assert main(words) == 1
    assert "prepare image" in capsys.readouterr().err  # the data are not there; the option is fine


def test_a_run_that_fails_is_a_point_without_accuracy(tmp_path):
    options = AuditOptions("far-order", TINY, fields=(3,), mixers=(), seeds=1, steps=3,
                           training=dict(dim=8, depth=1, batch_size=8, lr=1e30, log_every=1),
                           diagnostics=False, runs=str(tmp_path / "runs"), root=str(tmp_path),
                           progress=False)  # fmt: skip
    report = audit(options)
    assert (
        report["points"][0]["status"] == "failed" and "not finite" in report["points"][0]["error"]
    )
    assert report["verdict"]["category"] == "open"


def test_mixers_that_see_a_block_or_a_window_count_as_bounded(tmp_path):
    options = AuditOptions("far-order", TINY, fields=(3,), seeds=1, steps=1,
                           mixers=("las-chunk", "local", "las", "mega-chunk"),
                           mixer_options={"las-chunk": {"chunk": 4}, "local": {"window": 3},
                                          "mega-chunk": {"chunk": 4}},
                           training=dict(dim=8, depth=2, batch_size=8), diagnostics=False,
                           progress=False,
                           runs=str(tmp_path / "runs"), root=str(tmp_path))  # fmt: skip
    report = audit(options)
    seen = {row["model"]: (row["receptive_field"], row["global"]) for row in report["curve"]}
    assert seen == {"conv 3": (3, False), "las-chunk": (4, False), "local": (5, False),
                    "las": (None, True), "mega-chunk": (None, False)}  # fmt: skip
    assert [point["mixer"] for point in report["global"]] == ["las", "mega-chunk"]
    assert "mega-chunk, in blocks" in draw_audit(report)


def test_a_record_is_judged_anew_without_training(tmp_path, monkeypatch, capsys):
    record = json.loads((RESULTS / "audit_far-order.json").read_text())
    right = record["verdict"]
    record["verdict"] = {"category": "long range", "decided": True, "confidence": 1.0, "text": "!"}
    record["certificate"] = None
    path = tmp_path / "audit_far-order.json"
    path.write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--judge", str(path)]) == 0
    again = json.loads(path.read_text())
    assert again["verdict"] == right
    assert f", changed: {right['text']}" in capsys.readouterr().out
    assert main(["audit", "--judge", str(path)]) == 0
    assert f", unchanged: {right['text']}" in capsys.readouterr().out
    assert again["certificate"]["holds"] and again["points"] == record["points"]
    assert not (tmp_path / "runs").exists()
    (tmp_path / "other.json").write_text("{}")
    for words, message in ((["--judge", "none.json"], "cannot be read"),
                           (["--judge", "other.json"], "no record of an audit"),
                           ([], "give a task"), (["listops", "--judge", "a"], "give a task"),
                           ):  # fmt: skip
        assert main(["audit", *words]) in (1, 2)
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("audit_*.json")), ids=lambda path: path.stem)
def test_the_verdicts_under_results_are_those_of_todays_rules(path):
    record = json.loads(path.read_text())
    judged = judge(record)
    assert {key: record[key] for key in judged} == json.loads(json.dumps(judged)), (
        "longlens audit --judge writes it anew"
    )
    assert record["certificate"] is None or record["certificate"]["holds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cumsum"], "needs a task with classes, but cumsum predicts numbers"),
        (["bogus"], "unknown task 'bogus'"),
        (["far-order", "--mixers", "s4x"], "did you mean"),
        (["far-order", "--set", "mixer_options.las.window=3"], "not among the mixers"),
        (["far-order", "--set", "mixer_options.window=3"], "MIXER.KEY=VALUE"),
        (["far-order", "--fields", "a"], "fields must be numbers"),
        (["far-order", "--fields", "3,3"], "different numbers"),
        (["far-order", "--fields", "0"], "1 or more"),
        (["far-order", "--seeds", "0"], "seeds must be 1 or more, got 0"),
        (["far-order", "--workers", "0"], "workers must be 1 or more, got 0"),
        (["far-order", "--set", "dim"], "KEY=VALUE"),
        (["far-order", "--set", "dims=3"], "'dims' is no option of longlens train"),
        (["far-order", "--set", "dim=wide"], "dim"),
        (["far-order", "--set", "mixer=las"], "'mixer' is an option of the audit itself"),
        (["far-order", "--steps", "1", "--budget", "1m"], "give one of budget"),
        (["far-order", "--steps", "1", "--model-budget", "1m"], "give one of budget"),
        (["far-order", "--set", "task_options.speed=1"], "no option 'speed'"),
        (
            ["far-order", "--quiet", "--fields", "3", "--budget", "soon"],
            "budget must be a duration",
        ),
    ],
)
def test_wrong_use_is_one_clear_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path))
    assert main(["audit", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_stream_of_tokens_has_no_labels(tmp_path):
    import_arrays("stream", np.arange(400) % 7, root=tmp_path)
    with pytest.raises(ValueError, match="stream predicts the next token and has no labels"):
        audit(AuditOptions("stream", root=str(tmp_path)))


def test_trigrams_have_a_direction():
    one, other = (ngram_counts([np.array(word)], 3) for word in ([1, 2, 3], [3, 2, 1]))
    assert not np.array_equal(one, other)
    words = np.array([[a, b, c] for a in range(12) for b in range(12) for c in range(12)])
    used = (ngram_counts([words.ravel()], 3)[0] > 0).mean()
    assert used > 0.5, "they spread over the buckets"


def test_convolutions_of_a_task_that_is_read_out_at_its_end_see_the_field_before_it(tmp_path):
    lag = load("lag", tmp_path, length=32, distance=4, train=8, validation=4, test=4)
    order = load("far-order", tmp_path, distance=4, train=8, validation=4, test=4)
    options = AuditOptions("lag", training=dict(dim=8, depth=2), steps=1)
    made = {task.name: options.train_options(task.spec, "conv", 9, 0) for task in (lag, order)}
    assert made["lag"].bidirectional is False and made["far-order"].bidirectional is None


def test_chance_is_the_best_that_any_class_has_on_test(tmp_path):
    labels = np.array([0] * 21 + [1] * 19 + [0] * 4 + [1] * 16)
    import_arrays("turned", np.zeros((60, 4)), labels, root=tmp_path,
                  split=np.array(["train"] * 40 + ["test"] * 20))  # fmt: skip
    assert _chance(load("turned", tmp_path)) == 0.8


def test_a_cut_that_takes_the_question_away_is_refused(tmp_path):
    options = AuditOptions("lag", dict(length=64, distance=8, train=8, validation=4, test=4),
                           training=dict(length=48), root=str(tmp_path))  # fmt: skip
    with pytest.raises(ValueError, match="length must be 64 or more, got 48"):
        load_task(options)
