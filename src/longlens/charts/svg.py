"""What charts are drawn with: text, lines, marks, a legend. Colours follow the reader's scheme.

The two palettes hold the hues of Okabe and Ito, which people with any colour vision tell apart,
darkened for white ground and lightened for black until each has a contrast of three to one.
Marks and dashes differ as well, so that nothing rests on colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LIGHT = ("#0072b2", "#c44e00", "#007a5a", "#a8457f", "#8f6500", "#5a4fcf", "#6b7280", "#b3261e")
DARK = ("#5ab4f0", "#ff9d5c", "#3fd0a4", "#e59bc4", "#e6c24a", "#aaa2ff", "#b4bac4", "#ff8a80")
DASHES = ("", "6 3", "2 2")
FONT = 12.5
LETTER = 7.3  # about the width of one letter of that size
LINE_HEIGHT = 19
GRID = 'stroke="currentColor" opacity=".16"'


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


def wrapped(words: str, width: float) -> list[str]:
    """The words in lines that ``width`` has room for; nothing is cut off.

    >>> wrapped("receptive field, positions", 120)
    ['receptive field,', 'positions']
    """
    return textwrap.wrap(words, max(8, int(width / LETTER))) or [""]


def extent(word: str) -> float:
    """How wide a word is drawn, about; short ones of wide letters are wider than ``LETTER`` says.

    >>> extent("CumMax") > extent("select")
    True
    """
    return LETTER * len(word) + 2 * sum(letter.isupper() or letter in "mw" for letter in word)


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


def frame(title: str, subtitle: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A whole picture: its title, a quieter line below it, and what was drawn.

    What was drawn has room for one line of each; it moves down where they need more.
    """
    lines = wrapped(title, (width - 16) / 1.15)
    below = wrapped(subtitle, width - 16) if subtitle else []
    bold = 'font-size="14" font-weight="600" fill="currentColor"'
    head = [
        f'<text x="8" y="{18 + 17 * i}" {bold}>{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    more = 17.0 * (len(lines) - 1)
    head += [text(8, 35 + more + 15 * i, line, "start", "quiet") for i, line in enumerate(below)]
    more += 15.0 * max(0, len(below) - 1)
    moved = [f'<g transform="translate(0 {more:g})">', *parts, "</g>"] if more else parts
    return bare(title, width, height + more, [*head, *moved])


def bare(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A picture whose title is told, and not drawn."""
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="{FONT}">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>"])


def text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    """Words that begin, end or have their middle at x."""
    name = f' class="{kind}"' if kind else ""
    return (
        f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(words)}</text>"
    )


def rule(path: str, look: str = 'stroke="currentColor"') -> str:
    """A straight line of an axis or a grid."""
    name = 'class="grid" ' if look == GRID else ""
    return f'<path {name}d="{path}" {look}/>'


def _colour(style: int) -> str:
    """The class and, for viewers that read no style sheet, the colour on light ground."""
    number = style % len(LIGHT)
    return f'class="c{number}" color="{LIGHT[number]}"'


def _stroke(line: Line, shape: str, inside: str = "") -> str:
    """The line itself; ``shape`` is its element with the points."""
    dash = "3 3" if line.hollow else DASHES[line.style // len(LIGHT) % len(DASHES)]
    return (
        f'<{shape} {_colour(line.style)} fill="none" stroke="currentColor" '
        f'stroke-width="{1.2 if line.hollow else 1.9}" stroke-dasharray="{dash}" '
        f'stroke-linejoin="round">{inside}</{shape.split()[0]}>'
    )


def curve(line: Line, points: Sequence[tuple[float, float]]) -> list[str]:
    """A line through places of the picture, with its marks."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    parts = [_stroke(line, f'polyline points="{path}"', f"<title>{escape(line.name)}</title>")]
    if line.mark:
        parts += [mark(x, y, line.style, line.hollow) for x, y in points]
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


def mark(x: float, y: float, style: int, hollow: bool = False, hint: str = "") -> str:
    """A dot; its shape and colour follow the style, ``hint`` is shown to a pointer."""
    shape = SHAPES[(style + style // len(LIGHT)) % len(SHAPES)]
    fill = 'fill="none"' if hollow else 'fill="currentColor"'
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<path {_colour(style)} transform="translate({x:g} {y:g})" d="{shape}" '
        f'{fill} stroke="currentColor" stroke-width="1.2">{title}</path>'
    )


def bar_of(start: float, end: float, y: float, style: int) -> str:
    """How far values spread around a dot."""
    path = f"M{start:g} {y - 3:g}v6m0 -3H{end:g}m0 -3v6"
    return f'<path {_colour(style)} d="{path}" fill="none" stroke="currentColor"/>'


def level(x: float, y: float, height: float, style: int) -> str:
    """A dashed line down a row: chance, what always saying the commonest class gives."""
    dash = "4 3" if style % 2 else "2 2"
    return (
        f'<path {_colour(style)} d="M{x:g} {y:g}v{height:g}" stroke="currentColor" '
        f'stroke-width="1.6" stroke-dasharray="{dash}"/>'
    )


def sample(line: Line) -> str:
    """What a line looks like, for a legend."""
    marked = mark(11, -4, line.style, line.hollow) if line.mark else ""
    return _stroke(line, 'path d="M0 -4h22"') + marked


def legend(entries: Sequence[tuple[str, str]], width: float, top: float) -> tuple[list[str], float]:
    """Samples with their names, as many a line as fit; also the height of the whole picture."""
    parts, x, y = [], 8.0, top + 12
    first: dict[str, str] = {}
    for name, shown in entries:  # several seeds of one row share an entry
        first.setdefault(name, shown)
    for name, shown in first.items():
        lines = wrapped(name, width - 44)
        needed = 30 + max(map(len, lines)) * LETTER + 12
        if x > 8 and x + needed > width:
            x, y = 8.0, y + LINE_HEIGHT
        parts.append(f'<g transform="translate({x:g} {y:g})">{shown}</g>')
        parts += [text(x + 28, y + 15 * i, line, "start") for i, line in enumerate(lines)]
        x, y = x + needed, y + 15 * (len(lines) - 1)
    return parts, (y + 10 if parts else top)
