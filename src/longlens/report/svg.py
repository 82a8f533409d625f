"""Charts as SVG: lines over a scale, dots over categories. Colours follow the reader's scheme.

The two palettes hold the hues of Okabe and Ito, which people with any colour vision tell apart,
darkened for white ground and lightened for black until each has a contrast of three to one.
Marks and dashes differ as well, so that nothing rests on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

LIGHT = ("#0072b2", "#c44e00", "#007a5a", "#a8457f", "#8f6500", "#5a4fcf", "#6b7280", "#b3261e")
DARK = ("#5ab4f0", "#ff9d5c", "#3fd0a4", "#e59bc4", "#e6c24a", "#aaa2ff", "#b4bac4", "#ff8a80")
DASHES = ("", "6 3", "2 2")
FONT = 12.5
LETTER = 7.3  # about the width of one letter of that size
MARGIN, TOP, FLOOR, LINE = 46, 46, 40, 19


@dataclass(frozen=True)
class Line:
    """A curve: points (x, y) with rising x. ``style`` chooses its colour (and dash).

    ``mark`` draws the points; ``hollow`` draws the line thin, dashed and its points empty, for what
    others published; ``broken`` ends it with a cross, for a run that did not finish.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0
    mark: bool = False
    hollow: bool = False
    broken: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that divide ``low`` … ``high`` into about ``count`` parts.

    >>> ticks(0.13, 0.88), ticks(0, 1000, 4)
    ([0.2, 0.4, 0.6, 0.8], [0.0, 500.0, 1000.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """1, 2, 5, 10 … between ``low`` and ``high``, or whole powers of ten where those are many.

    Where fewer than three of them lie between, round numbers at even distances.

    >>> log_ticks(0.9, 60), log_ticks(1, 10**6, 4)
    ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [1.0, 100.0, 10000.0, 1000000.0])
    >>> log_ticks(0.97, 1.32)
    [1.0, 1.1, 1.2, 1.3]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        marks = [d * 10.0**e for e in range(first, last + 1, every) for d in digits]
        marks = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if len(marks) <= most:
            return marks if len(marks) > 2 else ticks(low, high)
    return marks


def short(value: float) -> str:
    """A tick's label.

    >>> short(20000), short(0.25), short(1.5e6), short(16384)
    ('20k', '0.25', '1.5M', '16.4k')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.3g}{unit}"
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.0e}"


def fitted(text: str, most: int) -> str:
    """Text of at most ``most`` letters.

    >>> fitted("receptive field", 10), fitted("depth", 10)
    ('receptive…', 'depth')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_name: str,
    y_name: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
    x_ticks: Sequence[float] | None = None,
    width: int = 400,
    height: int = 300,
) -> str:
    """Curves on common axes.

    ``x_ticks`` sets the ticks of x (an experiment's own values); axes are logarithmic on request
    and then take values above zero alone. The picture is as high as its legend needs beyond
    ``height``.
    """
    points = [point for line in lines for point in line.points] or [(1.0, 1.0)]
    scaled = [*(x for x, _ in points if log_x), *(y for _, y in points if log_y)]
    if scaled and min(scaled) <= 0:
        raise ValueError(f"{title}: a logarithmic axis has no place for values of 0 or less")
    scale = math.log10 if log_x else float
    scale_y = math.log10 if log_y else float
    x0, x1, y0, y1 = limits([(scale(x), scale_y(y)) for x, y in points])
    room = 0.04 * (y1 - y0)
    y0, y1 = y0 - room, y1 + room  # so that no curve hides behind the axis
    inner = 8 if any(line.mark for line in lines) else 0  # marks keep away from the labels
    y_marks = log_ticks(10**y0, 10**y1, 6) if log_y else ticks(y0, y1)
    floor, right = height - FLOOR, width - 14
    left = max(MARGIN, 14 + LETTER * max(len(short(mark)) for mark in y_marks))

    def place(x: float, y: float) -> tuple[float, float]:
        across, down = (scale(x) - x0) / (x1 - x0), (y1 - scale_y(y)) / (y1 - y0)
        wide = right - left - 2 * inner
        return round(left + inner + across * wide, 1), round(TOP + down * (floor - TOP), 1)

    parts = []
    for value in y_marks:
        y = place(points[0][0], value)[1]
        parts.append(f'<path class="grid" d="M{left:g} {y}H{right}" {GRID}/>')
        parts.append(_text(left - 6, y + 4, short(value), "end"))
    chosen = x_ticks or (log_ticks(10**x0, 10**x1) if log_x else ticks(x0, x1, 6))
    edge = -math.inf
    for value in chosen:
        x, label = place(value, points[0][1])[0], short(value)
        if x - len(label) * LETTER / 2 < edge:
            continue  # no room beside the label before
        edge = x + len(label) * LETTER / 2 + 6
        x_text = min(max(x, left), width - len(label) * LETTER / 2)
        parts.append(f'<path d="M{x} {floor}v4" stroke="currentColor"/>')
        parts.append(_text(x_text, floor + 17, label, "middle"))
    parts.append(f'<path d="M{left:g} {floor}H{right}" stroke="currentColor"/>')
    parts.append(_text(right, floor + 33, x_name, "end", "quiet"))
    for line in lines:
        parts += _drawn(line, [place(*point) for point in line.points])
    entries = [(line.name, _sample(line)) for line in lines]
    legend, bottom = _legend(entries, width, height + 6)
    return _frame(title, y_name, width, bottom, [*parts, *legend])


def dot_chart(
    title: str,
    rows: Mapping[str, Mapping[str, float]],
    x_name: str,
    y_name: str = "",
    *,
    hollow: Mapping[str, Mapping[str, float]] | None = None,
    log: bool = True,
    reference: float | None = None,
    width: int = 400,
) -> str:
    """Compare series over categories: a line a category, a dot a series.

    ``rows`` holds values by category and series, ``hollow`` those that others published; what is
    missing has no dot. ``reference`` draws a line to compare with.
    """
    series = list(dict.fromkeys(name for values in rows.values() for name in values))
    both = [*rows.values(), *(hollow or {}).values()]
    numbers = [value for values in both for value in values.values()]
    numbers += [reference] if reference else []
    if not numbers or (log and min(numbers) <= 0):
        raise ValueError("rows: a chart needs values, for a logarithmic axis all above zero")
    scale = math.log if log else float
    room = 0.05 * (scale(max(numbers)) - scale(min(numbers))) or 0.5
    x0, x1 = scale(min(numbers)) - room, scale(max(numbers)) + room
    names = {row: fitted(row, int(width * 0.52 / LETTER)) for row in rows}
    left, right = 16 + LETTER * max(map(len, names.values())), width - 16
    top = TOP - 4 if y_name else TOP - 16
    floor = top + 26 * len(rows)
    apart = min(3.0, 12 / len(series))  # so that equal values are seen as two

    def place(value: float) -> float:
        return round(left + (scale(value) - x0) / (x1 - x0) * (right - left), 1)

    parts = []
    for value in log_ticks(math.exp(x0), math.exp(x1), 7) if log else ticks(x0, x1):
        parts.append(f'<path class="grid" d="M{place(value)} {top}V{floor}" {GRID}/>')
        parts.append(_text(place(value), floor + 17, short(value), "middle"))
    if reference:
        x = place(reference)
        parts.append(f'<path d="M{x} {top}V{floor}" stroke="currentColor" opacity=".6"/>')
    parts.append(_text(right, floor + 33, x_name, "end", "quiet"))
    for number, row in enumerate(rows):
        y = top + 26 * number + 13
        parts.append(_text(left - 8, y + 4, names[row], "end"))
        parts.append(f'<path class="grid" d="M{left:g} {y}H{right}" {GRID}/>')
        for values, empty in (((hollow or {}).get(row, {}), True), (rows[row], False)):
            for name, value in values.items():
                what = f"{row}, {name}{' (published)' if empty else ''}: {value:.4g}"
                style = series.index(name)
                aside = y + apart * (style - (len(series) - 1) / 2)
                parts.append(_mark(place(value), aside, style, empty, what))
    entries = [(name, _mark(11, -4, style)) for style, name in enumerate(series)]
    if any((hollow or {}).values()):
        entries.append(("hollow: published", _mark(11, -4, 6, hollow=True)))
    legend, bottom = _legend(entries, width, floor + FLOOR + 6)
    return _frame(title, y_name, width, bottom, [*parts, *legend])


def standalone(picture: str) -> str:
    """A chart as a file of its own, with its colours for light and for dark ground."""
    style = (
        "svg{color:#1c1f24;background:#fff}.quiet{opacity:.75}"
        "@media(prefers-color-scheme:dark){svg{color:#e4e7ec;background:#14171c}}" + palette_css()
    )
    head, rest = picture.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'


def palette_css() -> str:
    """Rules that colour the classes ``c0`` … of lines and marks."""

    def rules(colours: Sequence[str]) -> str:
        return "".join(f".c{i}{{color:{colour}}}" for i, colour in enumerate(colours))

    return f"{rules(LIGHT)}@media screen and (prefers-color-scheme:dark){{{rules(DARK)}}}"


GRID = 'stroke="currentColor" opacity=".16"'


def limits(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """The smallest frame around points; a flat one gets room above and below."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    if y0 == y1:  # a flat curve is drawn through the middle
        room = abs(y0) * 0.1 or 1.0
        y0, y1 = y0 - room, y1 + room
    return x0, x1 if x1 > x0 else x0 + 1.0, y0, y1


def _frame(title: str, y_name: str, width: int, height: float, parts: Sequence[str]) -> str:
    head = [
        f'<svg viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="{FONT}">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="18" font-size="14" font-weight="600" fill="currentColor">'
        f"{escape(fitted(title, int((width - 16) / (1.15 * LETTER))))}</text>",
    ]
    if y_name:
        head.append(_text(8, 35, fitted(y_name, int((width - 16) / LETTER)), "start", "quiet"))
    return "\n".join([*head, *parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return (
        f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(text)}</text>"
    )


def _colour(style: int) -> str:
    """The class and, for viewers that read no style sheet, the colour on light ground."""
    number = style % len(LIGHT)
    return f'class="c{number}" color="{LIGHT[number]}"'


def _drawn(line: Line, points: Sequence[tuple[float, float]]) -> list[str]:
    dash = "3 3" if line.hollow else DASHES[line.style // len(LIGHT) % len(DASHES)]
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    parts = [
        f'<polyline {_colour(line.style)} points="{path}" fill="none" stroke="currentColor" '
        f'stroke-width="{1.2 if line.hollow else 1.9}" stroke-dasharray="{dash}" '
        f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>'
    ]
    if line.mark:
        parts += [_mark(x, y, line.style, line.hollow) for x, y in points]
    if line.broken and points:
        x, y = points[-1]
        parts.append(
            f'<path {_colour(line.style)} d="M{x - 4:g} {y - 4:g}l8 8m0 -8l-8 8" '
            'stroke="currentColor" stroke-width="2"/>'
        )
    return parts


# A disc, a square, a triangle and a diamond, around 0, 0.
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "M-3.6 -3.6h7.2v7.2h-7.2z",
    "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L4.6 0L0 5L-4.6 0z",
)


def _mark(x: float, y: float, style: int, hollow: bool = False, hint: str = "") -> str:
    shape = SHAPES[(style + style // len(LIGHT)) % len(SHAPES)]
    fill = 'fill="none"' if hollow else 'fill="currentColor"'
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<path {_colour(style)} transform="translate({x:g} {y:g})" d="{shape}" '
        f'{fill} stroke="currentColor" stroke-width="1.2">{title}</path>'
    )


def _sample(line: Line) -> str:
    sample = Line("", [(0, -4), (22, -4)], line.style, hollow=line.hollow)
    parts = _drawn(sample, sample.points)
    if line.mark:
        parts.append(_mark(11, -4, line.style, line.hollow))
    return "".join(parts).replace("polyline", "path").replace('points="0,-4 22,-4"', 'd="M0 -4h22"')


def _legend(entries: Sequence[tuple[str, str]], width: int, top: float) -> tuple[list[str], float]:
    """Samples with their names, as many a line as fit; also the height of the whole picture."""
    parts, x, y = [], 8.0, top + 12
    seen = set()
    for name, sample in entries:
        if name in seen:  # several seeds of one row share an entry
            continue
        seen.add(name)
        label = fitted(name, int((width - 48) / LETTER))
        needed = 30 + len(label) * LETTER + 12
        if x > 8 and x + needed > width:
            x, y = 8.0, y + LINE
        parts.append(f'<g transform="translate({x:g} {y:g})">{sample}</g>')
        parts.append(_text(x + 28, y, label, "start"))
        x += needed
    return parts, (y + 10 if parts else top)
