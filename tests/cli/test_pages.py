"""The commands of README and quickstart run as they are written."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longlens.cli.main import main
from longlens.cli.parser import Parser
from longlens.cli.run import checked_cells
from longlens.cli.run import parser as run_parser

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md"]
ALL = [str(p.relative_to(ROOT)) for p in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))]


def commands(page):
    """The lines of a page's shell blocks that call longlens, in their order."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("longlens ")]


class UnderstoodError(Exception):
    """A command has read its words."""


@pytest.mark.parametrize("page", [page for page in ALL if commands(page)])
def test_commands_of_every_page_are_understood(page, monkeypatch):
    read = Parser.parse_args

    def stop(self, *arguments):
        read(self, *arguments)
        raise UnderstoodError

    monkeypatch.setattr(Parser, "parse_args", stop)
    for _, *words in commands(page):
        with pytest.raises(UnderstoodError):
            main([word.strip("[]") for word in words])  # [what may be left out]


def test_tables_that_are_shown_can_be_planned(tmp_path):
    """What a reader copies first must get past the checks of `longlens run`."""
    blocks = re.findall(
        r"```yaml\n(# table\.yaml.*?)```", (ROOT / "docs/runs.md").read_text(), re.S
    )
    shown = re.findall(r"^  base: .*\n  grid: .*$", run_parser().format_help(), re.M)
    assert (len(blocks), len(shown)) == (2, 1)
    planned = []
    for block in [*blocks, *shown]:
        (tmp_path / "table.yaml").write_text(block)
        planned.append(len(checked_cells(str(tmp_path / "table.yaml"), str(tmp_path), {})))
    assert planned == [18, 3, 18]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run_one_after_the_other(page, tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    environment = os.environ | {"LONGLENS_DATA": str(tmp_path / "data")}
    assert commands(page)
    for _, *words in commands(page):
        command = [sys.executable, "-m", "longlens.cli.main", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, (words, done.stderr)
    assert list(tmp_path.glob("runs/*/record.json"))


@pytest.mark.slow
def test_the_tutorial_on_own_data_works_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """Its first block writes the arrays, its commands read them, and its verdict is explained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    page = "docs/tutorials/own_data.md"
    first = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    exec(first[1], {})
    *before, last = commands(page)
    for _, *words in before:
        assert main(words) == 0, words
    assert before[-1] == ["longlens", "audit", "bumps", "--quick"]
    said = capsys.readouterr().out
    assert "\nlong range, undecided: " in said
    assert "(tokens in place), which is as much" in said
    assert "2 seeds, where 3 are needed" in said
    assert "a field of 32, the border to another verdict" in said
    assert main(last[1:]) == 0
    assert "\nmiddle range: " in capsys.readouterr().out


def test_targets_of_the_readme_exist():
    named = re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert named
    assert set(named) <= set(targets)
