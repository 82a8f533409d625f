"""The command line as a user meets it: help, a tiny run of each command, wrong input."""

import csv
import re
import sys

import pytest

from longlens.cli.main import COMMANDS, main


def test_help_lists_the_commands(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    try:
        code = main([command, "--help"])
    except SystemExit as stop:  # argument parsers leave this way
        code = stop.code
    assert code in (0, None)
    assert "usage: longlens" in capsys.readouterr().out


SUBCOMMANDS = {
    "data": ("list", "prepare", "import", "show", "verify"),
    "bench": ("ops", "family", "layer", "decode", "length", "step", "train"),
}
WITH_JSON = ("layers", "runs", "run", "show", "evaluate", "predict", "data list")
WITH_SET = ("train", "run", "audit", "evaluate", "data prepare", "data show", "data verify",
            "bench step")  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [name for name in COMMANDS if name not in SUBCOMMANDS]
    + [f"{name} {part}" for name, parts in SUBCOMMANDS.items() for part in parts],
)
def test_all_commands_have_one_grammar(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: longlens {command} ") and "[options]" in out.split("\n")[0]
    words = set(re.findall(r"(?<![\w-])--[a-z_-]+", out.partition("examples:")[0]))
    assert ("--output" in words) == ("-o FILE, --output FILE" in out)
    assert not words & {"--out", "--svg", "--data", "--mixer-option", "--options-of", "--batch"}
    assert ("--json" in words) == (command in WITH_JSON)
    assert ("--set KEY=VALUE" in out) == (command in WITH_SET)


def test_commands_do_not_leave_their_words_to_torchs_compiler(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["longlens", "layrs", "--only", "'a' b"])
    assert main() == 2
    assert sys.argv == ["longlens"]


def test_an_unknown_command_names_the_near_match(capsys):
    assert main(["benhc"]) == 2
    assert "did you mean 'bench'" in capsys.readouterr().err


def test_bench_writes_rows_with_provenance(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    words = ["--shapes", "1,2,64,8 1,2,70,8", "--device", "cpu", "--seconds", "0.01"]
    assert main(["bench", "ops", *words, "--output", str(path)]) == 0
    assert "to plain" in capsys.readouterr().out
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [r["implementation"] for r in rows] == 2 * ["plain SDPA", "LaS", "eager Eq. 4"]
    for row in rows:
        assert row["hardware"] and row["torch"] and row["commit"] and row["date"]
        assert float(row["forward_backward_ms"]) > 0
    assert float(rows[1]["error"]) < 1e-5 and rows[1]["path"] == "folded"


def test_bench_of_a_sliding_window(tmp_path):
    path = tmp_path / "rows.csv"
    words = ["--shapes", "1,2,64,8", "--device", "cpu", "--seconds", "0.01", "--local", "16"]
    assert main(["bench", "ops", *words, "--output", str(path)]) == 0
    rows = {row["implementation"]: row for row in csv.DictReader(path.read_text().splitlines())}
    assert rows["LaS"]["path"] == "local" and float(rows["LaS"]["error"]) < 1e-5
    assert rows["LaS, no sliding window"]["path"] == "folded"


def test_bench_of_the_family(tmp_path):
    path = tmp_path / "rows.csv"
    words = ["--shapes", "1,2,40,8", "--seconds", "0.01", "--device", "cpu", "--output", str(path)]
    assert main(["bench", "family", *words]) == 0
    rows = {row["implementation"]: row for row in csv.DictReader(path.read_text().splitlines())}
    assert {name: row["path"] for name, row in rows.items()} == {
        "plain SDPA": "", "LaS": "", "LaS, taps": "las", "ALiBi": "folded", "FoX": "folded",
        "Wall": "folded", "sink": "merged",
    }  # fmt: skip
    assert all(float(row["error"]) < 1e-5 for row in rows.values() if row["path"])


def test_bench_of_the_family_beside_fla_needs_it(capsys):
    assert main(["bench", "family", "--device", "cpu", "--fla", "true"]) != 0
    assert "fla needs a cuda device" in capsys.readouterr().err


def test_bench_of_training_steps(tmp_path, capsys):
    path = tmp_path / "step.csv"
    words = ["--only", "LaS Image", "--quick", "--batches", "2", "--output", str(path)]
    assert (
        main(["bench", "step", *words, "--set", "dim=16", "--set", "mixer_options.num_heads=2"])
        == 0
    )
    assert re.search(r"^LaS, Image +\S+ ms", capsys.readouterr().out, re.MULTILINE)
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert float(row["step_ms"]) > 0
    assert "num_heads" in row["options"] and row["commit"]


def test_bench_of_length(tmp_path):
    path = tmp_path / "length.csv"
    words = ["--lengths", "128 256", "--heads", "2", "--head_dim", "16", "--output", str(path)]
    assert main(["bench", "length", "--device", "cpu", *words]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["shape"] for row in rows] == ["1,2,128,16", "1,2,256,16"]
    assert all(float(row["forward_backward_ms"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shapes", "1,2,3"], "B,H,L,D"),
        (["--device", "tpu"], "auto, cpu, cuda"),
        (["--dtype", "int8"], "bfloat16"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(words, message, capsys):
    assert main(["bench", "ops", "--device", "cpu", *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_demo_trains_all_and_prints_a_table(capsys, tmp_path):
    words = ["--steps", "4", "--length", "16", "--runs", str(tmp_path / "demo")]
    assert main(["demo", *words]) == 0
    out = capsys.readouterr().out
    assert "accuracy" in out and "softmax" in out and "LaS" in out and "MiB" in out
    for name in ("softmax", "las", "softmax-rotary", "convolution-of-9"):
        folder = tmp_path / "demo" / name
        assert f"record: {folder}" in out and (folder / "record.json").exists()
    page = tmp_path / "demo" / "report.html"
    assert f"{page}:" in out and "las" in page.read_text()
    assert main(["demo", *words]) == 0  # and again, over the old records


def test_demo_names_a_bad_option(capsys):
    assert main(["demo", "--steps", "0"]) == 1
    assert "steps must be at least 2, got 0" in capsys.readouterr().err
