"""`longlens data` as a user meets it: output, exit codes, one clear line for an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.tasks import TASKS, load
from longlens.tasks.png import decode_png
from tests.tasks import layouts

TINY = ["--set", "train=6", "--set", "validation=2", "--set", "test=2"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "cache"))

    def call(*words):
        code = main(["data", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def one_line(error):
    lines = [line for line in error.splitlines() if line.startswith("longlens data: ")]
    assert (
        len(lines) == 1 and error.strip().splitlines()[-1] == lines[0] and "Traceback" not in error
    )
    return lines[0]


def test_list_names_every_task_with_its_facts(run):
    code, out, _ = run("list")
    assert code == 0
    for info in TASKS.values():
        assert re.search(rf"^{re.escape(info.name)}  ", out, re.MULTILINE)
        assert info.length in out and info.summary in out
    code, out, _ = run("list", "--json")
    listed = {task["name"]: task for task in json.loads(out)}
    assert {n: (t["source"], t["licence"]) for n, t in listed.items()} == {
        info.name: (info.source, info.licence) for info in TASKS.values()
    }
    assert run()[1] == run("--help")[1] and "prepare NAME" in run()[1]


def test_options_that_are_listed_are_taken_as_it_says(run):
    """`data` takes distance=64, train and audit take task_options.distance=64."""
    from longlens.cli.train import parse

    out = run("list", "far-order")[1]
    assert "--set NAME=VALUE of `longlens data`, --set task_options.NAME=VALUE of train" in out
    assert re.search(r"^  distance=64  D; ", out, re.MULTILINE)
    assert parse(["--task", "far-order", "--set", "task_options.distance=64"]).task_options
    assert run("show", "far-order", "--set", "distance=8", *TINY)[0] == 0


def test_far_lengths_are_those_at_the_default_distance():
    for name, length in (
        ("far-order", "213 at D = 64"),
        ("far-injection", "inner + 260 at D = 64"),
    ):
        assert TASKS[name].length == length
    spec = TASKS["far-listops"].spec(TASKS["far-listops"].options())
    assert TASKS["far-listops"].length == f"{spec.max_length:,} at D = 64"


def test_prepare_show_verify(run, tmp_path):
    code, out, _ = run("prepare", "listops", *TINY, "--workers", "1")
    assert code == 0 and re.search(r"identity [0-9a-f]{64}", out)
    code, out, _ = run("show", "listops", *TINY, "--count", "2", "--output", tmp_path / "g.html")
    assert code == 0 and " = " in out and "in both train and test: 0" in out and "classes" in out
    page = (tmp_path / "g.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<figure>") == 6
    code, out, _ = run("verify", "listops", *TINY)
    assert code == 0 and "files as written" in out
    code, out, _ = run("verify")
    assert code == 0 and out.count("as written") == 1
    assert re.search(r"^listops .*  prepared  ", run("list")[1], re.MULTILINE)


def test_pictures(run, tmp_path):
    code, out, _ = run("show", "pathfinder", "--set", "images=20", "--output", tmp_path / "g.png")
    assert code == 0 and "@" in out and "contour" in out
    sheet = decode_png((tmp_path / "g.png").read_bytes())
    assert sheet.shape == (2 * 130 + 2, 8 * 130 + 2) and sheet.max() == 255


def test_text_is_shown_as_text(run, tmp_path):
    folder = layouts.write_folder(tmp_path / "j", layouts.imdb_json(layouts.reviews()))
    assert (
        run("prepare", "text", "--from", folder, "--set", "subset=true", "--set", "validation=2")[0]
        == 0
    )
    code, out, _ = run("show", "text", "--set", "subset=true", "--set", "validation=2")
    assert code == 0 and "train review" in out and "café" in out


def test_import(run, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((20, 5), np.int64))
    np.save(tmp_path / "y.npy", np.arange(20) % 4)
    code, out, _ = run(
        "import", "mine", "--tokens", tmp_path / "x.npy", "--targets", tmp_path / "y.npy"
    )
    assert code == 0 and "16" in out
    assert load("mine").spec.num_classes == 4
    assert run("verify", "mine")[0] == 0
    assert run("show", "mine")[0] == 0
    code, _, error = run(
        "import", "mine", "--tokens", tmp_path / "x.npy", "--targets", tmp_path / "y.npy"
    )
    assert code == 1 and "--replace" in one_line(error)


def test_options_may_be_spelled_as_people_spell_them(run, tmp_path):
    """Options before the name, with an equals sign or without."""
    cache = tmp_path / "elsewhere"
    spelled = ["--set", "min_length=4", "--set=max_length=90", "--set", "max_depth=5"]
    assert run("prepare", "--root", cache, "listops", *TINY, *spelled, "--workers", "1")[0] == 0
    assert len(load("listops", cache, train=6, validation=2, test=2,
                    min_length=4, max_length=90, max_depth=5)["train"]) == 6  # fmt: skip
    folder = layouts.write_folder(tmp_path / "c", layouts.cifar_files(np.random.default_rng(0)))
    code, out, _ = run("prepare", "--set", "subset=true", "image", "--set", "color=true",
                       "--from", folder, "--set", "validation=4")  # fmt: skip
    assert code == 0 and "validation" in out
    assert load("image", subset=True, color=True, validation=4).spec.extras == ("color",)
    assert (
        run(
            "show", "image", "--set", "subset=true", "--set", "color=true", "--set", "validation=4"
        )[0]
        == 0
    )


def test_a_task_is_listed_with_each_of_its_options(run):
    for info in TASKS.values():
        code, out, _ = run("list", info.name)
        assert code == 0 and info.licence in out
        for field in fields(info.options):
            assert re.search(rf"^  {field.name}=\S+  \S", out, re.MULTILINE), field.name


def test_the_help_of_import_begins_with_files(capsys):
    """Options of a file are others than those of arrays; the help of arrays leads to them."""
    with pytest.raises(SystemExit):
        main(["data", "import", "--help"])
    assert "--from PATH" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["shwo"], "command must be one of list"),
        (["prepare", "bogus"], "unknown task 'bogus'; there are"),
        (["prepare", "listop"], "did you mean 'listops'?"),
        (["prepare", "cumsum", "--workers", "0"], "workers must be 1 or more, got 0"),
        (["prepare", "text", "--from", "."], "holds neither aclImdb's"),
        (["prepare", "cumsum", "--root", "/dev/null/x"], "choose another folder"),
        (["import", "mine", "--tokens", "x", "--kind", "guess"], "next_token"),
        (["prepare", "listops", "--set", "seed=-1"], "seed must be 0 or more, got -1"),
        (["prepare", "listops", "--set", "seed=x"], "seed"),
        (["prepare", "listops", "--set", "sizee=3"], "sizee"),
        (["prepare", "pathx", "--set", "size=48"], "size must be one of"),
        (["prepare", "image", "--from", "/nowhere"], "/nowhere"),
        (["prepare", "retrieval-peerread"], "--from"),
        (["prepare"], "name"),
        (["show", "image"], "prepare image"),
        (["show", "cumsum", "--count", "0"], "count"),
        (["show", "cumsum", "--split", "dev"], "split must be one of"),
        (["show", "cumsum", "--output", "x.gif"], ".png or .html"),
        (["show", "cumsum", "--output", "x.png"], "no pictures"),
        (["verify", "listops"], "not a prepared"),
        (["import", "mine", "--tokens", "/nowhere.npy"], "/nowhere.npy"),
        (["import", "mine"], "give a file (--from PATH) or arrays (--tokens FILE)"),
    ],
)
def test_errors_are_one_line(run, monkeypatch, tmp_path, words, problem):
    monkeypatch.chdir(tmp_path)
    code, _, error = run(*words)
    assert code in (1, 2) and problem in one_line(error)


def test_damage_is_exit_code_1(run, tmp_path):
    run("prepare", "cumsum", "--set", "length=16", *TINY)
    victim = next((tmp_path / "cache").rglob("train-inputs-*.npy"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    for words in (["verify"], ["show", "cumsum", "--set", "length=16", *TINY]):
        code, _, error = run(*words)
        assert code == 1 and victim.name in one_line(error)
    shutil.rmtree(victim.parent)
    assert run("prepare", "cumsum", "--set", "length=16", *TINY)[0] == 0


def test_as_a_process(tmp_path):
    command = [
        sys.executable,
        "-m",
        "longlens.cli.main",
        "data",
        "show",
        "image",
        "--root",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout == ""


def test_tasks_import_without_torch():
    code = "import sys, longlens.tasks, longlens.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_atlas_of_a_missing_file_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["atlas", "lag", "mine.csv"]) == 1
    assert "mine.csv: there is no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
