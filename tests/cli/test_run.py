"""``longlens run`` and ``tune`` with real training of tiny models."""

import json
import signal
import sys

import pytest

from longlens.cli.main import main
from longlens.runs.folders import find_runs
from longlens.training.faults import Stopped

SIZES = {"length": 16, "train": 32, "validation": 8, "test": 8}
TINY = dict(task="cumsum", task_options=SIZES, dim=8, depth=1, batch_size=8, steps=2, device="cpu")


def write_table(tmp_path, grid, **base):
    path = tmp_path / "table.json"
    base = {**TINY, "root": str(tmp_path / "data"), **base}
    path.write_text(json.dumps({"base": base, "grid": grid}))
    return str(path)


def test_a_table_is_run_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # not needed here
    table = write_table(tmp_path, {"seed": [0, 1]})
    runs = str(tmp_path / "runs")
    assert main(["run", table, "--runs", runs]) == 0
    first = {run.name: run for run in find_runs(runs)}
    assert sorted(run.seed for run in first.values()) == [0, 1]
    assert all(run.is_finished for run in first.values())
    assert main(["run", table, "--runs", runs]) == 0  # nothing is trained twice
    assert {run.name: run for run in find_runs(runs)} == first
    out, err = capsys.readouterr()
    last = next(run for run in first.values() if run.seed == 1)
    values = f"validation {last.value('validation'):.4f}  test {last.value('test'):.4f}"
    assert f"2/2 {last.name}: {values}" in out  # which split a number is of
    assert err.count("step 2/2  validation") == 2  # each shows its steps, once
    assert main(["run", table, "--runs", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_wrong_cells_are_found_before_anything_runs(tmp_path, capsys):
    table = write_table(tmp_path, {"seed": [0], "lr": [0.1, -1]})
    assert main(["run", table, "--runs", str(tmp_path / "runs")]) == 1
    assert "cell 1: lr must be 0 or more" in capsys.readouterr().err
    table = write_table(tmp_path, {"widht": [8], "seed": [0]})
    assert main(["run", table, "--runs", str(tmp_path / "runs")]) == 1
    assert "'widht' is no option of longlens train" in capsys.readouterr().err
    assert main(["run", table, "--workers", "0"]) == 1
    assert main(["run", table, "--on", "mars"]) == 1
    assert "on must be here, ray, ray://HOST:PORT or slurm, got 'mars'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def base_words(tmp_path):
    words = [f"--{name}={v}" for name, v in TINY.items() if name != "task_options"]
    words += [word for name, v in SIZES.items() for word in ("--set", f"task_options.{name}={v}")]
    return [*words, f"--root={tmp_path / 'data'}", f"--runs={tmp_path / 'runs'}"]


@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_signal_ends_a_command_in_one_line(tmp_path, capsys, monkeypatch, command):
    def stop(*args, **kwargs):
        raise Stopped(signal.SIGTERM, "stopped at step 3; the same command goes on from here")

    monkeypatch.setattr("longlens.cli.tune.sweep", stop)
    monkeypatch.setattr("longlens.runs.sweeps.sweep", stop)
    words = {
        "run": ["run", write_table(tmp_path, {"seed": [0]}), "--runs", str(tmp_path / "runs")],
        "tune": ["tune", "--sampler", "grid", "--search", "seed=0,1", *base_words(tmp_path)],
    }
    assert main(words[command]) == 128 + signal.SIGTERM
    shown = capsys.readouterr().err
    assert shown.startswith(f"longlens {command}: stopped at step 3") and shown.count("\n") == 1


def test_json_is_of_lists_alone(tmp_path, capsys):
    """Progress of runs is no JSON."""
    assert main(["run", "table7", "--json", "--quick", "--runs", str(tmp_path / "runs")]) == 2
    assert "--json is for --list" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_a_search_has_no_name(tmp_path, capsys):
    assert main(["tune", "--search", "lr=1e-3,1e-2", *base_words(tmp_path), "--name=mine"]) == 2
    assert "--name is for one run" in capsys.readouterr().err


def test_tune_asks_runs_and_tells(tmp_path, capsys):
    pytest.importorskip("optuna")
    base = base_words(tmp_path)
    words = ["tune", "--search", "lr=1e-4:1e-2:log", "--trials", "2", *base]
    assert main(words) == 0
    first = {run.name: run for run in find_runs(tmp_path / "runs")}
    learned = {run.options["lr"] for run in first.values()}
    assert len(learned) == 2 and all(1e-4 <= lr <= 1e-2 for lr in learned)
    assert "r2" in capsys.readouterr().out
    assert main(words) == 0  # the same runs are asked for, and found
    assert {run.name: run for run in find_runs(tmp_path / "runs")} == first
    assert main(["tune", "--search", "lr=x", *base]) == 1  # before any trial
    assert "lr must be a number, got 'x'" in capsys.readouterr().err
    assert main(["tune", "--search", "lrr=1:2", *base]) == 1
    assert "did you mean 'lr'" in capsys.readouterr().err


def test_a_run_that_a_sampler_asks_for_twice_is_listed_once(tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["tune", "--sampler", "random", "--search", "seed=0,1", "--trials", "6", "--quiet"]
    assert main([*words, *base_words(tmp_path)]) == 0
    names = [run.name for run in find_runs(tmp_path / "runs")]
    table = capsys.readouterr().out.partition("metric")[2]
    assert len(names) == 2 and [table.count(name) for name in names] == [1, 1]


HEADS = ["--search", "dim=6,12", "mixer_options.num_heads=3,12"]  # 6 is no multiple of 12


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_trial_that_makes_no_model_fails_alone(tmp_path, capsys, sampler):
    if sampler == "random":
        pytest.importorskip("optuna")
    base = [word for word in base_words(tmp_path) if not word.startswith("--dim")]
    words = ["tune", "--sampler", sampler, "--trials", "12", *HEADS, *base]
    assert main(words) == 1  # as whenever a run fails
    out, err = capsys.readouterr()
    options = {(run.options["dim"], run.options["mixer_options"]["num_heads"])
               for run in find_runs(tmp_path / "runs")}  # fmt: skip
    assert options == {(6, 3), (12, 3), (12, 12)}
    (failed,) = [line.split() for line in out.splitlines() if line.split()[0] == "failed"]
    assert failed[-2:] == ["6", "12"]  # in the table, after those that finished
    assert err.count("dim=6, mixer_options.num_heads=12 failed: dim must be a multiple of") == 1


def test_where_no_trial_makes_a_model_one_line_says_why(tmp_path, capsys):
    words = ["tune", "--sampler", "grid", "--search", "dim=6,10", "mixer_options.num_heads=4,8"]
    assert main([*words, *base_words(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == ("longlens tune: dim must be a multiple of num_heads=4, got 6\n")
    assert main(["tune", "--search", "mixer_options.heads=1,2", "lr=0.1:1", *words[-2:]]) == 1
    assert "did you mean 'num_heads'" in capsys.readouterr().err  # before any trial


def test_tune_by_grid_needs_no_optuna(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    base = base_words(tmp_path)
    assert main(["tune", "--sampler", "grid", "--search", "seed=0,1", *base]) == 0
    assert len(find_runs(tmp_path / "runs")) == 2
    assert main(["tune", "--search", "lr=1e-4:1e-2:log", *base]) == 1
    assert "pip install 'longlens[search]'" in capsys.readouterr().err


@pytest.mark.parametrize("extra", ["ray", "slurm"])
def test_without_the_extra_the_error_says_what_to_install(tmp_path, capsys, monkeypatch, extra):
    monkeypatch.setitem(sys.modules, "ray" if extra == "ray" else "submitit", None)
    table = write_table(tmp_path, {"seed": [0]})
    assert main(["run", table, "--runs", str(tmp_path / "runs"), "--on", extra]) == 1
    assert f"pip install 'longlens[{extra}]'" in capsys.readouterr().err


def test_set_changes_every_cell_of_a_table(tmp_path):
    table = write_table(tmp_path, {"seed": [0, 1]})
    words = ["--set", "lr=0.5", "--set", "mixer_options.window=3"]
    assert main(["run", table, "--runs", str(tmp_path / "runs"), *words]) == 0
    found = [run.options for run in find_runs(tmp_path / "runs")]
    assert [(o["lr"], o["mixer_options"]) for o in found] == 2 * [(0.5, {"window": 3})]
