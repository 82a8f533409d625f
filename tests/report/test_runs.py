"""Records listed, filtered, compared and drawn."""

import csv
import json
import re
import subprocess
import sys

import pytest

from longlens.cli.main import main
from longlens.cli.show import curve
from longlens.files import locked
from longlens.report.read import differing_options, select, sort
from longlens.report.results import tables_of_runs
from longlens.report.tables import Spread, grouped_rows, render, rows_of
from longlens.runs.folders import find_runs
from longlens.runs.record import LOCK, read_record

BRAILLE = re.compile(r"[\u2801-\u28ff]")


def write_run(root, name, seed=0, lr=0.1, status="finished", accuracy=0.5, curves=(), **more):
    folder = root / name
    folder.mkdir(parents=True)
    record = {
        "schema": 1,
        "name": name,
        "status": status,
        "task": "listops",
        "mixer": "las",
        "protocol": "scratch",
        "seed": seed,
        "options": {"lr": lr, "seed": seed, "mixer_options": {"window": 5}, "dim": 64},
        "provenance": {"commit": "abc", "torch": "2.13"},
        "data": {"identity": "f" * 64},
        "metric": {"name": "accuracy", "higher_is_better": True},
        "parameters": 12345,
        "events": [{"kind": "resume", "time": "2026-01-01T00:00:00+00:00", "step": 3}],
        **more,
    }
    if status == "finished":
        by = {"0": {"accuracy": 0.25, "count": 4}, "1": {"accuracy": 0.75, "count": 4}}
        record |= {
            "metrics": {
                "validation": {"loss": 1.0, "accuracy": accuracy},
                "test": {"loss": 1.1, "accuracy": accuracy - 0.1, "accuracy_by_operator": by},
            },
            "speed": {"seconds": 10.0, "tokens_per_second": 5000.0},
            "steps": 100,
            "selected_step": 90,
        }
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "curves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curves))
    return folder


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path, "a", seed=0, accuracy=0.5)
    write_run(tmp_path, "b", seed=1, accuracy=0.6)
    write_run(tmp_path, "c", seed=0, lr=0.01, accuracy=0.9)
    write_run(tmp_path, "d", seed=1, lr=0.01, status="failed", error="not finite")
    write_run(tmp_path / "a", "pretrain", status="running")
    write_run(tmp_path, "e.old-1")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "record.json").write_text("{")
    return tmp_path


def test_all_records_are_found(root):
    runs = find_runs(root)
    assert [run.name for run in runs] == ["a", "a/pretrain", "b", "c", "d", "torn"]
    assert [run.get("status") for run in runs][-1] == "damaged"
    assert "e.old-1" in [run.name for run in find_runs(root, everything=True)]
    with pytest.raises(ValueError, match="no folder of runs"):
        find_runs(root / "nothing")


def test_columns_reach_everything(root):
    run = read_record(root / "a")
    wanted = {
        "validation": 0.5, "test": 0.4, "test.loss": 1.1, "lr": 0.1, "mixer_options.window": 5,
        "tokens/s": 5000.0, "commit": "abc", "nothing": None, "nothing.at.all": None, "seed": 0,
        "test.accuracy_by_operator.1.accuracy": 0.75,
    }  # fmt: skip
    assert {name: run.get(name) for name in wanted} == wanted


def test_epochs_of_a_run_are_those_that_were_asked_for(tmp_path):
    """Results alone say how many were done."""
    for name, epochs in (("a", 1), ("b", 3)):
        write_run(tmp_path, name, options={"epochs": epochs, "steps": None})
    runs = find_runs(tmp_path)
    assert [run.get("epochs") for run in runs] == [1, 3]
    assert [run.name for run in select(runs, ["epochs=3"])] == ["b"]
    assert runs[0].thinned([{"step": 9, "epoch": 0.5, "split": "train"}]).get("epochs") == 0.5
    assert runs[0].get("steps") == 100  # what was done, whatever was asked for


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (["seed=0", "status=finished"], ["a", "c"]),
        (["lr<0.1"], ["c", "d"]),
        (["lr>=0.1"], ["a", "a/pretrain", "b"]),
        (["name=a,c"], ["a", "c"]),
        (["status!=finished"], ["a/pretrain", "d", "torn"]),
        (["test>0.45"], ["b", "c"]),
        (["lr=0.10"], ["a", "a/pretrain", "b"]),
        (["task<3"], []),
    ],
)
def test_conditions(root, conditions, names):
    assert [run.name for run in select(find_runs(root), conditions)] == names


@pytest.mark.parametrize("words", [["--columns", "name,zzz"], ["--sort", "zzz"], ["--by", "zzz"],
                                   ["--where", "zzz=1"]])  # fmt: skip
def test_a_column_that_is_not_there_is_refused(root, capsys, words):
    assert main(["runs", str(root), *words]) == 1
    assert "there is no column 'zzz'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--columns", "name,lr"], ["--diff"]])
def test_groups_have_columns_of_their_own(root, capsys, words):
    """They were left out without a word."""
    assert main(["runs", str(root), "--by", "lr", *words]) == 2
    assert f"{words[0]} is for single runs" in capsys.readouterr().err


def test_no_runs_are_an_empty_list_for_scripts(root, capsys):
    words = ["runs", str(root), "--where", "seed=9"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main([*words, "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "meet the conditions" in err
    assert main(words) == 0
    assert "meet the conditions" in capsys.readouterr().out


def test_a_wrong_condition_is_named(root):
    with pytest.raises(ValueError, match="got 'seed'"):
        select(find_runs(root), ["seed"])


def test_sorting_puts_what_is_missing_last(root):
    names = [run.name for run in sort(find_runs(root), "validation", down=True)]
    assert names[:3] == ["c", "b", "a"] and set(names[3:]) == {"a/pretrain", "d", "torn"}
    assert [run.name for run in sort(find_runs(root), "test")][:3] == ["a", "b", "c"]


def test_differences_and_groups(root):
    runs = [run for run in find_runs(root) if run.name in "abcd"]
    assert differing_options(runs) == ["lr"]
    rows = grouped_rows(runs, ["lr"])
    assert [(row["lr"], row["runs"], row["finished"]) for row in rows] == [
        ("0.1", 2, 2), ("0.01", 2, 1),
    ]  # fmt: skip
    assert str(rows[0]["validation"]) == "0.55 ± 0.0707" and str(rows[1]["validation"]) == "0.9"


def test_stages_and_quick_runs_are_averaged_with_nothing(tmp_path, capsys):
    write_run(tmp_path, "a", accuracy=0.5)
    write_run(tmp_path / "a", "pretrain", accuracy=0.1)
    quick = tmp_path / "table2-quick"
    write_run(quick, "cell", accuracy=0.2)
    write_run(quick / "cell", "pretrain", accuracy=0.3)
    (quick / "experiment.json").write_text('{"schema": 1, "quick": true}')
    states = {run.name: run.get("status") for run in find_runs(tmp_path)}
    assert states == {
        "a": "finished", "a/pretrain": "finished", "cell": "quick", "cell/pretrain": "quick",
    }  # fmt: skip
    assert main(["runs", str(tmp_path), "--by", "task", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["runs"], row["finished"], row["validation"]["mean"]) == (2, 1, 0.5)
    assert main(["runs", str(tmp_path), "--where", "name=a/pretrain", "--by", "task"]) == 0
    assert "no runs" in capsys.readouterr().out


def test_every_format(root):
    rows = rows_of(sort(find_runs(root), "name"), ["name", "validation"])
    assert json.loads(render(rows, "json"))[0] == {"name": "a", "validation": 0.5}
    read = list(csv.DictReader(render(rows, "csv").splitlines()))
    assert read[0] == {"name": "a", "validation": "0.5"} and read[1]["validation"] == ""
    assert render(rows, "markdown").splitlines()[1] == "| --- | --- |"
    text = render(rows).splitlines()
    assert text[0] == "name        validation" and text[1] == "a                  0.5"
    grouped = grouped_rows(find_runs(root), ["lr"])
    assert json.loads(render(grouped, "json"))[0]["validation"]["count"] == 2
    with pytest.raises(ValueError, match="got 'html'"):
        render(rows, "html")


def test_spread_of_one():
    assert Spread([2.0]).deviation is None


def curve_lines():
    for step in range(1, 101):
        yield {
            "step": step,
            "epoch": step / 10,
            "split": "train",
            "loss": 1 / step,
            "seconds": step,
        }
    yield {"step": 50, "epoch": 5, "split": "validation", "loss": None, "accuracy": 0.3}
    yield {"step": 100, "epoch": 10, "split": "validation", "loss": 0.2, "accuracy": 0.6}


def test_curves_leave_out_what_is_missing():
    lines = list(curve_lines())
    assert len(curve(lines, "train.loss", "step", "x").points) == 100
    assert curve(lines, "validation.loss", "step", "x").points == [(100.0, 0.2)]
    assert curve(lines, "validation.accuracy", "epoch", "x").points == [(5.0, 0.3), (10.0, 0.6)]
    assert curve(lines, "test.loss", "step", "x").points == []


def test_the_commands(root, capsys):
    assert main(["runs", str(root), "--where", "status=finished", "--sort", "test", "--down"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["name", *"cba"]
    assert main(["runs", str(root), "--diff", "--columns", "name,test"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["name", "dim", "lr",
        "mixer_options.window", "test"]  # fmt: skip
    assert main(["runs", str(root), "--where", "seed=9"]) == 0
    assert "no runs" in capsys.readouterr().out
    assert main(["runs", str(root / "nothing")]) == 1


def test_show(tmp_path, capsys):
    one = write_run(tmp_path, "one", curves=list(curve_lines()))
    two = write_run(tmp_path, "two", accuracy=0.7, curves=list(curve_lines()))
    picture = tmp_path / "curves.svg"
    assert main(["show", str(one), str(two), "--width", "40", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "resume step 3" in out and "12,345 parameters" in out and "validation accuracy" in out
    assert re.search(r"accuracy_by_operator +accuracy +count\n0 +0.25 +4", out)
    text = picture.read_text()
    assert text.count("<polyline") == 6 and "two validation.accuracy" in text
    assert main(["show", str(one), "--curve", "loss"]) == 1
    assert "got 'loss'" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 1
    assert "is no run" in capsys.readouterr().err


def test_a_run_that_has_just_begun_can_be_shown(tmp_path, capsys):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "record.json").write_text('{"schema": 1, "status": "running"}')
    assert main(["show", str(folder)]) == 0
    assert "train loss by step: nothing to draw" in capsys.readouterr().out


def test_reading_records_needs_no_torch(root):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy']))\n"
        f"from longlens.cli.main import main; sys.exit(main(['runs', {str(root)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "finished" in done.stdout, done.stderr


def test_quick_stopped_running_and_cut_off_runs_are_told_apart(tmp_path, capsys):
    write_run(tmp_path, "done")
    write_run(tmp_path, "left", status="stopped")
    write_run(tmp_path, "killed", status="running")
    write_run(tmp_path, "busy", status="running")
    write_run(tmp_path / "table2-quick", "cell")
    labels = {"schema": 1, "experiment": "table2-quick", "rows": ["a"], "columns": ["b"],
              "quick": True, "runs": {"cell": {"row": "a", "column": "b"}}}  # fmt: skip
    (tmp_path / "table2-quick" / "experiment.json").write_text(json.dumps(labels))
    with locked(tmp_path / "busy" / LOCK, "busy"):
        assert main(["runs", str(tmp_path), "--columns", "name,status", "--json"]) == 0
    states = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert states == {
        "done": "finished", "left": "stopped", "killed": "cut off", "busy": "running",
        "cell": "quick",
    }  # fmt: skip
    for name, state in states.items():  # and one by one
        folder = tmp_path / "table2-quick" / name if name == "cell" else tmp_path / name
        with locked(tmp_path / "busy" / LOCK, "busy"):
            assert main(["show", str(folder)]) == 0
        assert re.search(rf"^status +{state}$", capsys.readouterr().out, re.MULTILINE)
    assert main(["evaluate", str(tmp_path / "killed")]) == 1
    assert "(status cut off)" in capsys.readouterr().err
    assert main(["runs", str(tmp_path), "--where", "status=finished", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["done"]
    assert "quick" not in json.dumps(read_record(tmp_path / "done").to_json())


def test_a_report_of_a_fresh_folder_mixes_metrics_and_experiments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "a", accuracy=0.5)
    write_run(tmp_path / "runs", "b", task="cumsum", metric={"name": "r2"})
    write_run(tmp_path / "runs", "c", status="running")
    write_run(tmp_path / "runs" / "mine", "cell", accuracy=0.9)
    labels = {"schema": 1, "experiment": "mine", "rows": ["A"], "columns": ["B"],
              "runs": {"cell": {"row": "A", "column": "B"}}}  # fmt: skip
    (tmp_path / "runs" / "mine" / "experiment.json").write_text(json.dumps(labels))
    assert main(["report", "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "## Runs in runs: accuracy" in text and "## Runs in runs: r2" in text
    assert "## mine" in text and "80" in text.partition("## mine")[2].partition("##")[0]
    assert main(["report"]) == 0
    assert (tmp_path / "report.html").exists()


def test_runs_on_other_data_or_by_other_recipes_are_not_compared(tmp_path):
    base = {"lr": 0.1, "seed": 0}
    for name, mixer, distance, steps in (("a", "las", 8, 10), ("b", "softmax", 128, 10),
                                         ("c", "las", 128, 20)):  # fmt: skip
        options = base | {"mixer": mixer, "steps": steps, "task_options": {"distance": distance}}
        write_run(tmp_path, name, mixer=mixer, task="far-order", options=options)
    (table,) = tables_of_runs("runs", find_runs(tmp_path), [])
    assert {record.name: (record.row, record.column) for record in table.records} == {
        "a": ("las", "far-order, distance 8"),
        "b": ("softmax (steps=10)", "far-order, distance 128"),
        "c": ("las (steps=20)", "far-order, distance 128"),
    }


def test_how_a_run_is_computed_makes_no_row_of_its_own(tmp_path):
    ways = [{"checkpoint_seconds": 60.0}, {"log_every": 5}, {"nonfinite": "skip"}, {}]
    for seed, way in enumerate(ways):
        write_run(tmp_path, f"run-{seed}", seed=seed, options={"lr": 0.1, "seed": seed} | way)
    (table,) = tables_of_runs("runs", find_runs(tmp_path), [])
    assert table.rows == ("las",) and len(table.records) == 4
