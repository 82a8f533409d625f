"""Curves over an option of a run: context, examples, length, or any other, each point a run.

Every point is trained anew with the run's own options, one of them replaced. A context window is
limited inside the layer, as in the LaS paper's study of context (its chunks are made shorter), so
the whole example is still read; a length cuts the examples instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longlens.layers.registry import options_of
from longlens.runs import sweep
from longlens.runs.cell import with_options
from longlens.runs.finished import other_data
from longlens.runs.record import Record, read_record
from longlens.runs.results import ResultTable, check_same_data
from longlens.runs.run import run_folder
from longlens.runs.trained import recorded_options
from longlens.tables import MISSING
from longlens.training.log import read_curves
from longlens.training.options import TrainOptions

# Options that bound what a layer sees, and of which mixers (None: of all that have it). The window
# of LaS and its relatives is one of smoothing.
CONTEXT: dict[str, str | None] = {"chunk": None, "window": "local", "kernel_size": "conv"}


@dataclass(frozen=True)
class Axis:
    """What a curve is drawn over: a name for people, an option of ``longlens train``, values."""

    label: str
    key: str
    values: tuple[Any, ...]


def context_axis(mixer: str, values: Sequence[int]) -> Axis:
    """The axis of the context window of a layer.

    >>> context_axis("las", [64, 128]).key
    'mixer_options.chunk'
    """
    known = options_of(mixer)
    for name, only in CONTEXT.items():
        if name in known and only in (None, mixer):
            return Axis("context window of a layer", f"mixer_options.{name}", tuple(values))
    raise ValueError(
        f"mixer {mixer!r} has no option that bounds its context ({', '.join(CONTEXT)}); "
        "cut the examples with --length instead"
    )


def read_options(folder: str | Path, runs: str, root: str | None) -> TrainOptions:
    """The options of a run, to be trained anew; its own folders are left alone."""
    record = read_record(folder)
    changes = {"runs": runs, "device": record.options.get("device", "auto")}
    options = recorded_options(record, **changes, **({"root": root} if root else {}))
    if different := other_data(record, options):
        raise ValueError(
            f"a curve of {folder} would be drawn on other data than the run's: {different}"
        )
    return options


def replaced(options: TrainOptions, key: str, value: Any) -> TrainOptions:
    """The same options with one of them, or one inside a nested one, replaced.

    >>> replaced(TrainOptions(), "mixer_options.chunk", 64).mixer_options
    {'chunk': 64}
    """
    return TrainOptions.from_values(with_options(options.to_json(), {key: value}))


def curve(
    runs: Mapping[str, TrainOptions],
    axis: Axis,
    seeds: Sequence[int] | None = None,
    save: Callable[[ResultTable], None] | None = None,
    say: Callable[[str], None] | None = None,
    workers: int = 1,
) -> ResultTable:
    """Train every run at every value of an axis; what is finished is not trained again.

    Args:
        runs: options by name, one line of the picture each.
        axis: what to vary.
        seeds: None: the runs' own.
        save: called with the result so far after each point.
        say: called with a line for people.
        workers: processes.

    Returns:
        a table whose columns are the axis's values.

    Raises:
        ValueError: the data were replaced between two points.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = dict(distance=4, train=32, validation=4, test=4)
    >>> run = TrainOptions(task="far-order", task_options=data, mixer="conv", dim=8, depth=1,
    ...     steps=1, batch_size=4, progress=False, runs=folder, root=folder)
    >>> table = curve({"conv": run}, Axis("training examples", "limit", (8, 16)))
    >>> table.columns, len(table.records)
    (('8', '16'), 2)
    """
    table = _empty_table(runs, axis)
    points = [
        (name, seed, value, replaced(replaced(options, axis.key, value), "seed", seed))
        for name, options in runs.items()
        for seed in (seeds if seeds is not None else [options.seed])
        for value in axis.values
    ]
    records: dict[int, Record] = {}

    def each(place: int, record: Record) -> None:
        nonlocal table
        name, seed, value, options = points[place]
        lines = read_curves(run_folder(options)) if record.is_finished else ()
        records[place] = replace(record.thinned(lines), row=name, column=str(value))
        check_same_data(records.values())
        metric = record.metric.get("name") or table.metric
        table = replace(table, metric=metric).with_records(records.values())
        if say is not None:
            say(f"{name}, {axis.label} {value}, seed {seed}: {_result(record)}")
        if save is not None:
            save(table)

    sweep([options for *_, options in points], workers=workers, each=each)
    return table


def _empty_table(runs: Mapping[str, TrainOptions], axis: Axis) -> ResultTable:
    return ResultTable(
        name="curve",
        title=f"{' and '.join(runs)}: accuracy against {axis.label}",
        kind="curve",
        x_label=axis.label,
        metric="",
        rows=tuple(runs),
        columns=tuple(map(str, axis.values)),
        notes=("every point is a run of its own, trained anew",),
    )


def _result(record: Record) -> str:
    if not record.is_finished:
        return f"{record.status}: {record.error}"
    value = record.value("test")
    return f"test {MISSING if value is None else f'{value:.4f}'}"  # None: it was not finite
