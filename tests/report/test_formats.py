"""Tables as Markdown and CSV, and the blocks of Markdown files."""

import csv
from pathlib import Path

import pytest

from longlens.cli.main import main
from longlens.report.formats import block, update_blocks, write_tables
from longlens.report.results import read_results
from tests.report.sample import write_results


@pytest.fixture
def folder(tmp_path):
    return write_results(tmp_path / "results")


def test_markdown(folder):
    text = write_tables(read_results([folder]), "markdown")
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    assert lines["LaS-chunk"].endswith("| (54.61) | — | — | — |")
    assert "| 54.00 ± 1.41 [1 failed] (53.05) |" in text
    assert "| 90.00 [stand-in] (81.62) | — | — |" in text
    assert lines["Nobody"].endswith("| 70.00 | — | — | — | — | — | (2.5) |")
    assert " 0.00" not in text and "(0" not in text  # nothing that is missing became a zero
    heads = [line for line in text.splitlines() if set(line) <= set("| -") and line]
    assert len(heads) == 3  # two experiments, one benchmark


def test_csv_holds_every_cell_with_its_conditions(folder):
    rows = list(csv.DictReader(write_tables(read_results([folder]), "csv").splitlines()))
    assert len(rows) == 8 + 6
    by = {(row["row"], row["column"]): row for row in rows if row["experiment"] == "table2"}
    las = by["LaS", "ListOps"]
    assert float(las["ours"]) == pytest.approx(54) and las["runs"] == "3"
    assert las["finished"] == "2" and las["parameters"] == "1234567"
    assert las["hardware"] == "NVIDIA H200" and las["commit"] == "abc123def456"
    assert by["LaS", "Pathfinder"]["difference"] == "" and by["Transformer", "Text"]["ours"] == ""


def test_an_unknown_format_is_named(folder):
    with pytest.raises(ValueError, match="got 'rtf'"):
        write_tables(read_results([folder]), "rtf")


def test_blocks_are_written_anew(folder):
    text = (
        "a\n<!-- table: results/table2.json rows='LaS; S4' columns='Text; ListOps' -->\nold\n"
        "<!-- end -->\nb\n<!-- table: results/ops_cpu.csv -->\n<!-- end -->\nc\n"
    )
    new = update_blocks(text, folder.parent)
    assert new.startswith("a\n<!-- table: results/table2.json rows='LaS; S4'")
    assert "|  | Text | ListOps | mean |\n| --- | --- | --- | --- |\n| LaS | 80.00 (79.28) |" in new
    assert "| S4 | (86.82) | (59.60) | (73.21) |\n<!-- end -->\nb" in new
    assert "old" not in new and "| LaS | 99.7 ms | 1.03 × |" in new
    assert update_blocks(new, folder.parent) == new


def test_blocks_of_audits():
    root = Path(__file__).parents[2]
    every = block("results/audit_far-*.json", root)
    assert every.startswith("| task | verdict |") and "far-order, distance 512" in every
    one = block("results/audit_far-order_512.json", root)
    assert "| conv 61 | 61 |" in one and "| s4d | all |" in one


def test_blocks_of_comparisons():
    lines = block("results/originals.json", Path(__file__).parents[2]).splitlines()
    assert lines[0] == "| layer | compared with | deviation | what remains different |"
    assert len(lines) > 25 and lines[2].startswith("| softmax | ")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("results/none.json", "does not exist"),
        ("/results/none.json", "does not exist"),
        ("results/table2.json rows=Nemo", "no 'Nemo'; it has Transformer"),
        ("results/table2.json lines=LaS", "got 'lines=LaS'"),
        ("results/ops_cpu.csv rows=LaS", "cannot show"),
    ],
)
def test_wrong_blocks_are_named(folder, description, message):
    with pytest.raises(ValueError, match=message):
        update_blocks(f"<!-- table: {description} -->\n<!-- end -->", folder.parent)


def test_the_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0  # results/ to report.html
    assert (tmp_path / "report.html").exists() and "2 experiments" in capsys.readouterr().out
    assert main(["report", "--format", "markdown", "--only", "figure5"]) == 0
    out = capsys.readouterr().out
    assert "Figure 5" in out and "Table 2" not in out
    words = ["--only", "figure5", "--only", "table2", "results/"]  # one name each, then records
    assert main(["report", "--format", "markdown", *words]) == 0
    out = capsys.readouterr().out
    assert "Figure 5" in out and "Table 2" in out
    assert main(["report", "--format", "csv", "-o", "out/table.csv"]) == 0
    assert (tmp_path / "out" / "table.csv").read_text().startswith("experiment,row")
    page = tmp_path / "page.md"
    page.write_text("<!-- table: results/ops_cpu.csv -->\n<!-- end -->\n")
    (tmp_path / "report.html").unlink()
    assert main(["report", "--update", str(page)]) == 0
    assert "plain SDPA" in page.read_text() and not (tmp_path / "report.html").exists()
    assert main(["report", "--pictures", "pictures"]) == 0
    assert {p.name for p in (tmp_path / "pictures").iterdir()} == {
        "table2.svg", "figure5.svg", "ops_cpu_time.svg", "ops_cpu_memory.svg",
    }  # fmt: skip
    assert main(["report", "--pictures", "one", "figure5"]) == 0
    assert [p.name for p in (tmp_path / "one").iterdir()] == ["figure5.svg"]
    assert not (tmp_path / "report.html").exists()
    assert main(["report", "--pictures", "one", "figure9"]) == 1
    assert "there is no 'figure9'; there are table2, figure5" in capsys.readouterr().err
    assert main(["report", "nowhere"]) == 1 and "nowhere" in capsys.readouterr().err
    assert main(["report", "--update", "none.md"]) == 1
