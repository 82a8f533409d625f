"""The records of an experiment under one header: labels beside its runs, and files of results.

``longlens run NAME`` writes ``experiment.json`` (header and labels) beside the runs; ``longlens
collect`` makes one compact file of header and records under ``results/``. Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from longlens.files import locked, make_folder, replace_file, to_json, write_output
from longlens.runs.document import SCHEMA, read_document
from longlens.runs.folders import EXPERIMENT, curve_lines, find_runs
from longlens.runs.record import (
    Metrics,
    Record,
    inside,
)
from longlens.untrusted import check_shape, shape_of

LABEL = (str, int, float)  # a curve's columns may be numbers
Published = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a table or figure is: an experiment adds runs to it, a file of results records.

    Args:
        name: under which ``longlens run`` finds it.
        title: what it shows, in a line.
        source: paper and table.
        command: what makes it.
        metric: what the cells hold; accuracy is published in per cent.
        rows: labels, those without runs (published numbers alone) included.
        columns: labels; in a curve the values on the x axis.
        kind: "table" or "curve".
        x_label: of a curve.
        published: row -> column -> number as printed; it may have further columns (a mean).
        published_seeds: how many the publication averages over; None: it does not say.
        cost: of all runs, in a line.
        notes: what a reader must know to read the numbers.
        quick: whether the runs are shrunk ones, which are no results.
        reads: column -> where in a record its number stands, as in "metrics.test.accuracy"; then
            one run fills a whole row. Empty: a run fills one cell, with its test metric.
        relative_to: the row by whose numbers, of the same seed, the others are divided (metric
            "ratio").
    """

    name: str
    title: str
    source: str = ""
    command: str = ""
    metric: str = "accuracy"
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str = "table"
    x_label: str = ""
    published: Published = field(default_factory=dict)
    published_seeds: int | None = None
    cost: str = ""
    notes: tuple[str, ...] = ()
    quick: bool = False
    reads: Mapping[str, str] = field(default_factory=dict)
    relative_to: str | None = None

    def header(self) -> dict[str, Any]:
        """The header as plain JSON values; what it does not say is left out."""
        values = {f.name: getattr(self, f.name) for f in fields(Header) if f.name != "name"}
        kept = {key: value for key, value in values.items() if value is not None and value != ""}
        return {"schema": SCHEMA, "experiment": self.name, **kept}


# Earlier versions left out much of it.
_SHAPE: dict[str, Any] = {
    **{f"{key.removesuffix('?')}?": shape for key, shape in shape_of(Header).items()},
    "experiment?": str, "rows?": [LABEL], "columns?": [LABEL],
    "published?": {"*": {"*": (int, float, None)}},
}  # fmt: skip
_PLACE = {"row": LABEL, "column": LABEL, "seed?": int}


class Place(TypedDict):
    """Where a run stands in its experiment's table."""

    row: str
    column: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class ResultTable(Header):
    """A table or figure: what was published, and the records of our runs.

    ``published`` holds numbers as they were printed (accuracies in percent), the records hold them
    as they were measured (accuracies as fractions).
    """

    records: tuple[Record, ...] = ()

    @property
    def runs(self) -> tuple[Record, ...]:
        """One record of each run; with ``reads`` a run has one in every column."""
        first = next(iter(self.reads), None)
        return tuple(r for r in self.records if first is None or r.column == first)

    @property
    def extra(self) -> tuple[str, ...]:
        """Columns that were published beside these (their mean, speed …): part of no mean."""
        there = dict.fromkeys(column for cells in self.published.values() for column in cells)
        return tuple(column for column in there if column not in self.columns)

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], records: Iterable[Record], name: str
    ) -> ResultTable:
        """Make a table of a checked header; labels that it does not list come after the others.

        Args:
            values: the header, of the shape ``_SHAPE``.
            records: its runs.
            name: if the header has none.
        """
        published = {
            row: {column: float(v) for column, v in cells.items() if v is not None}
            for row, cells in (values.get("published") or {}).items()
        }
        records = tuple(replace(r, row=str(r.row), column=str(r.column)) for r in records)
        rows = [*(values.get("rows") or ()), *published, *(r.row for r in records)]
        columns = [*(values.get("columns") or ()), *(r.column for r in records)]
        if not values.get("columns"):
            columns += [column for cells in published.values() for column in cells]
        known = {f.name for f in fields(Header)} & {k for k, v in values.items() if v is not None}
        name = values.get("experiment") or name
        given = {key: values[key] for key in known} | {
            "name": name,
            "title": values.get("title") or name,
            "rows": tuple(dict.fromkeys(map(str, rows))),
            "columns": tuple(dict.fromkeys(map(str, columns))),
            "published": published,
            "notes": tuple(values.get("notes") or ()),
        }
        return cls(**given, records=records)

    def with_records(self, records: Iterable[Record]) -> ResultTable:
        """The same table with other records, in the order of its labels."""
        rows, columns = self.rows, self.columns
        ordered = sorted(
            records, key=lambda r: (rows.index(r.row), columns.index(r.column), r.seed)
        )
        return replace(self, records=tuple(ordered))


# ---------------------------------------------------------------------- the labels beside runs


def read_labels(folder: Path) -> tuple[dict[str, Any], dict[str, Place]]:
    """The header, and the place of each run, in a folder's ``experiment.json``.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = folder / EXPERIMENT
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {EXPERIMENT}: give the folder that `longlens run NAME` made"
        )
    values = read_document(path)
    labels = values.get("runs") or {}
    try:
        check_shape(values, {**_SHAPE, "experiment": str, "rows": [str], "columns": [LABEL]})
        check_shape(labels, {"*": _PLACE}, "runs")
        for name, labelled in labels.items():
            for side in ("row", "column"):
                if labelled[side] not in values[f"{side}s"]:
                    raise ValueError(f"runs.{name}: there is no {side} {labelled[side]!r}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return values, labels


def write_labels(folder: Path, header: Header, places: Mapping[str, Place]) -> None:
    """Write ``experiment.json``; labels of runs that an earlier command planned stay."""
    path = folder / EXPERIMENT
    make_folder(folder)
    # Commands for other rows of the same experiment may begin at the same moment.
    with locked(path.with_suffix(".lock"), str(path), wait=True):
        before: Mapping[str, Place] = {}
        if path.exists():
            try:
                _, before = read_labels(folder)
            except ValueError:
                raise ValueError(f"{path} is damaged; delete it, the runs stay") from None
        labels = {**before, **places}  # their rows and columns, too, if the experiment lost them
        rows = dict.fromkeys([*header.rows, *(place["row"] for place in labels.values())])
        columns = dict.fromkeys([*header.columns, *(place["column"] for place in labels.values())])
        header = replace(header, rows=tuple(rows), columns=tuple(columns))
        replace_file(path, to_json({**header.header(), "runs": labels}))


# ---------------------------------------------------------------------- files of results


def collect(folder: str | Path, problems: list[str]) -> ResultTable:
    """The thinned records of an experiment's runs.

    Args:
        folder: where ``longlens run NAME`` wrote ``experiment.json`` and the records.
        problems: gets a line for each damaged record, which counts as failed, and for damaged
            curves, which are left out.

    Raises:
        ValueError: it is no such folder.
    """
    folder = Path(folder)
    values, places = read_labels(folder)
    runs = {run.name: run for run in find_runs(folder)}
    lines = {name: curve_lines(run, problems) for name, run in runs.items()}
    for name in places.keys() - runs.keys():
        if stage := runs.get(f"{name}/pretrain"):
            runs[name] = replace(stage.without_end(), name=name)
    records = [
        replace(
            runs[name].thinned(lines.get(name, ())), **(place | {"seed": place.get("seed") or 0})
        )
        for name, place in places.items()
        if name in runs
    ]
    table = ResultTable.from_json(values, (), folder.name)
    return table.with_records(fill_rows(records, table))


def fill_rows(records: Sequence[Record], header: Header) -> list[Record]:
    """One record for every column that ``header.reads`` names; without it the records as given.

    A column's number is read from where "reads" says and stands where a cell looks for it, as the
    metric of the test split. With "relative_to" it is divided by that row's of the same seed; the
    number itself is kept as "measured". Curves, ablations and transfer stay with the first column.

    >>> header = Header(name="a", title="", rows=("a", "b"), columns=("Speed",), metric="ratio",
    ...                 reads={"Speed": "speed.tokens"}, relative_to="a")
    >>> runs = [Record(status="finished", row=row, speed={"tokens": n})
    ...         for row, n in (("a", 2.0), ("b", 6.0))]
    >>> fill_rows(runs, header)[1].metrics
    {'test': {'ratio': 3.0, 'measured': 6.0}}
    """
    if not header.reads:
        return list(records)
    base = {record.seed: vars(record) for record in records if record.row == header.relative_to}
    filled = []
    for record in records:
        for number, (column, path) in enumerate(header.reads.items()):
            value = inside(vars(record), path)
            metrics: Metrics = {header.metric: value} if isinstance(value, int | float) else {}
            if header.relative_to and metrics:
                one = inside(base.get(record.seed), path)
                metrics = {"ratio": value / one if one else None, "measured": value}
            rest: dict[str, Any] = (
                {} if number == 0 else {"curves": {}, "ablations": None, "transfer": None}
            )
            filled.append(replace(record, column=column, metrics={"test": metrics}, **rest))
    return filled


def merge(new: ResultTable, old: ResultTable) -> ResultTable:
    """Two results of one experiment: of each row, column and seed the newer record.

    Of copies of one run it is the one that ended later. Labels that only ``old`` has come last.

    Raises:
        ValueError: they are of different experiments.
    """
    for key in ("name", "quick"):
        ours, theirs = getattr(new, key), getattr(old, key)
        if ours != theirs:
            raise ValueError(f"results of different experiments: {key} is {ours!r} and {theirs!r}")
    both = [*old.records, *new.records]
    both.sort(key=lambda r: (r.started or "", r.ended or ""))  # copies of one run: the later end
    newest = {(record.row, record.column, record.seed): record for record in both}
    rows = dict.fromkeys([*new.rows, *(str(record.row) for record in old.records)])
    columns = dict.fromkeys([*new.columns, *(str(record.column) for record in old.records)])
    table = replace(new, rows=tuple(rows), columns=tuple(columns))
    return table.with_records(newest.values())


def write_results(path: str | Path, table: ResultTable) -> None:
    """Write a results file: one record a line, so that a difference between two can be read."""
    head = json.dumps(table.header(), indent=1, ensure_ascii=False, allow_nan=False)
    lines = [
        json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False)
        for record in table.records
    ]
    body = ",\n".join(lines)
    content = head[: head.rindex("}")].rstrip() + f',\n "records": [\n{body}\n]}}\n'
    write_output(Path(path), content.encode())


def read_table(path: Path) -> ResultTable:
    """Read a results file.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    return table_of(path, read_document(path))


def table_of(path: Path, values: Mapping[str, Any]) -> ResultTable:
    """The table in what was read of a results file."""
    try:
        check_shape(values, {**_SHAPE, "records?": [_PLACE]})
        entries = enumerate(values.get("records") or ())
        records = [Record.from_json(one, where=f"records[{number}]") for number, one in entries]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return ResultTable.from_json(values, records, path.stem)


def check_same_data(records: Iterable[Record]) -> None:
    """Raise where two finished runs on the same task with the same options had different data.

    >>> check_same_data(Record(status="finished", data={"name": "mine", "identity": i}, row="LaS")
    ...                 for i in ("one", "other"))
    Traceback (most recent call last):
    ValueError: runs on mine were trained on different data: LaS, None, seed 0 on one…, LaS, ...
    """
    seen: dict[str, Record] = {}
    for record in records:
        name, identity = record.data.get("name"), record.data.get("identity")
        if not record.is_finished or not identity:
            continue
        mixed = bool(record.options.get("mix_easier"))
        kind = [name, record.options.get("task_options") or {}, mixed]
        other = seen.setdefault(json.dumps(kind, sort_keys=True), record)
        if other.data["identity"] != identity:
            first, second = (
                f"{r.row}, {r.column}, seed {r.seed} on {r.data['identity'][:16]}…"
                for r in (other, record)
            )
            raise ValueError(
                f"runs on {name} were trained on different data: {first}, {second}; "
                "delete those of the data that do not count, or train them again"
            )
