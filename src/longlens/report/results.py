"""Files of results: experiments, audits, measurements, benchmarks, and folders of runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from longlens.report.read import MEANS, SHOWN, differing_options
from longlens.runs.document import read_document
from longlens.runs.folders import EXPERIMENT, curve_lines, find_runs
from longlens.runs.record import RECORD, Record, inside
from longlens.runs.results import ResultTable, collect, table_of
from longlens.training.options import PLACEMENT, TrainOptions

# What a reader looks for first comes first; results without runs of ours come last.
ORDER = ("lasplus", "table2", "readings", "locality", "techniques", "table4", "table7", "table3",
         "table8", "figure2", "figure3", "figure5", "figure6")  # fmt: skip
KINDS = ("table", "curve", "audit", "atlas", "lens", "comparison")


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


Part = ResultTable | Measurement | Bench
T = TypeVar("T")


@dataclass(frozen=True)
class Results:
    """All that a report shows; ``skipped`` says what could not be read, and why."""

    experiments: tuple[ResultTable, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    benches: tuple[Bench, ...] = ()
    skipped: tuple[str, ...] = ()

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
            self.skipped,
        )


def show_all(results: Results, draw: Callable[[Results], T]) -> tuple[T, Results]:
    """Draw results; parts that cannot be drawn are left out and listed as skipped.

    A file may have the right shape and still hold what no picture can show.

    Raises:
        ValueError: nothing can be drawn, or only the whole cannot.
    """
    try:
        return draw(results), results
    except Exception as error:
        problem = error
    parts: list[Part] = [*results.experiments, *results.measurements, *results.benches]
    bad: dict[str, str] = {}
    for part in parts:
        try:
            draw(results.only([part.name]))
        except Exception as error:  # whatever a chart says to values that it was not made for
            bad[part.name] = f"{part.name} cannot be shown ({type(error).__name__}: {error})"
    if not bad:  # each alone can be drawn
        raise problem
    if len(bad) == len(parts):
        raise ValueError("; ".join(bad.values()))
    rest = results.only(part.name for part in parts if part.name not in bad)
    rest = replace(rest, skipped=(*results.skipped, *bad.values()))
    return draw(rest), rest


def read_results(paths: Sequence[str | Path]) -> Results:
    """Read files (``.json``, ``.csv``), folders of such files, and folders of runs.

    A file that is not what it should be is skipped, and listed in what is returned.

    Raises:
        ValueError: a path does not exist or holds nothing, or nothing could be read at all.
    """
    skipped: list[str] = []
    parts = [part for path in paths for part in _read_path(Path(path), skipped)]
    if skipped and not parts:
        raise ValueError("; ".join(skipped))
    names = [part.name for part in parts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two of the files hold results of the name {twice[0]!r}")
    experiments = [part for part in parts if isinstance(part, ResultTable)]
    experiments.sort(key=lambda e: (not e.records, ORDER.index(e.name) if e.name in ORDER else 99))
    return Results(
        tuple(experiments),
        tuple(part for part in parts if isinstance(part, Measurement)),
        tuple(part for part in parts if isinstance(part, Bench)),
        tuple(skipped),
    )


def _read_path(path: Path, skipped: list[str]) -> list[Part]:
    parts: list[Part] = []
    if path.is_file():
        files = [path]
    elif not path.is_dir():
        raise ValueError(f"{path} does not exist")
    elif (path / RECORD).exists():
        raise ValueError(f"{path} is a single run; give the folder above it")
    elif (path / EXPERIMENT).exists():
        files = [path / EXPERIMENT]
    else:
        files = sorted(f for f in path.iterdir() if f.suffix in (".json", ".csv"))
    if not files:
        files = sorted(path.glob(f"*/{EXPERIMENT}"))  # what `longlens run` left there
        apart = {file.parent for file in files}
        runs = [r for r in find_runs(path) if r.folder and apart.isdisjoint(r.folder.parents)]
        if not runs and not files:
            raise ValueError(f"{path} holds neither results (.json, .csv) nor runs")
        parts += tables_of_runs(path.resolve().name, runs, skipped)
    for file in files:
        try:
            labels = file.name == EXPERIMENT
            parts.append(collect(file.parent, skipped) if labels else read_file(file))
        except (ValueError, OSError) as error:
            skipped.append(str(error))
    return parts


def read_file(path: Path) -> Part:
    """Read one file of results."""
    if path.suffix == ".csv":
        return Bench(path.stem, _read_csv(path))
    if path.suffix != ".json":
        raise ValueError(f"{path} is no file of results: they end in .json or .csv")
    values = read_document(path)
    kind = values.get("kind", "table")
    if kind not in KINDS:
        raise ValueError(f"{path}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if kind not in ("table", "curve"):
        return Measurement(path.stem, kind, values)
    return table_of(path, values)


def _read_csv(path: Path) -> tuple[dict[str, str], ...]:
    """The rows of a CSV file, each with a value for every column."""
    try:
        head, *lines = csv.reader(path.read_text("utf-8").splitlines(), strict=True)
        for number, line in enumerate(lines, 2):
            if len(line) != len(head):
                raise ValueError(f"line {number} has {len(line)} values for {len(head)} columns")
        if len(set(head)) < len(head):
            raise ValueError("a column occurs twice")
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not lines:
        raise ValueError(f"{path} has no rows")
    return tuple(dict(zip(head, line, strict=True)) for line in lines)


_NO_MODEL = SHOWN | MEANS | PLACEMENT  # options that make no row of their own


def _columns_of_runs(runs: Sequence[Record]) -> dict[str, list[Record]]:
    """Runs by their task and, where these differ, what its examples are."""
    tasks: dict[str, list[Record]] = {}
    for run in runs:
        tasks.setdefault(str(run.get("task")), []).append(run)
    columns: dict[str, list[Record]] = {}
    for task, members in tasks.items():
        data = [name for name in differing_options(members)
                if name.startswith("task_options.") or name == "length"]  # fmt: skip
        for run in members:
            values = {
                name.removeprefix("task_options."): inside(run.options, name) for name in data
            }
            words = [f"{name} {'default' if value is None else value}"
                     for name, value in values.items()]  # fmt: skip
            columns.setdefault(", ".join([task, *words]), []).append(run)
    return columns


def tables_of_runs(name: str, runs: Sequence[Record], skipped: list[str]) -> list[ResultTable]:
    """Make tables of plain runs, one a metric: a row a mixer with the options that set it apart.

    Runs on other data, or on other lengths of them, have columns of their own.
    """
    runs = [run for run in runs if not run.name.endswith("/pretrain")]  # a stage of the run above
    judged = {run.get("task"): run.metric_name for run in runs if run.is_finished}
    defaults = TrainOptions().to_json()
    tables: dict[str, list[Record]] = {}
    for column, beside in _columns_of_runs(runs).items():
        # An option of training that differs between mixers stands in the rows of all of them.
        differing = differing_options(beside, _NO_MODEL)
        common = {name for name in differing if not name.startswith("mixer")}
        mixers: dict[str, list[Record]] = {}
        for run in beside:
            mixers.setdefault(str(run.get("mixer")), []).append(run)
        apart = {mixer: sorted(common.union(differing_options(own, _NO_MODEL)))
                 for mixer, own in mixers.items()}  # fmt: skip
        for run in beside:
            mixer = str(run.get("mixer"))
            # What was asked for: under "steps" a record says how many were done.
            options = defaults | run.options
            words = [f"{option}={inside(options, option)}" for option in apart[mixer]]
            row = f"{mixer} ({', '.join(words)})" if words else mixer
            record = replace(run.thinned(curve_lines(run, skipped)), row=row, column=column)
            # What failed stands beside what finished on its task.
            tables.setdefault(judged.get(run.get("task"), "accuracy"), []).append(record)
    return [
        ResultTable.from_json(
            {"title": f"Runs in {name}" + (f": {metric}" if len(tables) > 1 else ""),
             "metric": metric},
            records,
            name if len(tables) == 1 else f"{name}-{metric}",
        )
        for metric, records in tables.items()
    ]  # fmt: skip
