"""The atlas's page, table and picture, from its record alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longlens.charts import Line, line_chart, standalone
from longlens.report.atlas_chart import atlas_chart, hint, slug, state
from longlens.report.audits import percent
from longlens.report.layout import Figure, Part, full_width, link, write_page
from longlens.report.results import Measurement
from longlens.tables import MISSING, Table

SHORT, LONG, SURE = 1 / 8, 1 / 2, 0.9
TITLE = "Length of an example, and how much of it is needed"
LEAD = (
    "A point is a task: how long its examples are, and how wide a window has to be for 95 % of "
    "what can be learned. Windows are probes: random features of exactly that reach and a ridge "
    "regression, no trained network. A click on a point shows its curve."
)
READING = (
    "Across: the median length of a test example. Up: the least window that has 95 % of the best "
    "probe's accuracy beyond chance; the thin line is a 90 % interval (bootstrap over test "
    "examples, and the spread of three seeds).",
    "A hollow mark on the dashed line of all positions: no window that was tried is enough; a "
    "probe that sees everything is better.",
    "The strip below: no probe is better than chance in 99 % of draws. The task may need several "
    "steps, which random features of one layer cannot take, or more examples. Nothing is said "
    "about its reach.",
    "Far-field tasks carry a certificate: no window of that distance tells anything about the "
    "label. Where probes do not learn them they stand at that distance, with a line up to all "
    "positions.",
    '"An eighth misses": how much of the best probe\'s accuracy beyond chance all windows up to an '
    'eighth of an example lack. "Sure": the share of draws in which that is more than a twentieth.',
    "A probe is a lower bound. A trained network may do better with the same window, or find "
    "something far away that no probe finds.",
)


def draw_atlas(atlas: Mapping[str, Any]) -> str:
    """The picture as a file of its own."""
    return standalone(atlas_chart(atlas["tasks"], TITLE))


def atlas_table(atlas: Mapping[str, Any]) -> Table:
    """Every task of an atlas, a row each."""
    return Table.of([_line(row) for row in atlas["tasks"]], "Every task")


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    known, near = state(row), row.get("near")
    learned = known in ("reach", "more")
    ends = row.get("reach_interval") if learned else None
    more = f"{row['widest']:,}+" if row.get("widest") else MISSING
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
        "sees all, pooled (%)": percent(row["global"].get("anywhere")),
        "sees all, in place (%)": percent(row["global"].get("in place")),
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
        f"That windows of an eighth miss something is sure (in {100 * SURE:.0f} % of draws) of "
        f"{len(needs)} of them; of the others the test set is too small, or nothing is missed.",
        f"{len(lost)} tasks are not learned by probes and carry no certificate: of their reach "
        "nothing is known.",
        f"{len(proven)} far-field tasks are anchors: it is proven that no window of their distance "
        f"tells anything about the label. Of these the probes learn "
        f"{sum(row['learned'] for row in proven)}, with wider windows.",
    ]


def curve_chart(row: Mapping[str, Any]) -> str:
    """A task's accuracy by reach; what sees everything, linear models and chance are levels."""
    points = [(float(m["receptive_field"]), 100 * m["test"]) for m in row["curve"]
              if m["receptive_field"]]  # fmt: skip
    widths = [x for x, _ in points] or [1.0]
    ends = widths[0], max(float(row["length"]), widths[-1], 2.0)
    lines = [Line("windows of so many positions", points, 0, mark=True)] if points else []
    levels = [(f"probe, {where}", level) for where, level in row["global"].items()]
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


def atlas_part(measurement: Measurement) -> Part:
    """An atlas as a folded part of the report."""
    atlas = measurement.values
    words = atlas_words(atlas)
    return Part(
        atlas["title"],
        key=f"m-{measurement.name}",
        folded=True,
        said=words[0],
        text=words[1:],
        figures=_picture(atlas),
        tables=[atlas_table(atlas)],
    )


def _picture(atlas: Mapping[str, Any], linked: bool = False) -> list[Figure]:
    def draw(width: int) -> str:
        return atlas_chart(atlas["tasks"], TITLE, width, linked=linked)

    return [full_width(draw)] if atlas["tasks"] else []


def atlas_page(atlas: Mapping[str, Any]) -> str:
    """One page of HTML that needs nothing beside itself."""
    table = atlas_table(atlas)
    linked = [[link(row[0], slug(row[0])), *row[1:]] for row in table.rows]
    missing = [f"{entry['name']}: {entry['reason']}" for entry in atlas["missing"]]
    parts = [
        Part("What it says", text=atlas_words(atlas), figures=_picture(atlas, linked=True),
             parts=[Part("How to read it", notes=READING, folded=True)]),
        Part("Every task", key="every", tables=[replace(table, rows=linked)]),
        Part("Curves", parts=list(map(_task, atlas["tasks"]))),
    ]  # fmt: skip
    if missing:
        title = f"{len(missing)} tasks of the list were not audited"
        parts.append(Part(title, notes=missing, folded=True))
    made = ", ".join(f"{k} {v}" for k, v in atlas["provenance"].items())
    footer = "; ".join(filter(None, [made, atlas.get("command")]))
    return write_page(atlas["title"], parts, LEAD, footer)


def _task(row: Mapping[str, Any]) -> Part:
    """A task: its curve, and how that was measured."""
    probed, proof = row.get("probed"), row.get("proven")
    words = [f"{row['verdict']}."]
    if probed:
        counts = f"Fitted to {probed['train']:,} examples, tested on {probed['test']:,}"
        words.append(f"{counts}, read as {probed['as']}; {row['budget']} in all.")
    if row.get("stands_in_for"):
        words.append(f"Stands in for: {row['stands_in_for']}.")
    if proof:
        most = f"with a reach of {proof['distance']:,} at most {percent(proof['accuracy'])} %"
        words.append(f"Proven for {proof['covers']}: {most} are right.")
    if row.get("open"):
        words.append(f"Still open: {', '.join(row['open'])}.")
    options = "".join(f", {k} {v}" for k, v in row["options"].items())
    words.append(f"Data {row['identity']}{options}.")
    return Part(
        row["name"],
        key=slug(row["name"]),
        folded=True,
        said=hint(row).removeprefix(f"{row['name']}: "),
        figures=[curve_chart(row)] if row["curve"] else [],
        text=[" ".join(words)],
    )
