"""The page's structure, without a browser: headings, tables, escaping, size, colours."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest

from longlens.charts import svg
from longlens.report import build
from longlens.report.audits import audit_part, summary
from longlens.report.build import build_page
from longlens.report.results import Measurement, Results, read_results
from tests.report.sample import write_results

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Collects elements and checks that they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attrs for name, attrs, _ in self.elements if name == tag]


def audit():
    return Measurement(
        "audit_image",
        "audit",
        {
            "schema": 1,
            "kind": "audit",
            "task": "image",
            "title": "Audit of image",
            "verdict": {"text": "short range: a field of <61> is enough", "confidence": 0.97},
            "chance": 0.1,
            "length": 1024,
            "curve": [
                {
                    "model": "conv 5",
                    "receptive_field": 5,
                    "seeds": 2,
                    "test": 0.61,
                    "gain": 0.51,
                    "validation": 0.62,
                    "deviation": 0.01,
                },
                {
                    "model": "conv 61",
                    "receptive_field": 61,
                    "seeds": 1,
                    "test": 0.8,
                    "gain": 0.7,
                    "validation": 0.81,
                    "deviation": None,
                },
                {
                    "model": "s4d",
                    "receptive_field": None,
                    "seeds": 1,
                    "test": 0.85,
                    "gain": 0.75,
                    "validation": 0.86,
                    "deviation": None,
                },
            ],
            "points": [
                {
                    "model": "conv 9",
                    "receptive_field": 9,
                    "seed": 1,
                    "status": "failed",
                    "error": "out of memory",
                    "steps": None,
                }
            ],
            "ranges": {"of_accuracy": {"0.90": {"receptive_field": 61, "interval": [61, None]}}},
            "published": {"kernel": 61, "ratio": 0.925, "source": "the locality study"},
            "ratio": {"receptive_field": 61, "ratio": 0.9412, "of": "s4d"},
            "diagnostics": {
                "majority": 0.1,
                "chance": 0.1,
                "trigrams": {"test": 0.3, "l2": 0.1},
                "mutual_information": {
                    "positions": [
                        {"position": p, "bits": 0.01 * p, "floor": 0.005} for p in range(3)
                    ]
                },
                "shuffled_trigrams": [
                    {"kind": kind, "window": w, "test": 0.2}
                    for kind in ("inside", "blocks")
                    for w in (2, 64)
                ],
            },
            "groups": {"depth": {"conv 5": {"2": {"accuracy": 0.5, "count": 3}}}},
            "certificate": {"holds": True, "method": "exact"},
            "data": {"identity": "e" * 64, "name": "image", "stands_in_for": None},
            "options": {"seeds": 2, "quick": False, "budget": "5m"},
            "provenance": {"hardware": "NVIDIA H200", "commit": "fed987"},
        },
    )


def lens():
    layer = {
        "layer": 0, "view": "attention", "part": "weights", "profile": [[0, 1.0], [1, 0.5]],
        "median": {"decay_rate": 0.1, "fit": None, "mass_beyond": {"16": 0.25}},
    }  # fmt: skip
    values = {
        "schema": 1,
        "kind": "lens",
        "title": "fresh layers",
        "views": {"attention": "mean weight"},
        "subjects": [{"name": "las", "layers": [layer]}],
    }
    return Measurement("lens_fresh", "lens", values)


def comparison():
    rows = [{"layer": "luna", "compared with": "code", "deviation": 4.6e-16}]
    return Measurement("originals", "comparison", {"title": "against code", "rows": rows})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = read_results([write_results(tmp_path_factory.mktemp("results"))])
    return Results(found.experiments, (audit(), lens(), comparison()), found.benches)


@pytest.fixture(scope="module")
def text(results):
    return build_page(results)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_it_needs_nothing_beside_itself(text, page):
    assert len(text.encode()) < 300_000
    assert not [a for _, a, _ in page.elements if {"src", "srcset"} & set(a)]
    links = [attrs["href"] for attrs in page.all("a")]
    ids = {attrs.get("id") for _, attrs, _ in page.elements}
    assert links and all(link[0] == "#" and link[1:] in ids for link in links)
    assert not re.search(r"https?://|@import|url\(", text)
    (policy,) = [a["content"] for a in page.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'")


def test_headings_are_in_order(page):
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_it_can_be_read_by_ear(page):
    assert page.all("html")[0]["lang"] == "en"
    assert page.elements[[t for t, _, _ in page.elements].index("body") + 1][1]["class"] == "skip"
    assert {"header", "main", "footer"} <= {tag for tag, _, _ in page.elements}
    tables = page.all("table")
    assert len(tables) == len(page.all("caption")) > 8
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in page.all("svg"))
    assert len({a["id"] for _, a, _ in page.elements if "id" in a}) == sum(
        "id" in a for _, a, _ in page.elements
    )
    for attrs in page.all("section"):
        heads = [a for level in ("h2", "h3") for a in page.all(level)]
        assert any(a.get("id") == attrs["aria-labelledby"] for a in heads)
    wide = [attrs for attrs in page.all("div") if attrs.get("class") == "scroll"]
    assert len(wide) == len(tables) and all(a["tabindex"] == "0" and a["aria-label"] for a in wide)


def test_names_are_escaped(text, page):
    assert "<&>" not in text and "<nan>" not in text and "<61>" not in text
    words = [data for _, data in page.texts]
    for word in ('MEGA <&> "friends"', "the loss is <nan> at step 300"):
        assert word in words
    assert any("<images>" in word for word in words)


def test_it_shows_numbers_marks_failures_and_dashes(page):
    words = " ".join(" ".join(data for _, data in page.texts).split())
    for shown in (
        "54.00 ± 1.41 1 failed (53.05)",
        "90.00 stand-in (81.62)",
        "(88.21)",
        "4 of 5 numbers better than published (−1.44 to +2.06)",
        "Runs that did not finish",
        "short range: a field of <61> is enough",
        "ours, whole stack 61 61 94.1 s4d",
        "published, kernel of each layer 61 — 92.5 MEGA the locality study",
        "90 % of its accuracy 61 61 … more",
        "trigrams 30.0",
        "conv 9 image 1 failed — out of memory",
        "image: test accuracy (%) by depth",
        "holds yes",
        "Text: validation is carved from train",
        "ListOps by operator, test accuracy (%)",
        "MIN ",
        "uncommitted",
        "NVIDIA H200",
        "abc123def456",
        "fresh layers: medians over channels or heads",
    ):
        assert shown in words, shown
    numbers = [a for a in page.all("td") if a.get("class") == "number"]
    assert len(numbers) > 50  # flush right


def test_it_shows_layers_compared_with_code(text):
    assert "against code" in text and "luna" in text and "4.6e−16" in text


def test_charts_are_well_formed(text):
    charts = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(charts) >= 10
    for chart in charts:
        root = ET.fromstring(chart)
        width, height = map(float, root.get("viewBox").split()[2:])
        for mark in root.iter("text"):
            assert 0 <= float(mark.get("x")) <= width and 0 <= float(mark.get("y")) <= height


def test_a_large_page_is_drawn_with_fewer_points_or_refused(results, text, monkeypatch):
    size = len(text.encode())
    monkeypatch.setattr(build, "LIMIT", size - 1)
    assert len(build_page(results).encode()) < size
    monkeypatch.setattr(build, "LIMIT", 1000)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        build_page(results)


def test_a_page_of_nothing_says_so(tmp_path):
    page = Page(build_page(Results()))
    words = [data for _, data in page.texts]
    assert "No run failed or was stopped." in words


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_an_audit_of_other_data_is_compared_with_nothing():
    def shares(values):
        part = audit_part(Measurement("audit_pathfinder", "audit", values))
        (table,) = [t for t in part.parts[0].tables if "share of a global" in t.caption]
        return [row[0] for row in table.rows], [words.partition(":")[0] for words in part.text[:-1]]

    values = dict(audit().values)
    ours, published = "ours, whole stack 61", "published, kernel of each layer 61"
    assert shares(values) == ([ours, published], [])
    assert shares(values | {"data": {"stands_in_for": "LRA's images"}}) == ([ours], ["Stand-in"])
    assert shares(values | {"outdated": "version 2 of the images"}) == ([ours], ["Older version"])


def test_the_table_of_audits_tells_stacks_from_layers_and_names_the_floor():
    values = dict(audit().values)
    floor = {"name": "trigrams", "test": 0.3}
    values["verdict"] = {"category": "short range", "decided": False, "confidence": None,
                         "seeds": 1, "floor": floor}  # fmt: skip
    table = summary([Measurement("audit_image", "audit", values)])
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["verdict"] == "short range, undecided" and row["confidence (%)"] == "—"
    assert row["without a network (%)"] == "30.0" and row["seeds"] == "1"
    assert row["whole stack sees 61 / global (%)"] == "94.1"
    assert row["published: kernel 61 in each layer / MEGA (%)"] == "92.5"
    values["layer_ratio"] = {"receptive_field": 241, "kernels": [61] * 4, "ratio": 0.97, "of": "a"}
    table = summary([Measurement("audit_image", "audit", values)])
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["kernel 61 in each layer / global (%)"] == "97.0"


def test_an_audit_that_has_just_begun_can_be_shown():
    values = {"schema": 1, "kind": "audit", "task": "text", "curve": [], "points": []}
    part = audit_part(Measurement("audit_text", "audit", values))
    assert part.title == "text" and part.said == "Nothing is known yet." and not part.figures


@pytest.mark.parametrize("scheme", [0, 1])
def test_contrast(scheme):
    css = (files("longlens.report") / "page" / "style.css").read_text()
    root = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", root))
    for ground in ("ground", "card", "head"):
        for ink in ("ink", "quiet", "link"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for line in (svg.LIGHT, svg.DARK)[scheme]:
            assert contrast(line, colours[ground]) >= 3, (line, ground)
    assert contrast(colours["mark"], colours["mark-ground"]) >= 4.5


def test_the_report_needs_no_torch(tmp_path):
    folder = write_results(tmp_path / "results")
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy']))\n"
        "from longlens.cli.main import main\n"
        f"sys.exit(main(['report', {str(folder)!r}, '-o', {str(tmp_path / 'page.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "page.html").exists(), done.stderr
