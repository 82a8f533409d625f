"""One page of HTML that needs nothing beside itself: the report, an audit, the atlas.

>>> page = write_page("Apples", [Part("Are they red?", answer="Most are.")])
>>> "<h2" in page and "Most are." in page
True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup, escape

from longlens._version import __version__
from longlens.charts import palette_css
from longlens.tables import Table

WIDE, NARROW = 1130, 340  # of figures across the page, on a desk and on a phone
Figure = str | tuple[str, str]  # SVG, or a wide and a narrow one of which a reader sees one


@dataclass(frozen=True)
class Part:
    """A piece of a page: an answer first, then figures, tables and further parts.

    Words are escaped, unless they are ``Markup``. A ``folded`` part shows its title, and what is
    ``said`` of it, until it is opened. ``key`` is its address; ``points`` are a contents: titles,
    what they say in short, and addresses; ``evidence``: titles and addresses of what an answer
    rests on.
    """

    title: str
    key: str = ""
    said: str = ""
    points: Sequence[tuple[str, str, str]] = ()
    answer: str = ""
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    evidence: Sequence[tuple[str, str]] = ()
    parts: Sequence[Part] = ()
    folded: bool = False


def full_width(draw: Callable[[int], str]) -> Figure:
    """A figure across the page, drawn once for a desk and once for a phone."""
    return draw(WIDE), draw(NARROW)


def link(words: str, key: str) -> str:
    """Words of a table or a text that lead to the part of that key.

    >>> link("a < b", "x")
    Markup('<a href="#x">a &lt; b</a>')
    """
    return Markup('<a href="#{}">{}</a>').format(key, words)


def write_page(title: str, parts: Sequence[Part], lead: str = "", footer: str = "") -> str:
    """The page; ``lead`` is a sentence below the title."""
    import jinja2

    folder = files("longlens.report") / "page"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    environment.filters["key"] = _key
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        parts=parts,
        footer=footer or f"Made by longlens {__version__}; the page loads nothing, sends nothing.",
        css=(folder / "style.css").read_text() + palette_css(),
        script=(folder / "sort.js").read_text(),
    )


def _key(part: Part) -> str:
    return part.key or re.sub(r"\W+", "-", part.title.lower()).strip("-")


def _cell(word: str) -> str:
    """A word of a table: what others published, in parentheses, is quieter; marks stand out.

    >>> _cell("54.00 [quick] (53.05)")
    Markup('54.00 <span class="mark">quick</span> <span class="paper">(53.05)</span>')
    """
    if isinstance(word, Markup):
        return word
    marked = re.sub(r"\[([^]]+)\]", r'<span class="mark">\1</span>', str(escape(word)))
    return Markup(re.sub(r"(\([\d.,×]+\))$", r'<span class="paper">\1</span>', marked))
