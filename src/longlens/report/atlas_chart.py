"""The atlas as a picture: an example's length against the reach that it needs, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from longlens.charts.scales import log_ticks, short
from longlens.charts.svg import GRID, LETTER, frame, legend, mark, rule, text

TOP, FLOOR, STRIP, RIGHT = 46, 40, 54, 14
QUIET = 'stroke="currentColor" opacity=".45"'
LINES = ((1.0, "all of it"), (0.5, "a half"), (0.125, "an eighth"))
APART = 8.0  # pixels between two marks
NAMED = 600  # a picture of this width has room for names
UNNAMED = ("UCR archive",)  # groups whose points have names on the page alone


def slug(name: str) -> str:
    """The place of a task on the page.

    >>> slug("lag, 4 tokens")
    't-lag--4-tokens'
    """
    return "t-" + "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def state(row: Mapping[str, Any]) -> str:
    """What is known: "reach", "more" (no window tried is enough), "proven", or "nothing" learned.

    >>> state(dict(learned=False, proven=None)), state(dict(learned=True, proven=None, reach=9))
    ('nothing', 'reach')
    """
    if row["learned"]:
        return "reach" if row["reach"] else "more"
    return "proven" if row.get("proven") else "nothing"


def hint(row: Mapping[str, Any]) -> str:
    """A task in one line."""
    length = f"{row['name']}: {row['length']:,} positions"
    proof = row.get("proven")
    proven = f"; proven: no window of {proof['distance']:,} tells anything" if proof else ""
    known = state(row)
    if known in ("nothing", "proven"):
        return f"{length}; not learned by probes (chance {100 * row['chance']:.1f} %){proven}"
    low, high = row["reach_interval"] or (row["reach"], row["reach"])
    ends = f" ({_reach(low, row)} … {_reach(high, row)})" if row["reach_interval"] else ""
    needed = _reach(row["reach"], row)
    best = f"{100 * row['best']['test']:.1f} % of answers right, chance {100 * row['chance']:.1f}"
    return f"{length}, {needed} needed{ends}; {best}{proven}"


def _reach(field: int | None, row: Mapping[str, Any]) -> str:
    return f"{field:,}" if field else f"more than {row['widest']:,}"


def atlas_chart(
    rows: Sequence[Mapping[str, Any]],
    title: str,
    width: int = 860,
    height: int = 600,
    linked: bool = False,
) -> str:
    """Draw the tasks; ``linked`` marks lead to the places of a page that :func:`slug` names."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    xs = [row["length"] for row in rows]
    x0, x1 = math.log(min(xs) / 1.3), math.log(max(xs) * 1.3)
    lowest = min(
        [row["reach"] for row in rows if row["learned"] and row["reach"]]
        + [low for row in rows if row["learned"] and (low := (row["reach_interval"] or [3])[0])]
        + [3]
    )
    y0, y1 = math.log(lowest / 1.4), x1
    left, right, floor = 58, width - RIGHT, height - FLOOR - STRIP
    strip = floor + 16 + STRIP / 2

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log(x) - x0) / (x1 - x0), (math.log(y) - y0) / (y1 - y0)
        return round(left + across * (right - left), 1), round(floor - up * (floor - TOP), 1)

    parts = _axes(place, (x0, x1), (y0, y1), left, right, floor, strip)
    taken: list[tuple[float, float]] = []
    points: list[str] = []  # above all lines
    named: list[tuple[float, float, Mapping[str, Any]]] = []
    for row in rows:
        known = state(row)
        proof = (row.get("proven") or {}).get("distance")
        reach = {"reach": row.get("reach"), "proven": proof}.get(known) or row["length"]
        x, y = place(row["length"], reach)
        if known == "nothing":
            y = strip
        x, y = _free(x, y, taken, left, right)
        if known != "nothing":
            parts.append(_interval(row, known, place, x))
        open_ended = known in ("nothing", "more")
        point = mark(x, y, groups.index(row["group"]), open_ended, hint(row))
        over = 'pointer-events="all"'  # a pointer finds hollow marks, too
        link = f'<a href="#{slug(row["name"])}" {over}>{point}</a>'
        points.append(link if linked else f"<g {over}>{point}</g>")
        named.append((x, y, row))
    parts += points
    if width >= NAMED:
        shown = [(x, y, row["name"]) for x, y, row in named if row["group"] not in UNNAMED]
        parts += _names(shown, taken, left, right)
    entries = [(group, mark(11, -4, style)) for style, group in enumerate(groups)]
    entries.append(("hollow: no window that was tried is enough", mark(11, -4, 6, hollow=True)))
    drawn_legend, bottom = legend(entries, width, height + 16)
    return frame(title, "reach for 95 % of what is learnable, positions", width, bottom,
                 [*parts, *drawn_legend])  # fmt: skip


def _axes(
    place: Any, x: tuple[float, float], y: tuple[float, float], left: float, right: float,
    floor: float, strip: float,
) -> list[str]:  # fmt: skip
    """Axes, ticks, the lines of equal share of an example, and the strip of what is not learned."""
    parts = []
    for value in log_ticks(math.exp(y[0]), math.exp(y[1]), 12):
        down = place(1, value)[1]
        parts.append(rule(f"M{left:g} {down}H{right}", GRID))
        parts.append(text(left - 6, down + 4, short(value), "end"))
    for value in log_ticks(math.exp(x[0]), math.exp(x[1]), 12):
        across = place(value, 1)[0]
        parts.append(rule(f"M{across} {TOP}V{floor}", GRID))
        parts.append(text(across, strip + STRIP / 2 + 20, short(value), "middle"))
    parts.append(text(right, strip + STRIP / 2 + 36, "length of an example, positions", "end",
                      "quiet"))  # fmt: skip
    for share, name in LINES:
        first = max(x[0], y[0] - math.log(share))
        last = min(x[1], y[1] - math.log(share))
        (xa, ya), (xb, yb) = (place(math.exp(v), share * math.exp(v)) for v in (first, last))
        parts.append(f'<path d="M{xa} {ya}L{xb} {yb}" {QUIET} stroke-dasharray="4 3" fill="none"/>')
        parts.append(text(xb - 4, yb + (16 if share == 1 else -6), name, "end", "quiet"))
    high, low = strip - STRIP / 2 + 4, strip + STRIP / 2
    parts.append(f'<rect x="{left:g}" y="{high:g}" width="{right - left:g}" '
                 f'height="{low - high:g}" fill="currentColor" opacity=".06"/>')  # fmt: skip
    parts.append(text(left + 6, high + 13, "not learned by probes: no reach is known", "start",
                      "quiet"))  # fmt: skip
    return [*parts, rule(f"M{left:g} {floor}H{right}")]


def _free(
    x: float, y: float, taken: list[tuple[float, float]], left: float, right: float
) -> tuple[float, float]:
    """The nearest place beside x that no other mark has."""
    for step in range(60):
        aside = x + (step + 1) // 2 * APART * (1 if step % 2 else -1)
        if left + 5 < aside < right - 5 and all(
            math.hypot(aside - a, y - b) >= APART - 0.1 for a, b in taken
        ):
            taken.append((aside, y))
            return aside, y
    taken.append((x, y))
    return x, y


def _interval(row: Mapping[str, Any], known: str, place: Any, x: float) -> str:
    """A line over the interval of the reach; up to the whole example where that has no end."""
    low, high = row.get("reach_interval") or (row.get("reach"), row.get("reach"))
    if known == "proven":
        low, high = row["proven"]["distance"], None
    ends = [place(1, end or row["length"])[1] for end in (low or row["length"], high)]
    return rule(f"M{x:g} {ends[0]}V{ends[1]}", QUIET)


def _names(
    points: Sequence[tuple[float, float, str]], taken: Sequence[tuple[float, float]], left: float,
    right: float,
) -> list[str]:  # fmt: skip
    """Names beside their marks, where there is room; all others are told to a pointer."""
    boxes: list[tuple[float, float, float, float]] = [(x - 5, y - 5, x + 5, y + 5)
                                                      for x, y in taken]  # fmt: skip
    parts = []
    for x, y, name in points:
        wide = 0.88 * LETTER * len(name)
        for dx, dy in ((8, 4), (-8 - wide, 4), (-wide / 2, -8), (-wide / 2, 18)):
            box = (x + dx, y + dy - 10, x + dx + wide, y + dy + 2)
            if (
                left < box[0]
                and box[2] < right
                and not any(
                    box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3]
                    for b in boxes
                )
            ):
                # with room beside it: some letters are wider than others
                boxes.append((box[0] - LETTER, box[1], box[2] + LETTER, box[3]))
                parts.append(f'<text x="{box[0]:g}" y="{y + dy:g}" font-size="11" '
                             f'fill="currentColor">{escape(name)}</text>')  # fmt: skip
                break
    return parts
