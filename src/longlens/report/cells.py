"""A table's cells: our seeds beside the published number, and what may be compared with what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev
from typing import Any

from longlens.report.read import mixed_options
from longlens.runs.record import Record
from longlens.runs.results import ResultTable
from longlens.tables import MISSING, number

# Names that papers use for what a record calls otherwise.
SAME = {"bits_per_byte": "bits_per_token", "bits_per_character": "bits_per_token"}
MIXED = "mixed options"
# Marks of numbers that are compared with no published one and averaged with nothing.
APART = {"stand-in", "quick", "validation", "selected on test", "validation trained on",
         "collapsed", "more labels", MIXED}  # fmt: skip
# Uses of what ListOps' own labels do not give, the strongest first.
SUBEXPRESSIONS = (
    ("more labels", "trained on values of subexpressions, which the task does not give: compares "
     "with no published number"),
    ("collapsed", "in training, values of subexpressions, which the task does not give, shorten "
     "inputs as well; they are no targets"),
)  # fmt: skip
LOWER = ("bits_per_token", "bits_per_byte", "bits_per_character", "perplexity", "loss")


@dataclass(frozen=True)
class Metric:
    """How a metric is written: accuracies in percent, others as they are."""

    name: str

    @property
    def label(self) -> str:
        """The metric in words."""
        words = "R²" if self.name == "r2" else self.name.replace("_", " ")
        return f"{words} (%)" if self.name == "accuracy" else words

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self.name not in LOWER

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """The metric out of a record's metrics of one split, in the unit that papers print."""
        value = metrics.get(self.name, metrics.get(SAME.get(self.name, "")))
        if value is None and self.name == "perplexity" and (metrics.get("loss") or 701) < 700:
            value = math.exp(metrics["loss"])
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return 100.0 * value if self.name == "accuracy" else float(value)

    def show(self, value: float | None, sign: bool = False) -> str:
        """Write a value, a dash where there is none.

        >>> Metric("accuracy").show(53.049), Metric("accuracy").show(None)
        ('53.05', '—')
        >>> Metric("bits_per_byte").show(1.2, sign=True)
        '+1.200'
        """
        if value is None:
            return MISSING
        digits = 3 if self.name.startswith("bits") or self.name == "r2" else 2
        text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
        return text.replace("-", "−") + ("×" if self.name == "ratio" else "")


@dataclass(frozen=True)
class TableCell:
    """One place of a table: all runs of a row on a column, and what was published for it."""

    row: str
    column: str
    metric: Metric
    published: float | None
    records: tuple[Record, ...]
    quick: bool = False
    beside_published: bool = False
    """Whether the experiment has published numbers, of runs with the task's own labels."""
    read_elsewhere: bool = False
    """Whether the column says where in a record its number stands."""

    @cached_property
    def scored(self) -> list[tuple[Record, float]]:
        """The finished runs with their value on the test split, on validation if none was tested.

        A run whose test result is not finite has no value: validation would hide that.
        """
        done = [record for record in self.records if record.is_finished]
        split = "test" if any(record.metrics.get("test") for record in done) else "validation"
        pairs = [(r, self.metric.value(r.metrics.get(split) or {})) for r in done]
        return [(r, value) for r, value in pairs if value is not None]

    @property
    def values(self) -> list[float]:
        """One value a seed of finished runs; of runs that repeat a seed their mean.

        Repeats say nothing of the spread over seeds and must not make it look small.
        """
        by_seed: dict[int, list[float]] = {}
        for record, value in self.scored:
            by_seed.setdefault(record.seed, []).append(value)
        return [mean(repeats) for repeats in by_seed.values()]

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; none for a single one."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def unfinished(self) -> list[Record]:
        """Runs that failed or were stopped, or finished without a value."""
        scored = [id(record) for record, _ in self.scored]
        return [record for record in self.records if id(record) not in scored]

    @property
    def stands_in_for(self) -> str | None:
        """What the data stand in for, where they are not the published ones."""
        names = (record.data.get("stands_in_for") for record in self.records)
        return next((name for name in names if name), None)

    @cached_property
    def mixed(self) -> list[str]:
        """Options, or the data, in which the runs differ: then their mean is that of nothing."""
        runs = [record for record, _ in self.scored]
        identities = {record.data.get("identity") for record in runs} - {None}
        return mixed_options(runs) + (["data"] if len(identities) > 1 else [])

    @property
    def is_of_one_model(self) -> bool:
        """Whether there is a mean, and of runs that differ in their seeds alone."""
        return self.mean is not None and not self.mixed

    @property
    def marks(self) -> list[tuple[str, str]]:
        """What a reader must know of the number: a short word and its explanation."""
        marks = []
        if self.stands_in_for:
            marks.append(("stand-in", f"other data: stands in for {self.stands_in_for}"))
        if self.quick:
            marks.append(("quick", "a shrunk run that shows that the command works"))
        selected_on = {record.data.get("selected_on") for record in self.records}
        if "test" in selected_on:
            marks.append(("selected on test", "the test split chose the step: an upper bound"))
        if "train" in selected_on:
            marks.append(("validation trained on", "whether it can be fitted: no generalisation"))
        used = {use for record in self.records for use in subexpressions(record)}
        if self.beside_published and used:
            marks.append(min(used, key=SUBEXPRESSIONS.index))
        seen = (
            set() if self.read_elsewhere else {r.options.get("views") or 1 for r, _ in self.scored}
        )
        for views in sorted(seen - {1}):
            marks.append((f"{views} views", "probabilities averaged over each test example and "
                          f"{views - 1} augmented copies of it"))  # fmt: skip
        if self.values and not any(r.metrics.get("test") for r, _ in self.scored):
            marks.append(("validation", "on the validation split: there is no test result"))
        if self.mixed:
            marks.append((MIXED, f"the runs differ in {', '.join(self.mixed)}"))
        if any(record.clean is False for record, _ in self.scored):
            marks.append(("uncommitted", "run with code that differs from its commit"))
        if len(self.values) < len(self.scored):
            marks.append(("repeated seed", "runs of the same seed count as one, by their mean"))
        if self.unfinished:
            counts = ["without a value" if r.is_finished else r.status for r in self.unfinished]
            words = [f"{counts.count(w)} {w}" for w in dict.fromkeys(counts)]
            marks.append((", ".join(words), "of all runs; the mean is over the others"))
        return marks

    @property
    def comparable(self) -> bool:
        """Whether the mean may stand beside published numbers: no mark sets it apart."""
        words = {word for word, _ in self.marks}
        return self.mean is not None and not words & APART

    @property
    def difference(self) -> float | None:
        """Ours minus published, in the metric's unit."""
        if self.mean is None or self.published is None or not self.comparable:
            return None
        return self.mean - self.published

    @property
    def better(self) -> bool | None:
        """Whether ours is the better one."""
        if self.difference is None or self.metric.name == "ratio":  # of time, or of memory
            return None
        return (self.difference > 0) == self.metric.higher_is_better

    def text(self) -> str:
        """Ours with its spread, in one line."""
        if self.mean is None:
            return MISSING
        spread = "" if self.deviation is None else f" ± {self.metric.show(self.deviation)}"
        return self.metric.show(self.mean) + spread

    def conditions(self) -> dict[str, str]:
        """What the number was made with; several values where the runs differ."""
        used = [record for record, _ in self.scored] or list(self.records)
        return {
            "seeds": _list(_each(used, "seed")),
            "parameters": _range(_each(used, "parameters")),
            "steps": _range(_each(used, "steps")),
            "epochs": _range(_each(used, "epochs")),
            "training minutes": _range([s / 60 for s in _each(used, "train_seconds")]),
            "tokens/s": _range(_each(used, "tokens/s")),
            "memory (MiB)": _range(_each(used, "memory")),
            "hardware": _list(_each(used, "provenance.hardware")),
            "data": _list(_names(used)),
            "torch": _list(_each(used, "torch")),
            "commit": _list(_each(used, "commit")),
        }


def subexpressions(record: Record) -> list[tuple[str, str]]:
    """How a run of ListOps used the values of subexpressions in training: marks, none if not."""
    options = record.options
    protocols = set(str(options.get("protocol")).split("+"))
    collapsed = options.get("collapse") or options.get("collapse_depth")
    used = (protocols & {"values", "scratchpad"}, collapsed)
    return [mark for mark, given in zip(SUBEXPRESSIONS, used, strict=True) if given]


def table(experiment: ResultTable) -> dict[str, dict[str, TableCell]]:
    """All cells of an experiment, by row and column."""
    metric = Metric(experiment.metric)
    by_place: dict[tuple[Any, Any], list[Record]] = {}
    for record in experiment.records:
        by_place.setdefault((record.row, record.column), []).append(record)
    return {
        row: {
            column: TableCell(
                row=row,
                column=column,
                metric=metric,
                published=experiment.published.get(row, {}).get(column),
                records=(records := tuple(by_place.get((row, column), ()))),
                quick=bool(records) and experiment.quick,
                beside_published=bool(experiment.published),
                read_elsewhere=bool(experiment.reads),
            )
            for column in experiment.columns
        }
        for row in experiment.rows
    }


def mean_text(experiment: ResultTable, cells: Mapping[str, TableCell]) -> str:
    """The means of ours and of what was published, over one row's columns; a dash for none.

    Either stands only where no column is missing: means over different columns would stand beside
    each other and say nothing. Columns for which nobody published anything (stand-ins) are left
    out, where others have that. Curves, single columns and columns of one run have no mean.
    """
    with_published = {column for row in experiment.published.values() for column in row}
    chosen = [cells[name] for name in cells if name in with_published] or list(cells.values())
    apart = experiment.kind != "table" or experiment.reads
    if apart or experiment.metric != "accuracy" or len(chosen) < 2:
        return MISSING
    ours = [cell.mean for cell in chosen if cell.comparable and cell.mean is not None]
    theirs = [cell.published for cell in chosen if cell.published is not None]
    show = Metric(experiment.metric).show
    words = [show(mean(ours))] if len(ours) == len(chosen) else []
    words += [f"({show(mean(theirs))})"] if len(theirs) == len(chosen) else []
    return " ".join(words) or MISSING


def filled(experiment: ResultTable) -> Iterator[TableCell]:
    """The cells that have runs."""
    for cells in table(experiment).values():
        yield from (cell for cell in cells.values() if cell.records)


def _each(records: Sequence[Record], column: str) -> list[Any]:
    return [value for record in records if (value := record.get(column)) is not None]


def _names(records: Sequence[Record]) -> list[str]:
    both = ((r.data.get("name") or "", r.data.get("identity") or "") for r in records)
    return [f"{name} {identity[:12]}".strip() for name, identity in both if name or identity]


def _list(values: Sequence[Any]) -> str:
    return ", ".join(str(v) for v in dict.fromkeys(values)) or MISSING


def _range(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low}–{high}"
