"""An experiment's records as one compact file."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from longlens.cli.main import main
from longlens.report.cells import Metric
from longlens.runs.document import SCHEMA
from longlens.runs.record import thin
from longlens.runs.results import (
    Header,
    collect,
    merge,
    read_table,
    write_labels,
    write_results,
)
from longlens.training.options import TrainOptions

HEADER = {
    "schema": 1, "experiment": "mine", "title": "Mine", "source": "here", "metric": "accuracy",
    "command": "longlens run mine", "rows": ["LaS", "S4"], "columns": ["Text", "Image"],
    "kind": "table", "published": {"LaS": {"Image": 70.44}}, "notes": ["n"], "quick": False,
}  # fmt: skip


def write_run(folder, name, status="finished", accuracy=0.5, started="2026-01-01T00:00:00+00:00"):
    path = folder / name
    path.mkdir(parents=True)
    record = {
        "schema": 1, "name": name, "status": status, "started": started,
        "options": TrainOptions(task="image", lr=0.01).to_json(),
        "provenance": {"commit": "abc"}, "clean": True, "data": {"identity": "f" * 64},
        "metric": {"name": "accuracy", "higher_is_better": True}, "parameters": 7,
    }  # fmt: skip
    if status == "finished":
        both = {"loss": 1.0, "accuracy": accuracy}
        record |= {"ended": "2026-01-01T00:01:30+00:00", "steps": 500, "selected_step": 400,
                   "metrics": {"validation": both, "test": dict(both)}}  # fmt: skip
    if status == "failed":
        record["error"] = "not finite"
    (path / "record.json").write_text(json.dumps(record))
    lines = [
        {"step": step, "epoch": step / 100, "split": "train", "loss": 1 / step, "accuracy": 0.1}
        for step in range(1, 501)
    ]
    (path / "curves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    places = {
        "s4--text--0": ("S4", "Text", 0),
        "las--image--0": ("LaS", "Image", 0),
        "las--image--1": ("LaS", "Image", 1),
        "las--text--0": ("LaS", "Text", 0),
        "las--text--1": ("LaS", "Text", 1),
    }
    runs = {
        name: dict(zip(("row", "column", "seed"), p, strict=True)) for name, p in places.items()
    }
    mine = tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    (mine / "experiment.json").write_text(json.dumps({**HEADER, "runs": runs}))
    write_run(mine, "s4--text--0", "failed")
    write_run(mine, "las--image--0", accuracy=1 / 3)
    write_run(mine, "las--image--1", "running")
    write_run(mine, "las--image--0.old-1", accuracy=0.1)
    write_run(mine, "las--image--0/pretrain", accuracy=0.2)
    write_run(mine, "somebody-else")
    (mine / "las--text--1").mkdir()
    (mine / "las--text--1" / "record.json").write_text("{")
    return mine


def test_every_run_is_kept_with_its_labels(folder):
    table = collect(folder, problems := [])
    assert len(problems) == 1 and "las--text--1/record.json is damaged" in problems[0]
    header = json.loads(json.dumps(table.header()))
    assert {key: header[key] for key in HEADER} == {**HEADER, "schema": SCHEMA}
    found = [(r.row, r.column, r.seed, r.status) for r in table.records]
    assert found == [
        ("LaS", "Text", 1, "failed"),  # damaged
        ("LaS", "Image", 0, "finished"),
        ("LaS", "Image", 1, "stopped"),
        ("S4", "Text", 0, "failed"),
    ]  # what was never begun is not there, nor what was set aside
    damaged, record, cut, failed = table.records
    assert "damaged" in damaged.error and failed.error == "not finite"
    assert "killed, or still running" in cut.error
    assert record.options == {"task": "image", "mixer": "las", "seed": 0, "lr": 0.01}
    assert record.metrics["test"]["accuracy"] == 0.333333
    assert record.epochs == 5.0 and record.wall_seconds == 90.0 and record.steps == 500
    curve = record.curves["train.loss"]
    assert len(curve) == 60 and curve[0] == [1, 1.0] and curve[-1] == [500, 0.002]


@pytest.mark.parametrize("stage", ["finished", "stopped", "running", "failed"])
def test_a_run_that_ended_in_its_pretraining_is_kept_without_numbers(folder, stage):
    write_run(folder, "las--text--0/pretrain", stage)
    (record,) = [r for r in collect(folder, []).records if (r.row, r.column, r.seed)
                 == ("LaS", "Text", 0)]  # fmt: skip
    assert record.name == "las--text--0" and not record.metrics and not record.curves
    assert record.status == ("failed" if stage == "failed" else "stopped")


def test_perplexity_is_the_exponential_of_the_loss(folder):
    labels = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**labels, "metric": "perplexity"}))
    table = collect(folder, [])
    record = next(r for r in table.records if r.is_finished)
    assert Metric(table.metric).value(record.metrics["test"]) == pytest.approx(math.e)


def test_the_command_merges_into_what_is_there(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "runs/mine"]) == 0
    assert "results/mine.json: 4 runs (2 failed, 1 finished, 1 stopped)" in capsys.readouterr().out
    first = (tmp_path / "results/mine.json").read_text()
    assert main(["collect", "runs/mine"]) == 0
    assert (tmp_path / "results/mine.json").read_text() == first  # the same again changes nothing
    elsewhere = tmp_path / "gpu" / "mine"
    elsewhere.mkdir(parents=True)
    (elsewhere / "experiment.json").write_text((folder / "experiment.json").read_text())
    write_run(elsewhere, "las--image--0", accuracy=0.9, started="2026-02-01T00:00:00+00:00")
    write_run(elsewhere, "las--text--0", accuracy=0.8)
    assert main(["collect", "gpu/mine"]) == 0
    content = read_table(Path("results/mine.json"))
    by_place = {(r.row, r.column, r.seed): r for r in content.records}
    assert len(by_place) == 5 == len(content.records)
    assert by_place["LaS", "Image", 0].value("test") == 0.9  # the newer
    assert by_place["LaS", "Text", 0].value("test") == 0.8  # new
    assert by_place["S4", "Text", 0].status == "failed"  # stays
    assert main(["collect", "runs/mine"]) == 0  # the older one does not come back
    again = read_table(Path("results/mine.json"))
    assert again == content
    both = ["collect", "runs/mine", "gpu/mine", "-o", "both.json"]
    assert main(both) == 0 and read_table(Path("both.json")) == content


@pytest.mark.parametrize("ended", [None, "2026-01-01T00:00:30+00:00"])  # killed, and stopped
def test_an_older_copy_of_a_run_does_not_replace_its_end(folder, ended):
    table = collect(folder, [])
    cut = replace(table.records[1], status="stopped", ended=ended, metrics={})
    older = replace(table, records=(cut,))
    for merged in (merge(older, table), merge(table, older)):
        (record,) = [r for r in merged.records if r.name == cut.name]
        assert record == table.records[1] and record.is_finished


def test_rows_that_are_no_longer_declared_stay(folder):
    table = collect(folder, [])
    older = replace(table, records=(replace(table.records[1], row="Old", seed=5),))
    merged = merge(table, older)
    assert merged.rows == ("LaS", "S4", "Old") and merged.records[-1].row == "Old"


def test_an_experiment_that_was_edited_keeps_its_earlier_runs(tmp_path):
    def header(rows, columns):
        return Header(name="mine", title="", rows=rows, columns=columns)

    place = {"row": "LaS", "column": "Text", "seed": 0}
    write_labels(tmp_path, header(("LaS", "S4"), ("Text",)), {"las--text--0": place})
    write_run(tmp_path, "las--text--0", accuracy=0.5)
    other = {"row": "L", "column": "Image", "seed": 0}
    write_labels(tmp_path, header(("L",), ("Image",)), {"l--image--0": other})
    table = collect(tmp_path, [])
    assert table.rows == ("L", "LaS") and table.columns == ("Image", "Text")
    assert [(r.row, r.value("test")) for r in table.records] == [("LaS", 0.5)]


def test_what_does_not_fit_is_refused(folder, tmp_path, capsys):
    table = collect(folder, [])
    with pytest.raises(ValueError, match="name is 'mine' and 'other'"):
        merge(table, replace(table, name="other"))
    with pytest.raises(ValueError, match="quick is False and True"):
        merge(table, replace(table, quick=True))
    assert main(["collect", str(tmp_path)]) == 1
    assert "has no experiment.json" in capsys.readouterr().err
    (folder / "experiment.json").write_text("{")
    assert main(["collect", str(folder)]) == 1
    assert "is damaged" in capsys.readouterr().err
    (folder / "experiment.json").write_text(json.dumps({**HEADER, "schema": 9, "runs": {}}))
    assert main(["collect", str(folder)]) == 1
    assert "another version" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text('{"schema": 1, "records": [{"status": "finished"}]}')
    with pytest.raises(ValueError, match=r"bad\.json is damaged \(records\[0\].row is missing"):
        read_table(tmp_path / "bad.json")


def test_one_record_a_line(folder, tmp_path):
    path = tmp_path / "deep" / "mine.json"
    table = collect(folder, [])
    write_results(path, table)
    assert read_table(path) == table
    assert sum(line.startswith('{"status"') for line in path.read_text().splitlines()) == 4
    write_results(path, replace(table, records=()))
    assert read_table(path).records == ()


def test_thinning_keeps_the_ends():
    assert thin([1, 2, 3], 5) == [1, 2, 3]
    assert thin(list(range(1000)), 60)[0] == 0 and thin(list(range(1000)), 60)[-1] == 999
    assert len(set(thin(list(range(61)), 60))) == 60


def test_no_torch_and_no_numpy_are_needed(folder, tmp_path):
    code = f"""
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from longlens.cli.main import main
sys.exit(main(["collect", {str(folder)!r}, "-o", {str(tmp_path / "x.json")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_on_different_data_are_not_put_into_one_file(folder, tmp_path, capsys):
    other = folder / "las--image--1" / "record.json"
    values = json.loads((folder / "las--image--0" / "record.json").read_text())
    other.write_text(json.dumps({**values, "data": {"identity": "e" * 64}}))
    assert main(["collect", str(folder), "-o", str(tmp_path / "out.json")]) == 1
    text = capsys.readouterr().err
    assert "LaS, Image, seed 0 on ffff" in text and "LaS, Image, seed 1 on eeee" in text
    assert not (tmp_path / "out.json").exists()
