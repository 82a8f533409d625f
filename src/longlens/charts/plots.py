"""Charts as SVG: lines over a scale, dots over categories, maps of values, and panels of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from longlens.charts.scales import limits, log_ticks, short, ticks
from longlens.charts.svg import (
    GRID,
    LETTER,
    LINE_HEIGHT,
    Line,
    bar_of,
    bare,
    curve,
    extent,
    frame,
    legend,
    level,
    mark,
    rule,
    sample,
    text,
    wrapped,
)
from longlens.tables import Table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MARGIN, TOP, FLOOR = 46, 46, 40
LEVELS = (6, 7, 5, 4)  # styles
FAINT = 'stroke="currentColor" opacity=".6"'
Values = Mapping[str, Mapping[str, float]]  # by category and series


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_name: str,
    y_name: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
    x_ticks: Sequence[float] | None = None,
    reference: float | None = None,
    named: bool = True,
    width: int = 400,
    height: int = 300,
) -> str:
    """Curves on common axes.

    ``x_ticks`` sets the ticks of x (an experiment's own values); axes are logarithmic on request
    and then take values above zero alone; ``reference`` is a y that is always there and has a line.
    The picture is as high as its legend (unless ``named`` is False) needs beyond ``height``.
    """
    points = [point for line in lines for point in line.points] or [(1.0, 1.0)]
    scaled = [*(x for x, _ in points if log_x), *(y for _, y in points if log_y)]
    if scaled and min(scaled) <= 0:
        raise ValueError(f"{title}: a logarithmic axis has no place for values of 0 or less")
    if reference is not None:
        points = [*points, (points[0][0], reference)]
    scale = math.log10 if log_x else float
    scale_y = math.log10 if log_y else float
    x0, x1, y0, y1 = limits([(scale(x), scale_y(y)) for x, y in points])
    room = 0.04 * (y1 - y0)
    y0, y1 = y0 - room, y1 + room  # so that no curve hides behind the axis
    inner = 8 if any(line.mark for line in lines) else 0  # marks keep away from the labels
    y_marks = log_ticks(10**y0, 10**y1) if log_y else ticks(y0, y1)
    floor, right = height - FLOOR, width - 14
    left = max(MARGIN, 14 + LETTER * max(len(short(value)) for value in y_marks))

    def place(x: float, y: float) -> tuple[float, float]:
        across, down = (scale(x) - x0) / (x1 - x0), (y1 - scale_y(y)) / (y1 - y0)
        wide = right - left - 2 * inner
        return round(left + inner + across * wide, 1), round(TOP + down * (floor - TOP), 1)

    parts = []
    for value in y_marks:
        y = place(points[0][0], value)[1]
        parts.append(rule(f"M{left:g} {y}H{right}", GRID))
        parts.append(text(left - 6, y + 4, short(value), "end"))
    if reference is not None:
        y = place(points[0][0], reference)[1]
        parts.append(rule(f"M{left:g} {y}H{right}", FAINT))
    chosen = x_ticks or (log_ticks(10**x0, 10**x1) if log_x else ticks(x0, x1, width // 65))
    places = [(place(value, points[0][1])[0], short(value)) for value in chosen]
    drawn, bottom = _x_axis(places, left, right, floor, x_name)
    parts += drawn
    for line in lines:
        parts += curve(line, [place(*point) for point in line.points])
    entries = [(line.name, sample(line)) for line in lines] if named else []
    drawn, bottom = legend(entries, width, bottom + (6 if named else 0))
    return frame(title, y_name, width, bottom, [*parts, *drawn])


def _x_axis(
    places: Sequence[tuple[float, str]], left: float, right: float, floor: float, name: str
) -> tuple[list[str], float]:
    """The axis below: ticks, as many labels as there is room for, its name; and where it ends."""
    parts = [rule(f"M{left:g} {floor}H{right}")]
    edge = -math.inf
    for x, label in places:
        half = len(label) * LETTER / 2
        if x - half < edge:
            continue  # no room beside the label before
        edge = x + half + 6
        parts.append(rule(f"M{x} {floor}v4"))
        parts.append(text(min(max(x, left), right + 12 - 1.1 * half), floor + 17, label, "middle"))
    drawn, bottom = _axis_name(name, right, floor)
    return [*parts, *drawn], bottom


def _axis_name(name: str, right: float, floor: float) -> tuple[list[str], float]:
    """The name of the axis below, in as many lines as it needs; and where it ends."""
    lines = wrapped(name, right)
    parts = [text(right, floor + 33 + 15 * i, line, "end", "quiet") for i, line in enumerate(lines)]
    return parts, floor + FLOOR + 15 * (len(lines) - 1)


def _x_range(numbers: Sequence[float], log: bool) -> tuple[Callable[[float], float], float, float]:
    """How values are scaled, and where their axis begins and ends."""
    if not numbers or (log and min(numbers) <= 0):
        raise ValueError("rows: a chart needs values, for a logarithmic axis all above zero")
    scale = math.log if log else float
    low, high = scale(min(numbers)), scale(max(numbers))
    room = 0.05 * (high - low) or 0.5
    return scale, low - room, high + room


def dot_chart(
    title: str,
    rows: Values,
    x_name: str,
    y_name: str = "",
    *,
    hollow: Values | None = None,
    spread: Values | None = None,
    levels: Values | None = None,
    digits: int | None = None,
    log: bool = True,
    reference: float | None = None,
    joined: bool = False,
    width: int = 400,
) -> str:
    """Compare series over categories: a line a category, a dot a series.

    ``rows`` holds values by category and series, ``hollow`` those that others published, ``spread``
    how far a bar reaches to either side; what is missing has no dot. ``levels`` (name to category
    to value) are lines across a category, such as chance. With ``digits`` each series has a lane of
    its own and its value written there. ``reference`` draws a line to compare with, ``joined`` one
    from the first dot of a row to its last. Long names stand above their dots.
    """
    series = list(dict.fromkeys(name for values in rows.values() for name in values))
    hollow, spread, levels = hollow or {}, spread or {}, levels or {}
    numbers = [v for values in (*rows.values(), *hollow.values()) for v in values.values()]
    numbers += [v for marks in levels.values() for row, v in marks.items() if row in rows]
    numbers += [reference] if reference else []
    for row, bars in spread.items():
        numbers += [rows[row][name] + sign * bar for name, bar in bars.items() for sign in (1, -1)]
    scale, x0, x1 = _x_range(numbers, log)
    longest = max(map(extent, rows))
    names = {row: wrapped(row, width - 24) for row in rows} if longest > 0.45 * width else {}
    written = {} if digits is None else _written(rows, hollow, spread, digits)
    wide = LETTER * max(map(len, written.values()), default=0)
    left, right = 16 if names else 16 + longest, width - 16 - wide
    lane = min(3.0, 12 / len(series)) if digits is None else 15.0  # equal values are seen as two
    lane = 0 if joined else lane
    high = 26 if digits is None else 12 + lane * len(series)
    top = TOP - 4 if y_name else TOP - 16
    floor = top + sum(high + LINE_HEIGHT * len(names.get(row, ())) for row in rows)

    def place(value: float) -> float:
        return round(left + (scale(value) - x0) / (x1 - x0) * (right - left), 1)

    parts = []
    for value in log_ticks(math.exp(x0), math.exp(x1), 7) if log else ticks(x0, x1, width // 80):
        parts.append(rule(f"M{place(value)} {top}V{floor:g}", GRID))
        parts.append(text(place(value), floor + 17, short(value), "middle"))
    if reference:
        parts.append(rule(f"M{place(reference)} {top}V{floor:g}", FAINT))
    drawn, bottom = _axis_name(x_name, width - 16, floor)
    parts += drawn
    y = top - high / 2  # of the middle of a row
    for row, values in rows.items():
        for line in names.get(row, ()):
            y += LINE_HEIGHT
            parts.append(text(8, y + high / 2 - 4, line, "start"))
        y += high
        if not names:
            parts.append(text(left - 8, y + 4, row, "end"))
        for style, marks in zip(LEVELS, levels.values(), strict=False):
            if row in marks:
                parts.append(level(place(marks[row]), y - high / 2, high, style))
        if digits is None:
            parts.append(rule(f"M{left:g} {y:g}H{right:g}", GRID))
        if joined and values:
            ends = [place(value) for value in values.values()]
            parts.append(rule(f"M{min(ends)} {y:g}H{max(ends)}", FAINT))
        dots = [(name, value, True) for name, value in hollow.get(row, {}).items()]
        dots += [(name, value, False) for name, value in values.items()]
        for name, value, empty in dots:
            style = series.index(name) if name in series else len(series)
            aside = y + lane * (min(style, len(series) - 1) - (len(series) - 1) / 2)
            hint = f"{row}, {name}{' (published)' if empty else ''}: {value:.4g}"
            bar = 0 if empty else spread.get(row, {}).get(name, 0)
            if bar:
                parts.append(bar_of(place(value - bar), place(value + bar), aside, style))
            parts.append(mark(place(value), aside, style, empty, hint))
            if not empty and (row, name) in written:
                parts.append(text(right + 10, aside + 4, written[row, name], "start", "quiet"))
    entries = [(name, mark(11, -4, style)) for style, name in enumerate(series)]
    if any(hollow.values()):
        entries.append(("hollow: published", mark(11, -4, 6, hollow=True)))
    if any(spread.values()):
        entries.append(("bar: standard deviation over seeds", bar_of(2, 20, -4, 6)))
    for style, (name, marks) in zip(LEVELS, levels.items(), strict=False):
        if marks.keys() & rows.keys():
            entries.append((name, level(11, -12, 16, style)))
    drawn, bottom = legend(entries, width, bottom + 6)
    return frame(title, y_name, width, bottom, [*parts, *drawn])


def _written(
    rows: Values, hollow: Values, spread: Values, digits: int
) -> dict[tuple[str, str], str]:
    """The words beside dots: a value, its spread, and in parentheses what was published."""
    words = {}
    for row, values in rows.items():
        bars, published = spread.get(row, {}), hollow.get(row, {})
        for name, value in values.items():
            bar = f" ± {bars[name]:.{digits}f}" if name in bars else ""
            beside = f" ({published[name]:.{digits}f})" if name in published else ""
            words[row, name] = f"{value:.{digits}f}{bar}{beside}"
    return words


def heat_map(
    title: str,
    values: npt.NDArray[np.floating],
    x_name: str,
    y_name: str,
    *,
    low: float,
    high: float,
    length: int | None = None,
    width: int = 220,
) -> str:
    """A square matrix as colours, from dark at ``low`` to bright at ``high``; NaN is left out.

    ``length`` is what the axes count to, if that is not the size of the matrix. Needs Pillow.
    """
    from longlens.charts.raster import colour_map, data_uri

    count = len(values) if length is None else length
    left, right = MARGIN, width - 14
    floor = TOP + right - left
    parts = [
        f'<image x="{left}" y="{TOP}" width="{right - left}" height="{right - left}" '
        f'href="{data_uri(colour_map(values, low, high))}" style="image-rendering:pixelated" '
        'preserveAspectRatio="none"/>'
    ]
    for value in ticks(0, count, 4):
        y = round(TOP + value / count * (floor - TOP), 1)
        parts.append(rule(f"M{left} {y}h-4"))
        parts.append(text(left - 6, y + 4, short(value), "end"))
    parts.append(rule(f"M{left} {TOP}V{floor}"))
    places = [
        (round(left + value / count * (right - left), 1), short(value))
        for value in ticks(0, count, 3)
    ]
    drawn, bottom = _x_axis(places, left, right, floor, x_name)
    return frame(title, y_name, width, bottom, [*parts, *drawn])


def panels(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Several charts as one picture: rows of them below each other.

    >>> chart = line_chart("a", [Line("b", [(0, 0), (1, 1)])], "x", width=200, height=100)
    >>> panels("both", [[chart, chart]]).split(" width=")[1][:5]
    '"400"'
    """
    parts, right, bottom = [], 0.0, 0.0
    for row in rows:
        x, lowest = 0.0, bottom
        for chart in row:
            size = re.search(r'width="([\d.]+)" height="([\d.]+)"', chart)
            assert size is not None
            parts.append(f'<svg x="{x:g}" y="{bottom:g}"{chart.removeprefix("<svg")}')
            x += float(size[1])
            lowest = max(lowest, bottom + float(size[2]))
        right, bottom = max(right, x), lowest
    return bare(title, right, bottom, parts)


def table_chart(title: str, table: Table) -> str:
    """A table as a picture: a line under its head, every other row shaded."""
    widths = [
        (max(map(len, column)) + 2) * LETTER for column in zip(table.head, *table.rows, strict=True)
    ]
    whole, parts = 16 + sum(widths), []
    for number, line in enumerate((table.head, *table.rows)):
        y = TOP + LINE_HEIGHT * number
        if number and number % 2 == 0:
            place = f'x="8" y="{y - 14}" width="{whole - 16:g}" height="{LINE_HEIGHT}"'
            parts.append(f'<rect {place} fill="currentColor" opacity=".06"/>')
        x = 8.0
        for place_in_row, (word, width) in enumerate(zip(line, widths, strict=True)):
            first = place_in_row == 0
            parts.append(
                text(x + 4 if first else x + width / 2, y, word, "start" if first else "middle")
            )
            x += width
    parts.append(rule(f"M8 {TOP + 5}H{whole - 8:g}"))
    return frame(title, "", whole, TOP + LINE_HEIGHT * len(table.rows) + 14, parts)
