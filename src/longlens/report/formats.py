"""The report's tables as Markdown and CSV, and blocks of them inside Markdown files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from longlens.report.atlas import atlas_table
from longlens.report.audits import curve_table, summary
from longlens.report.bench import bench_table
from longlens.report.cells import TableCell, filled, mean_text, table
from longlens.report.results import Bench, Measurement, Results, read_file
from longlens.runs.results import ResultTable
from longlens.tables import MISSING, Table, csv_text

FORMATS = ("markdown", "csv")
BLOCK = re.compile(r"^(<!-- table: ([^\n]+?) -->\n)(.*?)^(<!-- end -->)", re.DOTALL | re.MULTILINE)
LEGEND = (
    "Ours, mean ± standard deviation over seeds; in parentheses the published number. "
    "A mean is over all columns, where a row has them all; stand-ins are in none."
)


def write_tables(results: Results, form: str) -> str:
    """All tables of the results in one of ``FORMATS``.

    CSV has a line for each cell that has runs, with its conditions; Markdown looks like the page.
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if form == "csv":
        return _csv(results.experiments)
    parts = [LEGEND] if results.experiments else []
    for experiment in results.experiments:
        source = f" ({experiment.source})" if experiment.source else ""
        parts.append(f"## {experiment.title}{source}\n\n{text_table(experiment).markdown()}")
    parts += [f"## {bench.name}\n\n{bench_table(bench).markdown()}" for bench in results.benches]
    return "\n\n".join(parts) + "\n"


def text_table(
    experiment: ResultTable, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> Table:
    """An experiment as words; ``rows`` and ``columns`` choose some, in their order.

    Raises:
        ValueError: the experiment has no such row or column.

    """
    for what, chosen, there in (
        ("rows", rows, experiment.rows),
        ("columns", columns, experiment.columns),
    ):
        if unknown := [name for name in chosen if name not in there]:
            raise ValueError(
                f"{what}: {experiment.name} has no {unknown[0]!r}; it has {', '.join(there)}"
            )
    names = list(columns or experiment.columns)
    extra = [] if columns else experiment.extra
    whole = table(experiment)
    kept = {row: {name: whole[row][name] for name in names} for row in rows or whole}
    averages = {row: mean_text(experiment, cells) for row, cells in kept.items()}
    averaged = any(text != MISSING for text in averages.values())
    lines = [
        [
            row,
            *(cell_text(cell) for cell in cells.values()),
            *([averages[row]] if averaged else []),
            *(extra_text(experiment, row, name) for name in extra),
        ]
        for row, cells in kept.items()
    ]
    head = ["", *names, *(["mean"] if averaged else []), *extra]
    return Table(head, lines, f"{experiment.title}. {LEGEND}")


def cell_text(cell: TableCell) -> str:
    """Ours with spread, marks and, in parentheses, what was published."""
    words = [] if cell.mean is None else [cell.text()]
    words += [f"[{word}]" for word, _ in cell.marks]
    if cell.published is not None:
        words.append(f"({cell.metric.show(cell.published)})")
    return " ".join(words) or MISSING


def _some(table: Table, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Table:
    """Rows and columns of a table by their names, in their order; all where none are named."""
    places = [list(table.head).index(name) for name in columns] or range(len(table.head))
    lines = {line[0]: line for line in table.rows}
    kept = [[lines[row][place] for place in places] for row in rows or lines]
    return Table([table.head[place] for place in places], kept, table.caption)


def extra_text(experiment: ResultTable, row: str, column: str) -> str:
    """A number that was published beside the table's own columns."""
    value = experiment.published.get(row, {}).get(column)
    return MISSING if value is None else f"({value:g})"


def _csv(experiments: Sequence[ResultTable]) -> str:
    rows = [
        {
            "experiment": experiment.name, "row": cell.row, "column": cell.column,
            "metric": cell.metric.name, "published": cell.published, "ours": cell.mean,
            "deviation": cell.deviation, "difference": cell.difference,
            "runs": len(cell.records), "finished": len(cell.scored),
            "marks": "; ".join(word for word, _ in cell.marks),
            **{n: re.sub(r"(?<=\d),(?=\d{3})", "", v) for n, v in cell.conditions().items()},
        }
        for experiment in experiments
        for cell in filled(experiment)
    ]  # fmt: skip
    return csv_text([{k: None if v == MISSING else v for k, v in row.items()} for row in rows])


def update_blocks(text: str, root: Path) -> str:
    """Write the tables of a Markdown text anew, from the files that it names.

    A block is ``<!-- table: results/NAME.json -->`` … ``<!-- end -->``. After the file it may name
    ``rows="A; B"`` and ``columns="C; D"``. ``results/audit_*.json`` shows the verdicts of all
    audits, one of them its models; a comparison of layers shows its rows. Paths are seen from
    ``root``.

    Raises:
        ValueError: a block names what does not exist.

    """

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}{block(match[2], root)}\n{match[4]}"

    return BLOCK.sub(fill, text)


def block(description: str, root: Path) -> str:
    """The Markdown table that a block's description asks for."""
    path, *options = shlex.split(description)
    chosen: dict[str, list[str]] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in ("rows", "columns") or not equals:
            raise ValueError(f'a block has rows="…" and columns="…" after its file, got {option!r}')
        chosen[name] = [word.strip() for word in value.split(";") if word.strip()]
    files = [] if Path(path).is_absolute() else sorted(root.glob(path))
    if not files:
        raise ValueError(f"a block names {path}, which does not exist in {root}")
    parts = [read_file(file) for file in files]
    audits = [part for part in parts if isinstance(part, Measurement) and part.kind == "audit"]
    if len(audits) == len(parts) and not chosen:
        several = len(audits) > 1 or "*" in path
        return (summary(audits) if several else curve_table("", audits[0].values)).markdown()
    part = parts[0]
    if isinstance(part, Measurement) and part.kind == "comparison" and not chosen:
        return Table.of(part.values.get("rows") or ()).markdown()
    if isinstance(part, Measurement) and part.kind == "atlas":
        return _some(atlas_table(part.values), **chosen).markdown()
    if isinstance(part, ResultTable) and len(parts) == 1:
        return text_table(part, **chosen).markdown()
    if isinstance(part, Bench) and len(parts) == 1 and not chosen:
        return bench_table(part).markdown()
    raise ValueError(
        f"a block cannot show {description}: only tables, curves, benches, audits and comparisons"
    )
