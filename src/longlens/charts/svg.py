"""What charts are drawn with: text, lines, marks, a legend. Colours follow the reader's scheme.

The two palettes hold the hues of Okabe and Ito, which people with any colour vision tell apart,
darkened for white ground and lightened for black until each has a contrast of three to one.
Marks and dashes differ as well, so that nothing rests on colour alone.
"""

from __future__ import annotations

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


def fitted(words: str, width: float) -> str:
    """As much of the words as ``width`` has room for.

    >>> fitted("receptive field", 73), fitted("depth", 73)
    ('receptive…', 'depth')
    """
    most = int(width / LETTER)
    return words if len(words) <= most else words[: most - 1] + "…"


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
    """A whole picture: its title, a quieter line below it, and what was drawn."""
    bold = 'font-size="14" font-weight="600" fill="currentColor"'
    head = [f'<text x="8" y="18" {bold}>{escape(fitted(title, (width - 16) / 1.15))}</text>']
    if subtitle:
        head.append(text(8, 35, fitted(subtitle, width - 16), "start", "quiet"))
    return bare(title, width, height, [*head, *parts])


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
        label = fitted(name, width - 48)
        needed = 30 + len(label) * LETTER + 12
        if x > 8 and x + needed > width:
            x, y = 8.0, y + LINE_HEIGHT
        parts.append(f'<g transform="translate({x:g} {y:g})">{shown}</g>')
        parts.append(text(x + 28, y, label, "start"))
        x += needed
    return parts, (y + 10 if parts else top)
