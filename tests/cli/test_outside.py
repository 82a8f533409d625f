"""Files from outside on the command line: errors are one line, and no terminal obeys them."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.cli.train import parse
from longlens.runs.cell import read_cells
from longlens.tasks import import_arrays
from longlens.training.options import TrainOptions
from longlens.untrusted import check_folder_name, parse_json, printable


def one_error(capsys, words, code=1):
    assert main(words) == code
    err = capsys.readouterr().err
    assert err.startswith(f"longlens {words[0]}: ") and err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


# nine lines that stand for 9⁹ values
LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {name: 2024-01-01}", "got the date 2024-01-01; quote it"),
        ("- {1: 2}", "a key must be text, got 1"),
        ("base: {1: 2}\ngrid: {seed: [0]}", "a key must be text, got 1"),
        ("1: 2\nbase: {}", "a key must be text, got 1"),
        ("2024-01-01: 2", "a key must be text"),
        ("- {[1, 2]: 3}", "unhashable key"),
        ("grid: [1, 2]", "grid must hold options by their names"),
        ("base: [1]\ngrid: {seed: [0]}", "base must hold options by their names"),
        ("- {lr: .nan}", "nan is no number"),
        ("- {a: !!binary aGVsbG8=}", "got the bytes"),
        ("- {a: !!set {x}}", "got the set"),
        ("- {a: !!bool x}", "not readable"),
        ("- {a: !!int '-'}", "not readable"),
        ("- {a: 1, a: 2}", "the key 'a' occurs twice"),
        ("&a [*a]", "more than 1,000,000 values"),
        (LAUGHS, "more than 1,000,000 values"),
        ("[" * 5000, "nested too deeply"),
        ("grid: {" + ",".join(f"a{i}: [0,1,2,3,4,5,6,7,8,9]" for i in range(9)) + "}",
         "1,000,000,000 cells"),
        ("- {name: ../elsewhere, steps: 1}", "cell 0: name must be a folder's name"),
        ("- {name: /tmp/elsewhere, steps: 1}", "cell 0: name must be a folder's name"),
        ('- {name: "a\\e[31m", steps: 1}', "cell 0: name must be a folder's name"),
        ("- {task: ../elsewhere, steps: 1}", "cell 0: task must be a folder's name"),
        ("- {runs: ../elsewhere, steps: 1}", "cell 0: runs is no option of a table"),
        ("\xff\xff", "not readable"),
    ],
)  # fmt: skip
def test_what_a_table_must_not_hold_is_one_line(tmp_path, capsys, text, problem):
    path = tmp_path / "table.yaml"
    path.write_text(text, encoding="latin-1")
    err = one_error(capsys, ["run", str(path), "--runs", str(tmp_path / "runs")])
    assert problem in err and str(path) in err
    assert not (tmp_path / "runs").exists()


def test_tables_may_still_merge_and_repeat_values(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text("- &first {dim: 8, lr: 0.1}\n- {<<: *first, lr: 0.2}\n")
    assert read_cells(path) == [{"dim": 8, "lr": 0.1}, {"dim": 8, "lr": 0.2}]


@pytest.mark.parametrize("text", ["mixer_options: {1: 2}", "mixer_options: {a: 2024-01-01}",
                                  "dim: !!int '-'", "dim: 8\ndim: 16"])  # fmt: skip
def test_configs_of_train_are_checked_as_tables_are(tmp_path, capsys, text):
    (tmp_path / "c.yaml").write_text(text)
    err = one_error(capsys, ["train", "--config", str(tmp_path / "c.yaml")])
    assert "c.yaml is not readable" in err
    (tmp_path / "c.yaml").write_text("dim: 8")
    assert parse([f"--config={tmp_path / 'c.yaml'}"]).dim == 8


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "../a", "a\n", "a\x1b", "x" * 201])
def test_names_stay_inside_the_runs_folder(name):
    for option in ("name", "task", "mixer"):
        with pytest.raises(ValueError, match=f"{option} must be a folder's name"):
            TrainOptions(**{option: name})
    assert check_folder_name("LaS, P = 3 (α)", "name")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_options_are_finite(value):
    for option in ("lr", "weight_decay", "dropout", "epochs"):
        with pytest.raises(ValueError, match=f"{option} must be a finite number"):
            TrainOptions(**{option: value})


def test_every_damaged_data_set_is_named(tmp_path, capsys):
    for name in ("one", "two", "three"):
        import_arrays(name, np.arange(40) % 7, root=tmp_path)
    for name in ("one", "three"):
        next((tmp_path / "imported" / name).rglob("*.npy")).write_bytes(b"")
    assert main(["data", "verify", "--root", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "two: 3 files as written" in out
    assert err.count("\n") == 2 and "/one/" in err and "/three/" in err


def test_a_damaged_record_does_not_stop_the_other_cells(tmp_path, capsys):
    data = "task: cumsum, task_options: {length: 16, train: 8, validation: 4, test: 4}"
    model = "dim: 8, depth: 1, steps: 1, batch_size: 4, progress: false"
    text = f"base: {{{data}, {model}, root: {tmp_path}}}\ngrid: {{seed: [0, 1]}}\n"
    (tmp_path / "table.yaml").write_text(text)
    words = ["run", str(tmp_path / "table.yaml"), "--runs", str(tmp_path / "runs")]
    assert main(words) == 0
    first, second = sorted((tmp_path / "runs").glob("*/record.json"))
    first.write_text("{")
    second.unlink()
    capsys.readouterr()
    assert main(words) == 1
    err = capsys.readouterr().err
    assert f"{first} is damaged" in err and "Traceback" not in err
    assert json.loads(second.read_text())["status"] == "finished"


def commands(folder):
    """Every command on a path that cannot be read or written as it must be."""
    there = str(folder / "there")
    return {
        "show": [there],
        "runs": [f"{there}/no"],
        "report": [there, "-o", f"{there}/no/page.html"],
        "collect": [there],
        "run": [f"{there}/table.yaml"],
        "curve": [there, "--length", "4"],
        "lens": [there],
        "data": ["show", "mine", "--root", there],
        "train": ["--quiet", "--steps", "1", "--runs", f"{there}/runs", "--root", f"{there}/data"],
        "audit": ["listops", "--quick", "--runs", f"{there}/runs", "--root", there],
        "bench": ["ops", "--shapes", "1,1,8,8", "--seconds", "0.001", "--device", "cpu",
                  "--output", f"{there}/rows.csv"],
        "demo": ["--steps", "2", "--length", "8", "--runs", there],
        "tune": ["--search", "lr=0.1,0.2", "--runs", there, "--steps", "1"],
    }  # fmt: skip


@pytest.mark.parametrize("command", commands(Path()))
def test_a_file_where_a_folder_should_be_is_one_line(tmp_path, capsys, command):
    (tmp_path / "there").write_text("a file")
    one_error(capsys, [command, *commands(tmp_path)[command]])


def test_strict_json():
    assert parse_json(b'{"a": [1, -2.5e3, null, true, "\\u00e9"]}')["a"][1] == -2500
    for bad in (b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"1e999", b"\xff", b"[" * 100_000, b""):
        with pytest.raises(ValueError, match=r"."):
            parse_json(bad)


def test_control_characters_are_spelled_out():
    assert printable("a\x1b]0;t\x07\r\x9b\u202e\udc80\n\té") == (
        "a\\x1b]0;t\\x07\\x0d\\x9b\\u202e\\udc80\n\té"
    )


EVIL = "\x1b[31mred\x07\x9b\u202e"


def harmless(text):
    return not any(
        (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c == "\u202e" for c in text
    )


@pytest.fixture
def evil_run(tmp_path):
    folder = tmp_path / "runs" / f"run{EVIL}"
    folder.mkdir(parents=True)
    record = {
        "schema": 1, "name": EVIL, "status": "failed", "error": EVIL, "task": EVIL, "mixer": EVIL,
        "options": {"task": EVIL, EVIL: EVIL}, "events": [{"kind": EVIL, "time": EVIL}],
        "metrics": {"test": {EVIL: 0.5, "accuracy": 0.5}}, "metric": {"name": "accuracy"},
        "data": {"identity": EVIL, "stands_in_for": EVIL}, "provenance": {"commit": EVIL},
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def test_control_characters_in_records_never_reach_the_terminal(tmp_path, capsys, evil_run):
    runs = str(evil_run.parent)
    experiment = {"schema": 1, "experiment": "e", "rows": [EVIL], "columns": [EVIL],
                  "metric": "accuracy", "records": [{"row": EVIL, "column": EVIL, "seed": 0,
                  "status": "failed", "error": EVIL}]}  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps(experiment))
    for words in (
        ["runs", runs],
        ["runs", runs, "--columns", "name,error,task", "--json"],
        ["runs", runs, "--by", "task"],
        ["show", str(evil_run)],
        ["lens", str(evil_run)],
        ["curve", str(evil_run), "--length", "4"],
        ["report", runs, "--format", "markdown"],
        ["report", str(tmp_path / "e.json"), "--format", "csv"],
        ["report", str(tmp_path / f"no{EVIL}")],
        ["data", "show", EVIL],
        ["run", EVIL],
    ):
        main(words)
        out, err = capsys.readouterr()
        assert harmless(out) and harmless(err) and (out or err), words


def test_control_characters_in_data_never_reach_the_terminal(tmp_path, capsys):
    stream = np.frombuffer(b"text \x1b[2J\x07" * 100, np.uint8)
    import_arrays("mine", stream, root=tmp_path)
    words = ["data", "show", "mine", "--root", str(tmp_path)]
    assert main(words) == 0 and harmless(capsys.readouterr().out)


def test_a_reader_that_leaves_is_no_error():
    code = "from longlens.cli.main import main; import sys; sys.exit(main(['layers', '--options']))"
    done = subprocess.run(
        f'"{sys.executable}" -c "{code}" | head -1',
        shell=True, capture_output=True, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize(("where", "encoding"), [("", "ascii"), ("", "latin-1"), (">&-", "utf-8")])
def test_a_terminal_without_dashes_or_none_at_all_is_no_error(tmp_path, where, encoding):
    """A dash stands for what is not known, which a run that failed has much of."""
    (tmp_path / "record.json").write_text('{"schema": 2, "status": "failed", "name": "a"}')
    code = "from longlens.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        f'"{sys.executable}" -c "{code}" show "{tmp_path}" {where}',
        shell=True, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == b""
    assert where or b"status        failed\n" in done.stdout
