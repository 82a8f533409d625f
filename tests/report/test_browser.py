"""The page in a real browser: sorting, no errors, a phone's width, darkness, print."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from longlens.report.build import build_page
from longlens.report.results import Results, read_results
from tests.report.sample import write_results
from tests.report.test_page import audit, lens

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # Without its sandbox: it cannot be had as root, and the page is our own.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    found = read_results([write_results(folder / "results")])
    results = Results(found.experiments, (audit(), lens()), found.benches)
    (folder / "report.html").write_text(build_page(results))
    return (folder / "report.html").as_uri()


@pytest.fixture
def open_page(browser, address):
    opened, troubles = [], []

    def visit(width=1280, part="#t-table2", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url))
        page.goto(address + part)  # a link to a folded part opens it
        assert troubles == [address] * len(opened)  # the page itself is the only request
        return page

    yield visit
    for context in opened:
        context.close()
    assert troubles == [address] * len(opened)  # no message in the console, ever


def first_column(page, table):
    return page.locator(f"{table} tbody th").all_inner_texts()


PART = "#t-table2"
MATRIX = f"{PART} > .scroll table"
CONDITIONS = "#conditions-table2"


def test_tables_sort_on_click(open_page):
    page = open_page()
    head = page.locator(f"{MATRIX} thead th").nth(1)  # ListOps
    before = first_column(page, MATRIX)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    # ours first (54, 38), then published ones from high to low, then what has neither
    high = ["LaS", "Transformer", 'MEGA <&> "friends"', "S4", "LaS-chunk", "Nobody"]
    assert first_column(page, MATRIX) == high != before
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    low = ["Transformer", "LaS", "LaS-chunk", "S4", 'MEGA <&> "friends"', "Nobody"]
    assert first_column(page, MATRIX) == low
    other = page.locator(f"{MATRIX} thead th").nth(0)
    other.locator("button").click()
    assert head.get_attribute("aria-sort") is None
    assert first_column(page, MATRIX) == sorted(before, key=str.lower, reverse=True)
    assert "sorted by model, descending" in page.locator("#said").inner_text()


def test_tables_sort_by_keyboard(open_page):
    page = open_page()
    for key, order in (("Enter", "descending"), (" ", "ascending")):
        page.locator(f"{MATRIX} thead th button").nth(0).focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "ListOps"
        page.keyboard.press(key)
        head = page.locator(f"{MATRIX} thead th").nth(1)
        assert head.get_attribute("aria-sort") == order
    assert first_column(page, MATRIX)[0] == "Transformer"


def test_words_and_numbers_of_other_tables_sort(open_page):
    page = open_page()
    table = f"{CONDITIONS} table"
    page.locator(f"{CONDITIONS} summary").click()
    heads = page.locator(f"{table} thead th").all_inner_texts()
    ours = next(i for i, head in enumerate(heads) if head.startswith("ours"))
    page.locator(f"{table} thead th button").nth(ours).click()
    column = page.locator(f"{table} tbody tr td:nth-child({ours + 1})").all_inner_texts()
    numbers = [float(text.split()[0]) for text in column if text != "—"]
    assert numbers == sorted(numbers, reverse=True) and column[-1] == "—"


@pytest.mark.parametrize("width", [390, 320, 768, 1280])
def test_the_page_never_scrolls_sideways(open_page, width):
    page = open_page(width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.locator(f"{MATRIX} >> xpath=..")
    if width == 390:  # the table scrolls inside its own box, its first column stays
        wide.evaluate("(box) => { box.scrollLeft = 200; }")
        assert wide.evaluate("(box) => box.scrollLeft") == 200
        box = page.locator(f"{MATRIX} tbody th").first.bounding_box()
        assert 0 <= box["x"] < 60


def test_charts_are_visible(open_page):
    page = open_page()
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    boxes = [chart.bounding_box() for chart in page.locator("svg >> visible=true").all()]
    assert len(boxes) >= 10
    assert all(box["width"] > 250 and box["height"] > 100 for box in boxes)
    lines = page.locator("#validation-table2 polyline").all()
    assert lines and all(line.bounding_box()["width"] > 100 for line in lines)


def colours(page, selector="body"):
    return page.locator(selector).first.evaluate(
        "(e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    )


def brightness(colour):
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))


def test_light_and_dark(open_page):
    for scheme, sign in (("light", 1), ("dark", -1)):
        page = open_page(color_scheme=scheme)
        ink, ground = map(brightness, colours(page))
        assert sign * (ground - ink) > 400
        line = brightness(colours(page, "polyline")[0])
        assert sign * (ground - line) > 150


def test_print(open_page):
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(f"{CONDITIONS} table").evaluate("(e) => e.checkVisibility()")
    assert colours(page)[1] == "rgb(255, 255, 255)"
    assert page.locator(MATRIX).evaluate("(e) => getComputedStyle(e.parentElement).overflowX") == (
        "visible"
    )
    assert len(page.pdf(prefer_css_page_size=True)) > 10_000


def test_without_scripts_everything_is_there(open_page):
    page = open_page(java_script_enabled=False)
    assert page.locator(f"{MATRIX} tbody tr").count() == 6
    assert page.locator("th button").count() == 0


def test_the_skip_link_comes_first(open_page):
    page = open_page(part="")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url.endswith("#main"), timeout=5000)  # a moment later


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The page of the repository's own results."""
    path = tmp_path_factory.mktemp("real") / "report.html"
    path.write_text(build_page(read_results([Path(__file__).parents[2] / "results"])))
    return path.as_uri()


def test_the_first_screen_has_findings_and_a_figure(browser, real):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(real)
    bottoms = [box.bounding_box() for box in page.locator(".points li").all()]
    figure = page.locator("figure.full svg >> visible=true").first.bounding_box()
    assert sum(box["y"] + box["height"] < 900 for box in bottoms) >= 3
    assert figure["y"] + min(figure["height"], 200) < 900 and figure["width"] > 1000
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000
    page.close()


@pytest.mark.slow
def test_axe_finds_nothing(browser, real, tmp_path):
    """Contrast, headings, names and roles, by the rules of axe-core, which npm fetches."""
    pack = ["npm", "pack", "axe-core", "--silent"]
    try:
        done = subprocess.run(pack, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        pytest.skip("no npm on this machine")
    if done.returncode:
        pytest.skip("npm cannot fetch axe-core")
    with tarfile.open(tmp_path / done.stdout.strip()) as archive:
        archive.extract("package/axe.min.js", tmp_path, filter="data")
    for width, scheme in ((1280, "light"), (390, "dark")):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
        )
        page = context.new_page()
        page.goto(real)
        page.add_script_tag(path=tmp_path / "package" / "axe.min.js")
        found = page.evaluate("axe.run(document)")
        assert [rule["id"] for rule in found["violations"]] == []
        assert {"color-contrast", "heading-order"} <= {rule["id"] for rule in found["passes"]}
        context.close()


# Words of charts that stick out of their picture, and the least size of letters, in pixels.
LABELS = """() => {
  const out = [], sizes = [];
  for (const chart of document.querySelectorAll("figure svg")) {
    const box = chart.getBoundingClientRect();
    if (!box.width) continue;
    sizes.push(12.5 * box.width / chart.viewBox.baseVal.width);
    for (const word of chart.querySelectorAll("text")) {
      const b = word.getBoundingClientRect();
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.bottom > box.bottom + 1)
        out.push(`${chart.getAttribute("aria-label")}: ${word.textContent}`);
    }
  }
  return [out, Math.min(...sizes), document.documentElement.scrollWidth];
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_is_cut_off_and_all_can_be_read(browser, real, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(real)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    out, smallest, wide = page.evaluate(LABELS)
    assert out == [] and smallest > 9.5 and wide <= width
    assert "…" not in page.locator("figure").first.inner_text()
    page.close()
