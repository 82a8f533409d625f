"""``longlens run NAME`` from the command line to the collected results."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from longlens.cli.main import main
from longlens.experiments.catalog import NAMES, find
from longlens.experiments.standins import quick_data, shrink
from longlens.report.results import read_results
from longlens.runs.folders import find_runs
from longlens.runs.results import read_table, write_labels
from longlens.training.options import TrainOptions

MINE = """
from longlens.experiments.catalog.base import Experiment, Run

SIZES = {"length": 16, "train": 32, "validation": 8, "test": 8}
BASE = {"task": "cumsum", "task_options": SIZES, "root": ROOT, "dim": 8, "depth": 1, "steps": 2}
EXPERIMENT = Experiment(
    name="mine", title="A sum", source="here", metric="r2", rows=("LaS", "LSTM"), columns=("sum",),
    runs=(Run("LaS", "sum", {**BASE, "mixer": "las", "batch_size": 8, "device": "cpu"}),
          Run("LSTM", "sum", {**BASE, "mixer": "lstm", "batch_size": BATCH, "device": "cpu"})),
    published={"LaS": {"sum": 0.9}}, notes=("a note",),
)
"""


def write_mine(tmp_path, batch=8):
    path = tmp_path / "mine.py"
    path.write_text(f"ROOT = {str(tmp_path / 'data')!r}\nBATCH = {batch}\n{MINE}")
    return str(path)


def check_quick(name, runs):
    experiment = find(name)
    records = find_runs(runs / f"{name}-quick")
    assert len(records) == len(experiment.runs)
    for run in records:
        assert run.get("status") == "quick" and run.is_finished, (run.name, run.get("error"))
        assert "no result" in run.get("stands_in_for")
    labels = json.loads((runs / f"{name}-quick" / "experiment.json").read_text())
    assert labels["quick"] and labels["experiment"] == f"{name}-quick"
    assert "no results" in labels["title"]
    assert {run.name for run in records} == set(labels["runs"])


def test_a_quick_experiment_from_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "users-own"))
    runs = tmp_path / "runs"
    assert main(["run", "table7", "--quick", "--runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "--quick: 6 runs" in out and "no results" in out and "6/6" in out
    check_quick("table7", runs)
    assert not (tmp_path / "users-own").exists()
    assert main(["collect", str(runs / "table7-quick")]) == 1  # never by accident
    assert "no results" in capsys.readouterr().err
    path = tmp_path / "quick.json"
    assert main(["collect", str(runs / "table7-quick"), "-o", str(path)]) == 0
    assert "6 runs (6 finished)" in capsys.readouterr().out
    content = read_table(path)
    assert content.quick and content.published["LaS"]["Select"] == 0.783
    assert [record.row for record in content.records[:3]] == ["Vanilla Attention"] * 3
    assert all("no result" in record.data["stands_in_for"] for record in content.records)


def test_selection_on_test_is_kept_when_quick_and_said_in_the_record(tmp_path, capsys):
    words = ["run", "readings", "--quick", "--runs", str(tmp_path), "--only", "Text"]
    rows = ["LaS", "schedule plateau", "all of train, selected on test"]
    assert main([*words, *(word for row in rows for word in ("--only", row))]) == 0
    found = {run.name: run for run in find_runs(tmp_path / "readings-quick")}
    assert {name: run.data["selected_on"] for name, run in found.items()} == {
        "las--text--0": "validation",
        "schedule-plateau--text--0": "validation",
        "all-of-train-selected-on-test--text--0": "test",
    }
    metrics = found["all-of-train-selected-on-test--text--0"].metrics
    assert metrics["validation"] == metrics["test"]
    path = tmp_path / "quick.json"
    assert main(["collect", str(tmp_path / "readings-quick"), "-o", str(path)]) == 0
    assert "test" in [record.data["selected_on"] for record in read_table(path).records]


def collected(name, only, tmp_path):
    """The results of some quick runs of an experiment."""
    words = [word for pattern in only for word in ("--only", pattern)]
    assert main(["run", name, "--quick", "--runs", str(tmp_path), *words]) == 0
    path = tmp_path / f"{name}.json"
    assert main(["collect", str(tmp_path / f"{name}-quick"), "-o", str(path)]) == 0
    return {(r.row, r.column): r for r in read_table(path).records}, path


def test_a_run_fills_a_row_of_speed_and_memory(tmp_path):
    cells, path = collected("cost", ["LaS-chunk"], tmp_path)
    rows, columns = ("XFM", "LaS-chunk"), ("Speed", "Mem.")
    assert set(cells) == {(row, column) for row in rows for column in columns}
    for column in columns:
        found = {row: cells[row, column].metrics["test"] for row in rows}
        assert found["XFM"]["ratio"] == 1.0
        quotient = found["LaS-chunk"]["measured"] / found["XFM"]["measured"]
        assert found["LaS-chunk"]["ratio"] == pytest.approx(quotient, rel=1e-4)
    memory = cells["XFM", "Mem."]
    assert memory.metrics["test"]["measured"] == memory.peak_memory_mib
    from longlens.report.formats import text_table

    (experiment,) = read_results([path]).experiments
    (line,) = [row for row in text_table(experiment).rows if row[0] == "XFM"]
    assert line[1].startswith("1.00× [stand-in] [quick]") and line[1].endswith("(1.00×)")


def test_a_run_fills_a_row_of_heads_that_are_off(tmp_path):
    cells, _ = collected("heads", ["LaS, ListOps"], tmp_path)
    assert [column for _, column in cells] == ["none", *map(str, range(1, 9))]
    first = cells["LaS, ListOps", "none"]
    for head, value in first.ablations["heads"].items():
        assert cells["LaS, ListOps", head].metrics == {"test": {"accuracy": value}}
        assert not cells["LaS, ListOps", head].curves
    assert first.curves and first.metrics["test"]["accuracy"] is not None


def test_a_fitted_model_is_marked_and_never_comparable(tmp_path):
    from longlens.report.cells import table

    cells, path = collected("fit", ["LaS, ListOps"], tmp_path)
    assert [column for _, column in cells] == ["train and validation", "test"]
    (experiment,) = read_results([path]).experiments
    cell = table(experiment)["LaS, ListOps"]["test"]
    assert "validation trained on" in [word for word, _ in cell.marks] and not cell.comparable


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "table7"])
def test_every_experiment_is_quick(name, tmp_path):
    assert main(["run", name, "--quick", "--runs", str(tmp_path)]) == 0
    check_quick(name, tmp_path)


def test_ones_own_experiment_runs_and_is_collected(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = write_mine(tmp_path)
    assert main(["run", mine, "--seeds", "2"]) == 0
    folders = {run.folder.name for run in find_runs("runs/mine")}
    assert folders == {f"{row}--sum--{seed}" for row in ("las", "lstm") for seed in (0, 1)}
    assert main(["collect", "runs/mine"]) == 0
    content = read_table(tmp_path / "results/mine.json")
    assert [(r.row, r.seed) for r in content.records] == [
        ("LaS", 0), ("LaS", 1), ("LSTM", 0), ("LSTM", 1)
    ]  # fmt: skip
    record = content.records[0]
    assert record.status == "finished" and record.error is None
    assert record.options["mixer"] == "las" and record.options["dim"] == 8
    assert "runs" not in record.options and "lr" not in record.options  # the default
    assert record.metrics["test"]["r2"] is not None and record.epochs == 0.5
    assert record.curves["validation.r2"][-1][0] == 2
    assert content.command == "longlens run mine.py"
    assert content.published == {"LaS": {"sum": 0.9}} and content.notes == ("a note",)
    assert main(["run", mine, "--set", "lr=0.5"]) == 1  # a finished run is never overwritten
    assert "other options or data: lr is 0.5" in capsys.readouterr().err


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    mine = write_mine(tmp_path, batch=64)  # more than there are examples
    words = ["run", mine, "--runs", str(tmp_path / "runs"), "--set", "mixer_options={}"]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert "1/2 las--sum--0:" in shown.out and "lstm--sum--0 failed: batch_size" in shown.err


def test_an_error_of_torch_is_kept_in_the_record(tmp_path, monkeypatch):
    from longlens.training.loop import Trainer

    def broken(self):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(Trainer, "run", broken)
    runs = tmp_path / "runs"
    assert main(["run", write_mine(tmp_path), "--runs", str(runs), "--only", "LaS"]) == 1
    (run,) = find_runs(runs)
    assert run.get("status") == "failed" and "RuntimeError: CUDA error" in run.get("error")
    path = tmp_path / "mine.json"
    assert main(["collect", str(runs / "mine"), "-o", str(path)]) == 0
    (record,) = read_table(path).records
    assert record.status == "failed" and "CUDA error" in record.error


def test_patterns_choose_rows_and_columns():
    table2 = find("table2")
    chosen = table2.choose(["las*", "softmax", "Image", "pathfinder-own"])
    assert [(run.row, run.column) for run in chosen] == [
        (row, column)
        for row in ("LaS", "LaS-chunk", "Softmax")
        for column in ("Image", "Pathfinder (own)")
    ]
    assert len(table2.choose()) == len(table2.runs)
    with pytest.raises(
        ValueError, match=r"'imag' matches no row and no column of table2; rows: Tr"
    ):
        table2.choose("imag")
    relative = find("cost").choose(["LaS", "Mem."])  # to a row that is run as well
    assert [(run.row, run.column) for run in relative] == [("XFM", "Speed"), ("LaS", "Speed")]
    with pytest.raises(ValueError, match="published numbers alone"):
        find("lasplus").choose("Megalodon")


def test_what_is_planned():
    readings = find("readings")
    cells = readings.cells(
        only=["LaS", "Image"], seeds=2, budget="8m",
        changes={"graphs": "step", "mixer_options.edge": "renormalize"},
    )  # fmt: skip
    assert [cell["name"] for cell in cells] == ["las--image--0", "las--image--1"]
    cell = cells[1]
    assert readings.place(cell["name"]) == {"row": "LaS", "column": "Image", "seed": 1}
    assert (cell["seed"], cell["runs"], cell["name"]) == (1, "runs/readings", "las--image--1")
    assert cell["budget"] == "8m" and "epochs" not in cell and cell["graphs"] == "step"
    assert cell["mixer_options"] == {"window": 3, "bound": 0.001, "edge": "renormalize"}
    TrainOptions(**cell)
    (one,) = readings.cells(only=["LaS", "Image"], changes={"steps": 5})
    assert one["steps"] == 5 and "epochs" not in one
    assert "epochs" in next(run for run in readings.runs).options  # the declaration is untouched
    later = readings.cells(["LaS", "Image"], seeds=range(1, 3))  # seed 0 was run elsewhere
    assert [cell["name"] for cell in later] == ["las--image--1", "las--image--2"]
    with pytest.raises(ValueError, match=r"got range\(0, 0\)"):
        readings.cells(seeds=range(0))


def test_a_quick_run_keeps_mixer_and_protocol(tmp_path):
    (run,) = find("lasplus").choose(["LaS+", "Pathfinder (own)"])
    small = shrink(run.options, tmp_path)
    for name in ("mixer", "mixer_options", "protocol", "mix_easier", "positions", "bidirectional"):
        assert small[name] == run.options[name]
    assert (
        small["device"] == "cpu"
        and small["root"] == str(quick_data(tmp_path))
        and small["steps"] == 2
    )
    with pytest.raises(ValueError, match="no small data for 'mine'"):
        shrink({"task": "mine"}, tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel2"], "did you mean table2"),
        (["table2", "--only", "LsA"], "matches no row and no column"),
        (["table7", "--seeds", "0"], "seeds must be 1 or more"),
        (["table7", "--seeds", "2-1"], "must be a number (3) or a range (1-2), got '2-1'"),
        (["table7", "--set", "lrr=1"], "'lrr' is no option of train; did you mean 'lr'"),
        (["table7", "--set", "lr"], "--set takes KEY=VALUE"),
        (["table7", "--set", "seed=3"], "--set cannot change 'seed'"),
        (["table7", "--set", "lr=-1"], "Vanilla Attention, Select: lr must be 0 or more"),
        (["table7", "--budget", "soon"], "soon"),
        (["table7", "--quick", "--budget", "1m"], "leave out --budget"),
        (["table7", "--set", "mixer_options.windw=3"], "unknown option of 'softmax' 'windw'"),
        (["table7", "--set", "task_options.size=3"], "has no option 'size'"),
        (["cells.json", "--quick"], "--quick is for experiments"),
        (["cells.json", "--set", "lr=1"], "cells.json cannot be read"),
        (["nothing.py"], "there is no file nothing.py"),
    ],
)
def test_wrong_words_are_found_before_anything_runs(words, message, tmp_path, capsys):
    assert main(["run", *words, "--runs", str(tmp_path / "runs")]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_file_without_an_experiment_is_refused(tmp_path, capsys):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    assert main(["run", str(path)]) == 1
    assert "must set EXPERIMENT" in capsys.readouterr().err


def test_listing_runs_nothing(tmp_path, capsys):
    runs = tmp_path / "runs"
    assert main(["run", "table2", "--list", "--only", "LaS", "--runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and lines[3].startswith("las--image--0  {")
    assert not runs.exists()


def test_help_lists_the_experiments(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = capsys.readouterr().out
    for name in NAMES:
        assert f"  {name}" in out and find(name).title in out


def test_labels_that_are_damaged_are_named(tmp_path, capsys):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text("{")
    assert main(["run", write_mine(tmp_path), "--runs", str(tmp_path / "runs")]) == 1
    assert "experiment.json is damaged" in capsys.readouterr().err


def test_declarations_and_listing_need_no_torch():
    code = """
import sys
sys.modules["torch"] = None
from longlens.cli.main import main
sys.exit(main(["run", "lasplus", "--list", "--only", "LaS+"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lasplus--listops--0" in done.stdout


def test_models_cover_the_padded_length(tmp_path):
    """Batches are padded to a multiple; learned positions must reach that far."""
    from longlens.runs import train_run

    sizes = dict(train=16, validation=8, test=8, min_length=8, max_length=64)
    record = train_run(
        TrainOptions(
            task="listops", task_options=sizes, positions="learned", mixer="linformer", dim=8,
            depth=1, mixer_options={"num_heads": 2}, steps=2, batch_size=8, progress=False,
            runs=str(tmp_path), root=str(tmp_path),
        )
    )  # fmt: skip
    assert record.status == "finished"


def test_commands_for_rows_of_one_experiment_may_begin_at_once(tmp_path):
    experiment, folder = find("table2"), tmp_path / "table2"
    rows = [experiment.cells(only=row) for row in ("LaS", "L", "S", "Softmax")]
    places = [{c["name"]: experiment.place(c["name"]) for c in cells} for cells in rows]
    header = experiment.described()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda some: write_labels(folder, header, some), places * 5))
    labels = json.loads((folder / "experiment.json").read_text())["runs"]
    assert set(labels) == {cell["name"] for cells in rows for cell in cells}
