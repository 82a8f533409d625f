"""Every result that README and docs show comes from a file under results/."""

import re
from pathlib import Path

import pytest

from longlens.cli.report import pictures
from longlens.report.formats import BLOCK, update_blocks
from longlens.report.results import read_results

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_has_tables():
    assert BLOCK.search((ROOT / "README.md").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_show_what_was_measured(page):
    text = page.read_text()
    assert text == update_blocks(text, ROOT), "make report writes them anew"


def test_the_readme_has_no_numbers_of_its_own():
    rest = BLOCK.sub("", (ROOT / "README.md").read_text())
    tables = [line for line in rest.splitlines() if line.startswith("|")]
    assert not [line for line in tables if re.search(r"\d\.\d", line)]


@pytest.mark.parametrize("folder", ["docs/pictures"])
def test_pictures_show_what_was_measured(folder):
    drawn = dict(pictures(read_results([ROOT / "results"])))
    kept = {path.name: path.read_text() for path in (ROOT / folder).glob("*.svg")}
    assert set(kept) & set(drawn)
    for name in set(kept) & set(drawn):
        assert kept[name] == drawn[name], f"{name}: make report draws it anew"
