"""Every benchmark number in the README comes from a file under results/."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text())


def table(path):
    """The Markdown table that the README must show for a file of `longlens bench ops`."""
    lines = [
        "| B,H,L,D | attention | forward + backward | to plain SDPA | peak memory | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in csv.DictReader(path.read_text().splitlines()):
        error = "" if row["error"] == "nan" else f"{float(row['error']):.0e}"
        lines.append(
            f"| {row['shape']} | {row['implementation']} "
            f"| {float(row['forward_backward_ms']):.4g} ms | {float(row['ratio_to_plain']):.2f} × "
            f"| {float(row['peak_mib']):.0f} MiB | {error} |"
        )
    return "\n".join(lines) + "\n"


def test_the_readme_has_tables():
    assert BLOCKS


@pytest.mark.parametrize(("name", "shown"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_readme_shows_what_was_measured(name, shown):
    assert shown == table(ROOT / name)
