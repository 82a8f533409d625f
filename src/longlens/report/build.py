"""The report: findings first, then all that they rest on, folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from markupsafe import Markup

from longlens.report.atlas import atlas_part
from longlens.report.audits import audit_failures, audit_part
from longlens.report.bench import bench_conditions, bench_pictures, bench_table, title_of
from longlens.report.cells import Metric, filled
from longlens.report.figures import Chances, chances, groups, learning_curves, overview
from longlens.report.findings import findings
from longlens.report.formats import text_table
from longlens.report.layout import Figure, Part, full_width, write_page
from longlens.report.measurements import measurement_part
from longlens.report.results import Bench, Results
from longlens.runs.results import ResultTable
from longlens.tables import MISSING, Table

LIMIT = 3_000_000  # bytes of a page
CURVE_POINTS = (60, 30, 12)  # a page that is too large is drawn with fewer
PICTURE = "Ours filled, published hollow"
LEAD = "What the records say, question by question; every sentence and number is made from them."
READING = (
    "54.00 ± 0.30 is ours: mean and standard deviation over the finished seeds (no ± for a single "
    "one), on the test split, of the step that validation chose. (53.05) is the published number.",
    "A difference is called one where the 95 % interval of the difference of means (Welch's t) "
    "leaves out zero; intervals are not corrected for the number of comparisons. From single runs "
    "only a direction is told.",
    "Marks set a number apart: stand-in (other data than the papers'), quick (a shrunk run), "
    "selected on test, validation. Such a number is compared with no published one and is part of "
    f"no mean. A mean is over all columns, where a row has them all. {MISSING} means: no number.",
    "A click, or Enter, on a column's head sorts: measured numbers first, then published ones.",
)


def build_page(results: Results, title: str = "longlens report") -> str:
    """Write the page.

    Raises:
        ValueError: it would be larger than ``LIMIT``, even with curves of few points.
    """
    for points in CURVE_POINTS:
        page = write_page(title, list(_parts(results, points)), LEAD)
        if len(page.encode()) <= LIMIT:
            return page
    raise ValueError(f"the page has more than {LIMIT:,} bytes; choose some results with --only")


def _parts(results: Results, points: int) -> Iterator[Part]:
    audits = [m for m in results.measurements if m.kind == "audit"]
    atlases = [m for m in results.measurements if m.kind == "atlas"]
    others = [m for m in results.measurements if m.kind in ("lens", "comparison")]
    yield from findings(results)
    yield Part("How to read the numbers", notes=READING, folded=True)
    known = chances(results)
    reach = [*map(atlas_part, atlases), *map(audit_part, audits)]
    for title, parts in (
        ("Tables and figures", [_experiment(e, points, known) for e in results.experiments]),
        ("Audits: how far must a model see?", reach),
        ("Inside the models", list(map(measurement_part, others))),
        ("Speed and memory", list(map(_bench, results.benches))),
    ):
        if parts:
            yield Part(title, key=title.lower().partition(":")[0].replace(" ", "-"), parts=parts)
    failures = [line for e in results.experiments for line in _failures(e)]
    failures += [line for m in results.measurements for line in audit_failures(m)]
    failures += [{"status": "unreadable", "reason": problem} for problem in results.skipped]
    shown = [Table.of(failures, "Runs that did not finish")] if failures else []
    text = [] if failures else ["No run failed or was stopped."]
    yield Part("Failures", tables=shown, text=text)


def _amount(experiment: ResultTable) -> str:
    seeds = {len(cell.values) for cell in filled(experiment)} - {0}
    if not seeds:
        return "not run yet"
    done = sum(record.is_finished for record in experiment.runs)
    few, most = min(seeds), max(seeds)
    each = f"{few} to {most} seeds" if few < most else "1 seed" if most == 1 else f"{most} seeds"
    return f"{done} runs, {each}"


def _in_short(experiment: ResultTable) -> str:
    """How ours compare with what was published, in words."""
    if experiment.quick:
        return "shrunk runs, no results"
    cells = [cell for cell in filled(experiment) if cell.difference is not None]
    if not cells:
        return "nothing published to compare with"
    show = Metric(experiment.metric).show
    if len(cells) == 1:
        cell = cells[0]
        return f"{cell.row} on {cell.column}: {cell.text()}, published {show(cell.published)}"
    better = sum(bool(cell.better) for cell in cells)
    gaps = sorted(cell.difference or 0.0 for cell in cells)
    ends = " to ".join(show(gap, sign=True) for gap in (gaps[0], gaps[-1]))
    return f"{better} of {len(cells)} numbers better than published ({ends})"


def _experiment(experiment: ResultTable, points: int, known: Chances) -> Part:
    metric = Metric(experiment.metric)
    whole = text_table(experiment)
    there = [row for row in whole.rows if set(row[1:]) - {MISSING}]
    missing = [row[0] for row in whole.rows if row not in there]
    better = "higher" if metric.higher_is_better else "lower"
    said = f"{metric.label[:1].upper()}{metric.label[1:]}, {better} is better."
    source = f" Source: {experiment.source}." if experiment.source else ""
    made = Markup(" Made by <code>{}</code>.").format(experiment.command)
    notes = list(experiment.notes)
    if missing:
        notes.append(f"Declared and not run yet: {'; '.join(missing)}.")
    caption = f"{experiment.title}: {metric.label}"
    if experiment.kind == "curve":
        caption += f" by {experiment.x_label}"
    return Part(
        experiment.title,
        key=f"t-{experiment.name}",
        folded=True,
        said=f"{_amount(experiment)}; {_in_short(experiment)}",
        text=[Markup("{}{}{}").format(said, source, made if experiment.command else "")],
        figures=[] if experiment.quick else _pictures(experiment, known),
        tables=[_without_empty(Table(whole.head, there, caption))],
        notes=notes,
        parts=list(_details(experiment, points, known)),
    )


def _pictures(experiment: ResultTable, known: Chances) -> list[Figure]:
    """The numbers in one picture across the page, or beside each other in several."""
    several = [picture for _, picture in overview(experiment, PICTURE, known=known)]
    if len(several) != 1:
        return [*several]
    return [full_width(lambda width: overview(experiment, PICTURE, width, known)[0][1])]


def _without_empty(table: Table) -> Table:
    """The columns in which something stands."""
    kept = [i for i in range(len(table.head)) if any(row[i] != MISSING for row in table.rows)]
    cut = [[row[i] for i in kept] for row in (table.head, *table.rows)]
    return Table(cut[0], cut[1:], table.caption)


def _details(experiment: ResultTable, points: int, known: Chances) -> Iterator[Part]:
    """What is below the table of an experiment."""
    for split, title in (("validation", "Learning curves"), ("train", "Training loss")):
        if curves := list(learning_curves(experiment, split, points, known)):
            key = f"{split}-{experiment.name}"
            yield Part(title, key=key, folded=True, figures=curves)
    if tables := list(groups(experiment)):
        yield Part("By group", key=f"groups-{experiment.name}", folded=True, tables=tables)
    metric = Metric(experiment.metric)
    rows = [
        {
            "row": cell.row, "column": cell.column, "published": metric.show(cell.published),
            "ours": cell.text(), "difference": metric.show(cell.difference, sign=True),
            "finished runs": f"{len(cell.scored)} of {len(cell.records)}", **cell.conditions(),
            "remarks": "; ".join(f"{word}: {why}" for word, why in cell.marks) or MISSING,
        }
        for cell in filled(experiment)
    ]  # fmt: skip
    if rows:
        shown = Table.of(rows, f"{experiment.title}: conditions of every number")
        key = f"conditions-{experiment.name}"
        yield Part("Conditions of every number", key=key, folded=True, tables=[shown])


def _bench(bench: Bench) -> Part:
    shown = bench_table(bench, everything=True)
    rows = [[word or MISSING for word in row] for row in shown.rows]
    conditions = ", ".join(f"{name} {value}" for name, value in bench_conditions(bench).items())
    return Part(
        title_of(bench),
        key=f"b-{bench.name}",
        folded=True,
        said=f"{bench.name}, {len(bench.rows)} rows",
        text=[conditions],
        figures=[picture for _, picture in bench_pictures(bench)],
        tables=[replace(shown, caption=f"{bench.name}: every row", rows=rows)],
    )


def _failures(experiment: ResultTable) -> list[dict[str, str]]:
    return [
        {
            "experiment": experiment.title, "row": cell.row, "column": cell.column,
            "seed": str(record.seed), "status": record.status,
            "step": str(record.steps or MISSING), "reason": record.error or MISSING,
        }
        for cell in filled(experiment)
        for record in cell.unfinished
    ]  # fmt: skip
