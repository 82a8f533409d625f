"""Numbers in the prose of README and docs: each is in a record that its section names.

Marked tables are covered by test_results.py. Here every decimal number, and every whole one with a
unit of measurement, must be found in a file under results/ that the same section links, rounded as
it is written; or numbers_without_record.toml says why it comes from no record. The log, a diary of
what was tried with the code as it was then, is left out.
"""

import csv
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from longlens.experiments.catalog import NAMES
from longlens.report.cells import table
from longlens.report.formats import BLOCK
from longlens.report.results import read_file
from longlens.runs.results import ResultTable

ROOT = Path(__file__).parent.parent
PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.name != "log.md"
}
EXCEPTIONS = tomllib.loads((Path(__file__).parent / "numbers_without_record.toml").read_text())

UNITS = r" ?%| points\b| times as| ?× (?!\d)| ms\b| MiB\b| GiB\b"
NUMBER = re.compile(rf"(?<![\w.,/-])(\d[\d,]*\.\d+|\d[\d,]*(?={UNITS}))(?![\w.]*\d)")
SOURCE = re.compile(r"results/[\w*\[\]-]+\.(?:json|csv)")
# code, link targets, formulas, identifiers of papers, values of parameters (as in B = 0.001)
NOT_PROSE = re.compile(
    r"`[^`]*`|\]\([^)]*\)|^    .*$|<!--.*?-->|\b\d{4}\.\d{5}\b|\b[A-Za-zα]\w* ?[=≤<>≥] ?[\d.e-]+",
    re.M,
)


def sections(page: str) -> Iterator[tuple[str, set[str], str]]:
    """Heading, the result files it names and the prose of each section of a page."""
    text = re.sub(r"^```.*?^```", "", PAGES[page].read_text(), flags=re.DOTALL | re.MULTILINE)
    for section in re.split(r"^(?=#)", text, flags=re.MULTILINE):
        prose = NOT_PROSE.sub(" ", BLOCK.sub("", section))
        yield section.partition("\n")[0], set(SOURCE.findall(section)), prose


def leaves(values: object) -> Iterator[float]:
    """Single numbers inside a JSON value; of long lists (curves, profiles) none."""
    if isinstance(values, dict):
        for name, value in values.items():
            if name != "curves":
                yield from leaves(value)
    elif isinstance(values, list):
        numbers = [v for v in values if isinstance(v, int | float)]
        if len(numbers) <= 12:
            for value in values:
                yield from leaves(value)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield float(values)


@cache
def measured(pattern: str) -> frozenset[float]:
    """All numbers of the files that a pattern names, and the means and deviations over seeds."""
    found: set[float] = set()
    for path in ROOT.glob(pattern):
        if path.suffix == ".csv":
            for row in csv.DictReader(path.read_text().splitlines()):
                for value in row.values():
                    try:
                        found.add(float(value))
                    except ValueError:
                        continue
            continue
        found.update(leaves(json.loads(path.read_text())))
        part = read_file(path)
        if isinstance(part, ResultTable):
            cells = [cell for cells in table(part).values() for cell in cells.values()]
            found.update(v for c in cells for v in (c.mean, c.deviation) if v is not None)
    return frozenset(found)


def is_measured(word: str, sources: set[str]) -> bool:
    """Whether a number as written is one of the sources', as it is or in percent."""
    value = float(word.replace(",", ""))
    half = 0.5 * 10.0 ** -len(word.partition(".")[2])
    return any(
        abs(value - scale * other) <= half * (1 + 1e-9)
        for source in sources
        for other in measured(source)
        for scale in (1, 100)
    )


def untraced(page: str, but: str = "") -> list[str]:
    """The numbers of a page that are in no record, with what stands around them.

    ``but`` is an exception that shall not count.
    """
    allowed = [e["text"] for e in EXCEPTIONS.get(page, []) if e["text"] != but]
    found = []
    for heading, sources, prose in sections(page):
        prose = " ".join(prose.split())
        for text in allowed:
            prose = prose.replace(text, " ")
        for match in NUMBER.finditer(prose):
            if not is_measured(match[1], sources):
                around = prose[max(0, match.start() - 60) : match.end() + 40]
                found.append(f"{heading}: {match[1]} in: … {around} …")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_in_a_record_that_their_section_names(page):
    assert untraced(page) == []


def test_exceptions_have_reasons_and_are_needed():
    for page, exceptions in EXCEPTIONS.items():
        for exception in exceptions:
            assert exception["why"], exception
            assert untraced(page, but=exception["text"]), f"{page}: {exception} is not needed"


def test_a_wrong_number_would_be_found(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    record = "[records](results/table2.json)"
    page.write_text(f"# Text\n\nLaS has 73.31 % and softmax 65.27 ({record}).\n")
    monkeypatch.setitem(PAGES, "page", page)
    assert untraced("page") == []
    page.write_text(f"# Text\n\nLaS has 74.31 % and softmax 65.27 ({record}).\n")
    assert len(untraced("page")) == 1
    page.write_text("# Text\n\nLaS has 73.31 %.\n")  # no record is named
    assert len(untraced("page")) == 1


def test_docs_name_the_experiments_without_a_run():
    line = re.search(r"^No run yet: (.+)\.$", PAGES["docs/experiments.md"].read_text(), re.M)
    assert line is not None
    missing = [name for name in NAMES if not (ROOT / "results" / f"{name}.json").exists()]
    assert re.findall(r"`(\w+)`", line[1]) == missing
