"""The atlas's page, table and picture, from its record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from longlens._version import __version__
from longlens.charts import Line, line_chart, palette_css, standalone
from longlens.report.atlas_chart import atlas_chart, hint, slug, state
from longlens.tables import MISSING, Table

SHORT, LONG, SURE = 1 / 8, 1 / 2, 0.9
TITLE = "Length of an example, and how much of it is needed"


def draw_atlas(atlas: Mapping[str, Any]) -> str:
    """The picture as a file of its own."""
    return standalone(atlas_chart(atlas["tasks"], TITLE))


def percent(value: float | None) -> str:
    """A share in percent."""
    return MISSING if value is None else f"{100 * value:.1f}"


def atlas_table(atlas: Mapping[str, Any]) -> Table:
    """Every task of an atlas, a row each."""
    return Table.of([_line(row) for row in atlas["tasks"]], "Every task")


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    known, near = state(row), row.get("near")
    learned = known in ("reach", "more")
    ends = row.get("reach_interval") if learned else None
    more = f"> {row.get('widest'):,}" if row.get("widest") else MISSING
    probes = {model["model"]: model["test"] for model in row["curve"]}
    proof = row.get("proven")
    return {
        "task": row["name"],
        "group": row["group"],
        "length": row["length"],
        "reach": ((f"{row['reach']:,}" if row["reach"] else more) if learned
                  else "not learned"),
        "90 % interval": " … ".join(f"{end:,}" if end else more for end in ends) if ends
                         else None,
        "share of the length (%)": percent(row["reach"] / row["length"])
                                   if learned and row["reach"] else None,
        "an eighth misses (%)": f"{percent(near['missed'])} ({percent(near['interval'][0])} … "
                                f"{percent(near['interval'][1])})" if learned and near else None,
        "sure that it misses (%)": percent(near["sure"]) if learned and near else None,
        "best probe (%)": percent((row.get("best") or {}).get("test")),
        "sees all, pooled (%)": percent(probes.get("probe, anywhere")),
        "sees all, in place (%)": percent(probes.get("probe, in place")),
        "linear (%)": percent((row.get("floor") or {}).get("test")),
        "chance (%)": percent(row["chance"]),
        "examples": (row.get("probed") or {}).get("train"),
        "proven": f"> {proof['distance']:,}" if proof else None,
    }  # fmt: skip


def atlas_words(atlas: Mapping[str, Any]) -> list[str]:
    """What the atlas says, in sentences."""
    rows = atlas["tasks"]
    learned = [row for row in rows if row["learned"]]
    short = [row for row in learned if row["reach"] and row["reach"] <= SHORT * row["length"]]
    far = [row for row in learned if not row["reach"] or row["reach"] > LONG * row["length"]]
    needs = [row for row in learned if (row.get("near") or {}).get("sure", 0) >= SURE]
    lost = [row for row in rows if state(row) == "nothing"]
    proven = [row for row in rows if row.get("proven")]
    return [
        f"Of {len(rows)} tasks the probes learn {len(learned)}. On {len(short)} of these a window "
        f"of at most an eighth of an example has 95 % of what is learned; {len(far)} need more "
        "than half of it.",
        f"That windows of an eighth miss something is sure (in {SURE:.0%} of draws) of "
        f"{len(needs)} of them; of the others the test set is too small, or nothing is missed.",
        f"{len(lost)} tasks are not learned by probes at all: of these nothing is known.",
        f"{len(proven)} far-field tasks are anchors: it is proven that no window of their distance "
        "tells anything about the label.",
    ]


def curve_chart(row: Mapping[str, Any]) -> str:
    """A task's accuracy by reach; what sees everything, linear models and chance are levels."""
    points = [(float(m["receptive_field"]), 100 * m["test"]) for m in row["curve"]
              if m["receptive_field"]]  # fmt: skip
    widths = [x for x, _ in points] or [1.0]
    ends = widths[0], max(float(row["length"]), widths[-1], 2.0)
    lines = [Line("windows of so many positions", points, 0, mark=True)] if points else []
    levels = [(m["model"], m["test"]) for m in row["curve"] if not m["receptive_field"]]
    if row.get("floor"):
        levels.append((f"linear, {row['floor']['name']}", row["floor"]["test"]))
    for style, (name, level) in enumerate(levels, 1):
        lines.append(Line(f"{name}: {100 * level:.1f} %", [(x, 100 * level) for x in ends], style))
    chance = 100 * row["chance"]
    lines.append(Line(f"chance: {chance:.1f} %", [(x, chance) for x in ends], 6, hollow=True))
    return line_chart(
        row["name"], lines, "window, positions", "test accuracy (%)", log_x=True,
        x_ticks=[*widths, ends[1]], width=420, height=300,
    )  # fmt: skip


def show_atlas(measurement: Any) -> dict[str, Any]:
    """What the report's page shows of an atlas."""
    atlas = measurement.values
    return {"title": atlas["title"], "verdict": "", "marks": [], "notes": atlas_words(atlas),
            "tables": [atlas_table(atlas)],
            "pictures": [atlas_chart(atlas["tasks"], TITLE)]}  # fmt: skip


def atlas_page(atlas: Mapping[str, Any]) -> str:
    """One page of HTML that needs nothing beside itself."""
    import jinja2

    folder = files("longlens.report") / "page"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    rows: Sequence[Mapping[str, Any]] = atlas["tasks"]
    table = atlas_table(atlas)
    return environment.from_string((folder / "atlas.html").read_text()).render(
        title=atlas["title"],
        version=__version__,
        css=(folder / "style.css").read_text() + palette_css(),
        script=(folder / "sort.js").read_text(),
        words=atlas_words(atlas),
        chart=atlas_chart(rows, TITLE, linked=True) if rows else "",
        table=table,
        slugs=[slug(row["name"]) for row in rows],
        tasks=[
            {"row": row, "slug": slug(row["name"]), "hint": hint(row),
             "chart": curve_chart(row) if row["curve"] else ""}
            for row in rows
        ],
        missing=atlas["missing"],
        provenance=", ".join(f"{k} {v}" for k, v in atlas["provenance"].items()),
        command=atlas.get("command", ""),
    )  # fmt: skip
