"""Charts as text, SVG and PNG: well formed, inside their frames, saying what they were given."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from longlens.charts import (
    Line,
    dot_chart,
    heat_map,
    line_chart,
    panels,
    standalone,
    table_chart,
    text_chart,
)
from longlens.charts.raster import ANCHORS, as_png
from longlens.charts.scales import log_ticks, ticks
from longlens.tables import Table

BRAILLE = re.compile(r"[\u2801-\u28ff]")
SVG = "{http://www.w3.org/2000/svg}"


def test_text_curves_have_their_size_and_go_down():
    falling = Line("loss", [(x, 100.0 - x) for x in range(101)])
    lines = text_chart(falling, width=20, height=5).splitlines()
    assert lines[0] == "loss" and len(lines) == 1 + 5 + 2
    bodies = [line.split("┤")[-1].split("│")[-1] for line in lines[1:6]]
    assert all(len(body) == 20 for body in bodies)
    first = [min(m.start() for m in BRAILLE.finditer(body)) for body in bodies]
    assert first == sorted(first) and first[0] == 0  # further down is further right
    assert lines[-1].split() == ["0", "100"]
    assert "100.000" in lines[1] and "0.000" in lines[5]


@pytest.mark.parametrize("points", [[(3.0, 2.0)], [(0.0, 1.0), (1.0, 1.0)], [(0.0, 0.0)]])
def test_flat_and_single_points_are_drawn(points):
    assert BRAILLE.search(text_chart(Line("x", points)))
    ET.fromstring(standalone(line_chart("x", [Line("x", points)], "step")))


def test_nothing_to_draw():
    assert text_chart(Line("loss", [])) == "loss: nothing to draw"
    ET.fromstring(standalone(line_chart("x", [], "step")))


def test_svg_is_well_formed_and_inside_its_frame():
    curves = [Line(f"<run> {i}", [(x, x * i) for x in range(5)], i) for i in range(12)]
    picture = ET.fromstring(standalone(line_chart("a & b", curves, "step")))
    width, height = (float(v) for v in picture.attrib["viewBox"].split()[2:])
    lines = picture.findall(f"{SVG}polyline")
    assert (
        len(lines) == 12 and len({(p.get("color"), p.get("stroke-dasharray")) for p in lines}) == 12
    )
    for line in lines:
        points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    heights = [float(line.get("points").split()[-1].split(",")[1]) for line in lines]
    assert heights == sorted(heights, reverse=True)  # higher values are drawn higher
    for text in picture.findall(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height


def test_ticks_are_round_and_inside():
    for low, high in ((0.123, 0.789), (-3, 1e5), (1e-6, 2e-6), (5, 5)):
        marks = ticks(low, high)
        assert all(low - 1e-9 <= mark <= high + 1e-9 for mark in marks) and 1 <= len(marks) <= 8


def test_ticks_of_many_powers_of_ten_have_one_among_them():
    assert 1.0 in log_ticks(1e-7, 1.3, 6) and 1.0 in log_ticks(0.9, 10**6, 4)


def test_a_reference_is_always_on_the_axis():
    high = [Line("a", [(0, 5.0), (1, 6.0)])]
    labels = [
        float(text.text)
        for text in ET.fromstring(standalone(line_chart("t", high, "x", reference=0.0))).iter(
            f"{SVG}text"
        )
        if text.get("text-anchor") == "end" and text.text != "x"
    ]
    assert min(labels) == 0.0 and "legend" not in line_chart("t", high, "x", named=False)


def test_joined_dots_are_on_one_line():
    picture = standalone(dot_chart("t", {"a": {"50 %": 1.0, "90 %": 8.0}}, "x", joined=True))
    marks = [
        path.get("transform") for path in ET.fromstring(picture).findall(f"{SVG}path[@transform]")
    ]
    assert len({mark.split()[1] for mark in marks}) == 1 and len(marks) == 2


def test_a_map_has_a_pixel_for_each_value():
    values = np.array([[0.0, np.nan], [0.5, 1.0]])
    picture = standalone(heat_map("t", values, "key", "query", low=0, high=1))
    (image,) = ET.fromstring(picture).findall(f"{SVG}image")
    png = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    expected = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in ANCHORS]
    assert pixels.shape == (2, 2, 4) and pixels[0, 1, 3] == 0
    for (row, column), colour in (
        ((0, 0), expected[0]),
        ((1, 0), expected[4]),
        ((1, 1), expected[-1]),
    ):
        assert pixels[row, column].tolist() == [*colour, 255]


def test_panels_lie_beside_and_below_each_other():
    chart = line_chart("a < b", [Line("c", [(0, 0), (1, 1)])], "x", width=200, height=120)
    picture = ET.fromstring(standalone(panels("all & more", [[chart, chart], [chart]])))
    inner = picture.findall(f"{SVG}svg")
    assert [(c.get("x"), c.get("y") == "0") for c in inner] == [
        ("0", True), ("200", True), ("0", False),
    ]  # fmt: skip
    assert picture.get("width") == "400" and picture.get("aria-label") == "all & more"


def test_png_files_have_the_words_and_colours_of_the_chart():
    chart = standalone(line_chart("Title", [Line("c", [(0, 0), (1, 1)])], "x"))
    pixels = np.asarray(Image.open(io.BytesIO(as_png(chart, zoom=2))).convert("RGB"))
    assert pixels.shape[1] == 800
    assert (pixels[:50] < 100).all(-1).any(), "the title is black on white"
    assert (pixels.reshape(-1, 3) == (0x00, 0x72, 0xB2)).all(-1).any(), "the line has its colour"
    assert (pixels[-1, -1] == 255).all()


def test_a_table_is_a_picture_too():
    table = Table(["layer", "rate"], [["las <1>", "0.1"], ["s4", "0.2"], ["x", "0.3"]])
    picture = ET.fromstring(standalone(table_chart("Aspects", table)))
    words = [text.text for text in picture.findall(f"{SVG}text")]
    assert words == ["Aspects", "layer", "rate", "las <1>", "0.1", "s4", "0.2", "x", "0.3"]
    assert len(picture.findall(f"{SVG}rect")) == 1
