"""Curves over an option of a run."""

from __future__ import annotations

import json

import pytest

from longlens.cli.main import main
from longlens.lens.curves import _result, context_axis, read_options, replaced
from longlens.runs import train_run
from longlens.runs.record import Record, read_record
from longlens.training.options import TrainOptions

DATA = dict(distance=4, train=64, validation=8, test=16)


@pytest.fixture
def run(tmp_path):
    """A finished run of a mixer with chunks."""
    options = TrainOptions(task="far-order", task_options=DATA, mixer="las", dim=8, depth=1,
                           steps=2, batch_size=8, mixer_options={"num_heads": 2}, progress=False,
                           device="cpu", root=str(tmp_path),
                           runs=str(tmp_path / "runs"))  # fmt: skip
    record = train_run(options)
    return tmp_path / "runs" / record.name


def test_context_examples_length_and_any_option(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, option, values in (
        (["--context", "4,8"], "chunk", [4, 8]),
        (["--examples", "16,32", "--seeds", "2"], "limit", [16, 32]),
        (["--length", "10"], "length", [10]),
        (["--vary", "task_options.distance=4,6"], "distance", [4, 6]),
    ):
        assert main(["curve", str(run), *words]) == 0
        path = tmp_path / "results" / f"curve_{run.name}_{option}.json"
        report = json.loads(path.read_text())
        assert report["kind"] == "curve" and report["columns"] == list(map(str, values))
        assert report["metric"] == "accuracy" and report["rows"] == [run.name]
        for entry in report["records"]:
            options = entry["options"]
            nested = {**options, **options.get("mixer_options", {}), **options["task_options"]}
            assert str(nested[option]) == entry["column"] and entry["status"] == "finished"
            assert 0 <= entry["metrics"]["test"]["accuracy"] <= 1
            assert read_record(run.parent / entry["name"]).seed == entry["seed"]
        assert path.with_suffix(".svg").read_text().startswith("<svg")
    out = capsys.readouterr().out
    assert "training examples 16, seed 1: test" in out


def test_a_point_equal_to_the_run_is_not_trained_again(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = (run / "record.json").stat().st_mtime_ns
    assert main(["curve", str(run), "--vary", "dim=8"]) == 0
    assert (run / "record.json").stat().st_mtime_ns == before
    assert len(list(run.parent.glob("*/record.json"))) == 1


def test_several_runs_are_several_lines(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = replaced(read_options(run, str(run.parent), None), "mixer", "conv")
    record = train_run(replaced(other, "mixer_options", {"kernel_size": 3}))
    words = [str(run), str(run.parent / record.name), "--examples", "16", "--output", "c.json"]
    assert main(["curve", *words]) == 0
    report = json.loads((tmp_path / "c.json").read_text())
    assert [entry["row"] for entry in report["records"]] == [run.name, record.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--context", "wide"], "context must be whole numbers"),
        (["--vary", "dim"], "vary must be KEY=V1"),
        (["--vary", "width=3"], "'width' is no option of longlens train"),
        (["--vary", "dim.inner=3"], "'dim' holds 8, which has no parts"),
        (["--vary", "dim=1.5"], "dim must be a whole number, got 1.5"),
        (["--vary", "lr=fast,slow"], "vary needs numbers, as in lr=1,2,4; got 'fast,slow'"),
        (["--vary", "lr=1e-3,"], "vary needs numbers, as in lr=1,2,4; got '1e-3,'"),
        (["--examples", "16", "--seeds", "0"], "seeds must be 1 or more, got 0"),  # it was none
        (["--examples", "16", "--seeds", "-1"], "seeds must be 1 or more, got -1"),
        (["--examples", "100000"], "limit must be in 1"),
    ],
)
def test_wrong_use_is_named(run, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["curve", str(run), *words]) in (1, 2)
    shown = capsys.readouterr()
    assert message in shown.out + shown.err  # a point that failed is a line of the curve


def test_runs_of_the_same_name_are_refused(tmp_path, capsys):
    """One of the two lines would be missing."""
    assert main(["curve", str(tmp_path / "a/x"), str(tmp_path / "b/x"), "--examples", "4"]) == 1
    assert "two of these runs have the same name" in capsys.readouterr().err


def test_a_point_without_a_finite_result_is_said_to_have_none():
    record = Record(status="finished", metric={"name": "r2"}, metrics={"test": {"r2": None}})
    assert _result(record) == "test —"


def test_a_mixer_without_context_and_a_folder_without_a_run(tmp_path, capsys):
    from longlens.lens.curves import context_axis

    with pytest.raises(ValueError, match="'s4d' has no option that bounds its context"):
        context_axis("s4d", [4])
    assert main(["curve", str(tmp_path), "--examples", "4"]) == 1
    assert "is no run" in capsys.readouterr().err


@pytest.mark.parametrize("mixer", ["fox", "wall", "las-taps", "mta-key"])
def test_a_window_of_smoothing_is_no_context(mixer):
    with pytest.raises(ValueError, match="has no option that bounds its context"):
        context_axis(mixer, [3])
    assert context_axis("local", [3]).key == "mixer_options.window"
