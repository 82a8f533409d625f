"""Files of results: experiments, audits, measurements, benchmarks, and folders of runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longlens.report.read import Run, differing_options, find_runs
from longlens.training.records import EXPERIMENT, RECORD

SCHEMA = 1
# What a reader looks for first comes first; results without runs of ours come last.
ORDER = ("lasplus", "table2", "readings", "locality", "techniques", "table4", "table7", "table3",
         "table8", "figure2", "figure3", "figure5", "figure6")  # fmt: skip
KINDS = ("table", "curve", "audit", "lens", "comparison")
POINTS = 60  # of a curve that comes from a run's folder


@dataclass(frozen=True)
class Experiment:
    """One table or figure: what was published, and the records of our runs.

    ``published`` holds numbers as they were printed (accuracies in percent), the records hold them
    as they were measured (accuracies as fractions). For ``kind="curve"`` columns are values of x.
    ``extra`` are columns that were published beside these (their mean, speed …): part of no mean.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str = "accuracy"
    kind: str = "table"
    source: str = ""
    command: str = ""
    x_label: str = ""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    records: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    quick: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """An audit of a task, a measurement inside a model, or layers compared with others' code.

    ``values`` is its file's content.
    """

    name: str
    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Bench:
    """Rows of ``longlens bench``, values as text."""

    name: str
    rows: tuple[Mapping[str, str], ...]


Part = Experiment | Measurement | Bench


@dataclass(frozen=True)
class Results:
    """All that a report shows."""

    experiments: tuple[Experiment, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    benches: tuple[Bench, ...] = ()

    def only(self, names: Iterable[str]) -> Results:
        """Keep the parts with these names.

        Raises:
            ValueError: there is no part of such a name.

        """
        wanted = set(names)
        parts: list[Part] = [*self.experiments, *self.measurements, *self.benches]
        if unknown := sorted(wanted - {part.name for part in parts}):
            known = ", ".join(part.name for part in parts) or "none"
            raise ValueError(f"only: there are no results {unknown[0]!r}; there are: {known}")
        return Results(
            tuple(e for e in self.experiments if e.name in wanted),
            tuple(m for m in self.measurements if m.name in wanted),
            tuple(b for b in self.benches if b.name in wanted),
        )


def read_results(paths: Sequence[str | Path]) -> Results:
    """Read files (``.json``, ``.csv``), folders of such files, and folders of runs.

    Raises:
        ValueError: a path does not exist or holds nothing, or a file is not what it should be.

    """
    parts = [part for path in paths for part in _read_path(Path(path))]
    names = [part.name for part in parts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two of the files hold results of the name {twice[0]!r}")
    experiments = [part for part in parts if isinstance(part, Experiment)]
    experiments.sort(key=lambda e: (not e.records, ORDER.index(e.name) if e.name in ORDER else 99))
    return Results(
        tuple(experiments),
        tuple(part for part in parts if isinstance(part, Measurement)),
        tuple(part for part in parts if isinstance(part, Bench)),
    )


def _read_path(path: Path) -> list[Part]:
    if path.is_file():
        return [read_file(path)]
    if not path.is_dir():
        raise ValueError(f"{path} does not exist")
    if (path / RECORD).exists():
        raise ValueError(f"{path} is a single run; give the folder above it")
    if (path / EXPERIMENT).exists():
        return [_labelled(path)]
    files = sorted(f for f in path.iterdir() if f.suffix in (".json", ".csv"))
    if files:
        return [read_file(file) for file in files]
    runs = find_runs(path)
    if not runs:
        raise ValueError(f"{path} holds neither results (.json, .csv) nor runs")
    return [experiment_of_runs(path.resolve().name, runs)]


def read_file(path: Path) -> Part:
    """Read one file of results."""
    if path.suffix == ".csv":
        rows = tuple(csv.DictReader(path.read_text().splitlines()))
        if not rows:
            raise ValueError(f"{path} has no rows")
        return Bench(path.stem, rows)
    values = _read_json(path)
    kind = values.get("kind", "table")
    if kind not in KINDS:
        raise ValueError(f"{path}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if kind in ("audit", "lens", "comparison"):
        return Measurement(path.stem, kind, values)
    return _experiment(path, values)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"{path} is of another version; this one reads schema {SCHEMA}")
    return values


def _experiment(path: Path, values: Mapping[str, Any]) -> Experiment:
    name = str(values.get("experiment") or path.stem)
    published = {
        str(row): {str(column): float(v) for column, v in cells.items() if v is not None}
        for row, cells in (values.get("published") or {}).items()
    }
    records = tuple(values.get("records") or ())
    if bad := [r for r in records if not {"row", "column", "status"} <= set(r)]:
        raise ValueError(f"{path}: a record needs row, column and status, got {sorted(bad[0])}")
    rows = [str(row) for row in values.get("rows") or ()]
    columns = [str(column) for column in values.get("columns") or ()]
    # What the file's lists leave out is shown all the same, after what they name.
    rows += [*published, *(str(r["row"]) for r in records)]
    columns += [str(r["column"]) for r in records]
    columns += [c for cells in published.values() for c in cells if not values.get("columns")]
    extra = [c for cells in published.values() for c in cells if c not in columns]
    return Experiment(
        name=name,
        title=str(values.get("title") or name),
        rows=tuple(dict.fromkeys(rows)),
        columns=tuple(dict.fromkeys(columns)),
        metric=str(values.get("metric") or "accuracy"),
        kind=str(values.get("kind", "table")),
        source=str(values.get("source") or ""),
        command=str(values.get("command") or ""),
        x_label=str(values.get("x_label") or ""),
        published=published,
        records=records,
        notes=tuple(map(str, values.get("notes") or ())),
        quick=bool(values.get("quick", False)),
        extra=tuple(dict.fromkeys(extra)),
    )


def _labelled(folder: Path) -> Experiment:
    """The runs of ``longlens run NAME``, in the cells that it wrote down for them."""
    values = _read_json(folder / EXPERIMENT)
    runs = {run.name: run for run in find_runs(folder)}
    records = [
        {**_record_of_run(runs[name]), **place}
        for name, place in values.get("runs", {}).items()
        if name in runs
    ]
    return _experiment(folder / EXPERIMENT, {**values, "records": records})


def experiment_of_runs(name: str, runs: Sequence[Run]) -> Experiment:
    """Make a table of plain runs: a row a mixer with the options that set its runs apart."""
    runs = [run for run in runs if run.folder.name != "pretrain"]  # a stage of the run above it
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        alike.setdefault((str(run.get("mixer")), str(run.get("task"))), []).append(run)
    records = []
    for (mixer, task), members in alike.items():
        differing = differing_options(members)
        for run in members:
            words = [f"{option}={run.get(option)}" for option in differing]
            row = f"{mixer} ({', '.join(words)})" if words else mixer
            records.append({**_record_of_run(run), "row": row, "column": task})
    metrics = {run.metric for run in runs if run.get("status") == "finished"}
    if len(metrics) > 1:
        raise ValueError(
            f"the runs of {name} are judged by different metrics ({', '.join(sorted(metrics))}); "
            "put them in folders of their own"
        )
    return Experiment(
        name=name,
        title=f"Runs in {name}",
        rows=tuple(dict.fromkeys(r["row"] for r in records)),
        columns=tuple(dict.fromkeys(r["column"] for r in records)),
        metric=next(iter(metrics), "accuracy"),
        records=tuple(records),
    )


def _record_of_run(run: Run) -> dict[str, Any]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in run.curves:
        for key in ("loss", run.metric):
            if line.get(key) is not None:
                curves.setdefault(f"{line['split']}.{key}", []).append((line["step"], line[key]))
    last = [line["epoch"] for line in run.curves if "epoch" in line][-1:]
    return {
        **run.values,
        "epochs": last[0] if last else None,
        "wall_seconds": run.get("seconds"),
        "curves": {key: thin(points, POINTS) for key, points in curves.items()},
    }


def thin(points: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the points, evenly chosen, with the first and the last.

    >>> thin([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
