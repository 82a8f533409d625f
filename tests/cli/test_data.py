"""`longlens data` as a user meets it: output, exit codes, one clear line for an error."""

from __future__ import annotations

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

TINY = ["--train", "6", "--validation", "2", "--test", "2"]


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
        assert re.search(rf"^{re.escape(info.name)}  \[", out, re.MULTILINE)
        assert info.licence in out and info.length in out and info.source in out
    assert run()[1] == run("--help")[1] and "prepare NAME" in run()[1]


def test_prepare_show_verify(run, tmp_path):
    code, out, _ = run("prepare", "listops", *TINY, "--workers", "1")
    assert code == 0 and re.search(r"identity [0-9a-f]{64}", out)
    code, out, _ = run("show", "listops", *TINY, "--count", "2", "--out", tmp_path / "g.html")
    assert code == 0 and " = " in out and "in both train and test: 0" in out and "classes" in out
    page = (tmp_path / "g.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<figure>") == 6
    code, out, _ = run("verify", "listops", *TINY)
    assert code == 0 and "files as written" in out
    code, out, _ = run("verify")
    assert code == 0 and out.count("as written") == 1
    assert "listops  [prepared]" in run("list")[1]


def test_pictures(run, tmp_path):
    code, out, _ = run("show", "pathfinder", "--images", "20", "--out", tmp_path / "g.png")
    assert code == 0 and "@" in out and "contour" in out
    sheet = decode_png((tmp_path / "g.png").read_bytes())
    assert sheet.shape == (2 * 130 + 2, 8 * 130 + 2) and sheet.max() == 255


def test_text_is_shown_as_text(run, tmp_path):
    folder = layouts.write_folder(tmp_path / "j", layouts.imdb_json(layouts.reviews()))
    assert run("prepare", "text", "--from", folder, "--subset", "true", "--validation", "2")[0] == 0
    code, out, _ = run("show", "text", "--subset", "true", "--validation", "2")
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
    """Dashes for underscores, a bare flag, and options before the name."""
    cache = tmp_path / "elsewhere"
    spelled = ["--min-length", "4", "--max-length=90", "--max-depth", "5"]
    assert run("prepare", "--root", cache, "listops", *TINY, *spelled, "--workers", "1")[0] == 0
    assert len(load("listops", cache, train=6, validation=2, test=2,
                    min_length=4, max_length=90, max_depth=5)["train"]) == 6  # fmt: skip
    folder = layouts.write_folder(tmp_path / "c", layouts.cifar_files(np.random.default_rng(0)))
    code, out, _ = run("prepare", "--subset", "image", "--color", "--from", folder,
                       "--validation", "4")  # fmt: skip
    assert code == 0 and "validation" in out
    assert load("image", subset=True, color=True, validation=4).spec.extras == ("color",)
    assert run("show", "image", "--subset", "--color=true", "--validation", "4")[0] == 0


def test_help_of_a_task_explains_each_of_its_options(run, capsys):
    for info in TASKS.values():
        with pytest.raises(SystemExit) as end:
            run("prepare", info.name, "--help")
        out = " ".join(capsys.readouterr().out.split())
        assert end.value.code == 0
        for field in fields(info.options):
            after = out.rpartition(f"--{field.name} ")[2]
            assert not after.split(" ", 1)[1].startswith("(type"), (info.name, field.name)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["dance"], "command must be one of list"),
        (["prepare", "bogus"], "unknown task 'bogus'; there are"),
        (["prepare", "listop"], "did you mean listops?"),
        (["prepare", "cumsum", "--workers", "0"], "workers must be 1 or more, got 0"),
        (["prepare", "text", "--from", "."], "holds neither aclImdb's"),
        (["prepare", "cumsum", "--root", "/dev/null/x"], "choose another folder"),
        (["import", "mine", "--tokens", "x", "--kind", "guess"], "next_token"),
        (["prepare", "listops", "--seed", "-1"], "seed must be 0 or more, got -1"),
        (["prepare", "listops", "--seed", "x"], "seed"),
        (["prepare", "listops", "--size", "3"], "--size"),
        (["prepare", "pathx", "--size", "48"], "size must be one of"),
        (["prepare", "image", "--from", "/nowhere"], "/nowhere"),
        (["prepare", "retrieval-peerread"], "--from"),
        (["prepare"], "name"),
        (["show", "image"], "prepare image"),
        (["show", "cumsum", "--count", "0"], "count"),
        (["show", "cumsum", "--split", "dev"], "split must be one of"),
        (["show", "cumsum", "--out", "x.gif"], ".png or .html"),
        (["show", "cumsum", "--out", "x.png"], "no pictures"),
        (["verify", "listops"], "not a prepared"),
        (["import", "mine", "--tokens", "/nowhere.npy"], "/nowhere.npy"),
        (["import", "mine"], "tokens"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(run, monkeypatch, tmp_path, words, problem):
    monkeypatch.chdir(tmp_path)
    code, _, error = run(*words)
    assert code == 1 and problem in one_line(error)


def test_damage_is_exit_code_1(run, tmp_path):
    run("prepare", "cumsum", "--length", "16", *TINY)
    victim = next((tmp_path / "cache").rglob("train-inputs-*.npy"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    for words in (["verify"], ["show", "cumsum", "--length", "16", *TINY]):
        code, _, error = run(*words)
        assert code == 1 and victim.name in one_line(error)
    shutil.rmtree(victim.parent)
    assert run("prepare", "cumsum", "--length", "16", *TINY)[0] == 0


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
