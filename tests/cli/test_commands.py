"""The command line as a user meets it: help, a tiny run of each command, wrong input."""

import csv
import re
import runpy
import sys

import pytest
import torch
from torch.nn import functional as F

import longlens
from longlens.cli import bench
from longlens.cli.main import COMMANDS, main


def test_help_lists_the_commands(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_the_package_runs_as_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["longlens", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("longlens", run_name="__main__")
    assert capsys.readouterr().out == f"{longlens.__version__}\n"


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
    "bench": ("ops", "odd", "family", "layer", "decode", "length", "step", "train"),
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


@pytest.mark.parametrize(
    ("words", "ending"),
    [("audit mine -o a.svg", ".json"), ("audit mine --plot a.png", ".svg"),
     ("atlas --output a.html", ".json"), ("atlas --page a.json", ".html"),
     ("curve runs/a --examples 5 --output a.svg", ".json"), ("show runs/a -o a.png", ".svg")],
)  # fmt: skip
def test_a_file_ends_in_what_it_holds(words, ending, capsys):
    """-o a.svg of an audit would be its record, and then its picture in the place of that."""
    assert main(words.split()) == 2
    got = words.split()[-1]
    assert f": must end in {ending}, got {got!r} (longlens" in capsys.readouterr().err


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


def bench_rows(tmp_path, command, *words):
    path = tmp_path / "rows.csv"
    common = ["--device", "cpu", "--seconds", "0.01", "--output", str(path)]
    assert main(["bench", command, *words, *common]) == 0
    return list(csv.DictReader(path.read_text().splitlines()))


def test_bench_of_padding_gives_every_form_the_same_mask(tmp_path, monkeypatch):
    masks = []
    plain, las = F.scaled_dot_product_attention, bench.las_attention
    monkeypatch.setattr(
        "longlens.cli.bench.F.scaled_dot_product_attention",
        lambda *a, **k: masks.append(k["attn_mask"]) or plain(*a, **k),
    )
    monkeypatch.setattr(
        bench, "las_attention", lambda *a, **k: masks.append(k["key_mask"]) or las(*a, **k)
    )
    words = ["--shapes", "4,2,64,8", "--causal", "false", "--padding", "0.25"]
    rows = bench_rows(tmp_path, "ops", *words)
    assert [row["path"] for row in rows] == ["", "merged", ""] and float(rows[1]["error"]) < 1e-5
    real = torch.arange(64) < torch.tensor([60, 52, 44, 36])[:, None]  # a quarter is padding
    own = [mask.view(4, 64) for mask in masks if mask is not None]  # ours calls SDPA, too
    assert len(own) > 10 and all(torch.equal(mask, real) for mask in own)
    assert {tuple(m.shape) for m in masks if m is not None} == {(4, 64), (4, 1, 1, 64)}


def test_bench_of_odd_shapes(tmp_path):
    rows = bench_rows(tmp_path, "odd", "--shapes", "1,1,20,46 1,2,1,8 1,2,20,8,16")
    found = [(r["shape"], r["dtype"], r["implementation"], r["path"]) for r in rows]
    assert found == [
        (shape, dtype, name, path if name == "LaS" else "")
        for shape, path in {
            "1,1,20,46": "folded", "1,2,1,8": "row", "1,2,20,8,16": "folded",
        }.items()
        for dtype in ("float32", "bfloat16")
        for name in ("plain SDPA", "LaS")
    ]  # fmt: skip
    assert all(float(row["ratio_to_plain"]) > 0 for row in rows)
    limits = {"float32": 1e-5, "bfloat16": 2e-2}
    assert all(float(r["error"]) < limits[r["dtype"]] for r in rows if r["path"])


def test_bench_of_decoding(tmp_path):
    rows = bench_rows(tmp_path, "decode", "--shapes", "2,20,16,4,2", "--steps", "2")
    alone = "attention alone: softmax", "attention alone: LaS, SDPA"
    assert [row["layer"] for row in rows] == ["softmax", "LaS", *alone]
    assert all(float(row["token_ms"]) > 0 for row in rows)
    assert [float(row["ratio_to_softmax"]) for row in rows[::2]] == [1, 1]


def test_bench_of_the_family(tmp_path):
    path = tmp_path / "rows.csv"
    words = ["--shapes", "1,2,20,8", "--seconds", "0.01", "--device", "cpu", "--output", str(path)]
    assert main(["bench", "family", *words]) == 0
    rows = {row["implementation"]: row for row in csv.DictReader(path.read_text().splitlines())}
    assert {name: row["path"] for name, row in rows.items()} == {
        "plain SDPA": "", "LaS": "", "LaS, taps": "las", "ALiBi": "folded",
        "ALiBi, slopes to 0.01": "folded", "FoX": "folded", "FoX, untrained": "folded",
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
        (["--shapes", "1,2,3"], "B,H,L,D or B,H,L,D,Dv, got"),
        (["--device", "tpu"], "auto, cpu, cuda"),
        (["--dtype", "int8"], "bfloat16"),
        (["--padding", "0.25"], "unless causal=false"),
        (["--padding", "0.7", "--causal", "false"], "between 0 and 0.5"),
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
