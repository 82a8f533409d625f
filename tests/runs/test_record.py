"""The record of a run: what earlier versions wrote is read, what is written is read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longlens.report.results import read_results
from longlens.runs import train_run
from longlens.runs.document import SCHEMA, read_document, seconds_between
from longlens.runs.record import Record, RecordWriter, read_record
from longlens.runs.results import check_same_data, read_table
from longlens.training.log import read_curves
from longlens.training.options import TrainOptions, difference, recorded_identity

OLD = Path(__file__).parent / "old"  # written by commit a5f454b, schema 1
RESULTS = Path(__file__).parents[2] / "results"


def raw(path):
    return json.loads(path.read_text())


def test_a_record_of_schema_1_is_read():
    old, record = raw(OLD / "run/record.json"), read_record(OLD / "run")
    assert old["schema"] == 1 and "train_seconds" not in old
    assert record.train_seconds == old["speed"]["seconds"] and "seconds" not in record.speed
    assert record.wall_seconds == 0.0  # it began and ended within a second
    assert record.data["identity"] == old["data"]["identity"] and record.value("test") == 0.625
    kept = {key: value for key, value in old.items() if key not in ("schema", "speed")}
    assert {key: getattr(record, key) for key in kept} == kept


def test_a_run_of_schema_1_counts_as_done(tmp_path):
    """Its options are today's, and what it was is not lost when it is written anew."""
    record = read_record(OLD / "run")
    known = {name: v for name, v in record.options.items() if name != "tensorboard"}  # now log
    options = TrainOptions.from_values(known)
    assert not difference(options.identity(), recorded_identity(record.options))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "record.json").write_bytes((OLD / "run/record.json").read_bytes())
    writer = RecordWriter(folder)
    writer.event("nothing")
    writer.close()
    assert raw(folder / "record.json")["schema"] == SCHEMA
    assert replace(read_record(folder), events=[]) == record


@pytest.mark.parametrize("path", [OLD / "curve.json", *sorted(RESULTS.glob("*.json"))], ids=str)
def test_committed_results_are_read_and_mean_the_same(path):
    old, new = raw(path), read_document(path)
    for before, after in zip(old.get("points", []), new.get("points", []), strict=True):
        seconds = before["seconds"] if old["schema"] == 1 else before["train_seconds"]
        assert after["train_seconds"] == seconds and "seconds" not in after
    if old.get("kind", "table") not in ("table", "curve"):
        assert {k: v for k, v in new.items() if k not in ("schema", "points", "global")} == {
            k: v for k, v in old.items() if k not in ("schema", "points", "global")
        } | ({"wall_seconds": new["wall_seconds"]} if "wall_seconds" in new else {})
        return
    table = read_table(path)
    assert len(table.records) == len(old["records"]) and table.records
    for before, after in zip(old["records"], table.records, strict=True):
        assert (after.row, after.column) == (str(before["row"]), str(before["column"]))
        same = ["seed", "status", "options", "data", "metric", "curves"]
        if before["status"] == "finished":
            seconds = before["speed"]["seconds"] if old["schema"] == 1 else before["train_seconds"]
            assert after.train_seconds == seconds <= after.wall_seconds + 1
            same += ["metrics", "steps"]
        else:  # stopped: kept for its curves, without a result
            assert not after.is_finished and not after.metrics and after.curves
        assert all(getattr(after, key) == before.get(key, {}) for key in same)  # no empty curves
    check_same_data(table.records)


def test_curves_of_schema_1_have_the_wall_time_of_everything_else():
    """There it was training's own time."""
    (first, _), (old, _) = (
        read_table(OLD / "curve.json").records,
        raw(OLD / "curve.json")["records"],
    )
    assert old["wall_seconds"] == old["speed"]["seconds"] == first.train_seconds
    assert first.wall_seconds == seconds_between(old["started"], old["ended"])


def test_an_option_that_a_record_does_not_state_has_its_default():
    record = Record(status="finished", options={"task": "listops", "lr": 0.1})
    assert record.get("views") == 1 and record.get("lr") == 0.1 and record.get("steps") is None
    assert Record(status="finished").get("views") is None  # nothing is known of this one


def test_what_is_written_is_read_back(tmp_path):
    options = TrainOptions(
        task="cumsum", task_options=dict(length=16, train=8, validation=4, test=4), dim=8, depth=1,
        steps=2, batch_size=4, progress=False, runs=str(tmp_path), root=str(tmp_path), name="a",
    )  # fmt: skip
    record = train_run(options)
    assert raw(tmp_path / "a/record.json")["schema"] == SCHEMA
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert 0 < record.train_seconds <= record.wall_seconds
    assert len(record.data["identity"]) == 64
    thinned = record.thinned(read_curves(tmp_path / "a"))
    assert Record.from_json(json.loads(json.dumps(thinned.to_json()))) == thinned
    assert thinned.epochs == 1.0 and "runs" not in thinned.options and thinned.curves
    assert thinned.thinned() == replace(thinned, curves={})
    (experiment,) = read_results([tmp_path]).experiments
    assert experiment.records[0].train_seconds == thinned.train_seconds


def test_a_field_that_no_record_has_is_not_written(tmp_path):
    writer = RecordWriter(tmp_path / "a")
    with pytest.raises(TypeError, match="stauts"):
        writer.update(stauts="running")
    writer.close()
    assert not (tmp_path / "a/record.json").exists()


def test_a_clock_that_was_set_back_makes_no_negative_time(tmp_path):
    writer = RecordWriter(tmp_path / "run")
    writer.update(status="running", started="2999-01-01T00:00:00.000+00:00")
    writer.end("stopped")
    writer.close()
    record = read_record(tmp_path / "run")
    assert record.ended is not None and record.wall_seconds is None
