"""Curves over an option of a run: context, examples, length, or any other, each point a run.

Every point is trained anew with the run's own options, one of them replaced. A context window is
limited inside the layer, as in the LaS paper's study of context (its chunks are made shorter), so
the whole example is still read; a length cuts the examples instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from longlens.layers.registry import options_of
from longlens.runs import sweep
from longlens.runs.cell import with_options
from longlens.runs.finished import other_data
from longlens.training.options import PLACEMENT, TrainOptions
from longlens.training.records import check_same_data, read_curves, read_record

CONTEXT = ("chunk", "window", "kernel_size")  # options of mixers that bound what a layer sees
MOST_POINTS = 60
Report = dict[str, Any]


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
    for name in CONTEXT:
        # LaS's window is one of smoothing; its context is its chunk.
        if name in known:
            return Axis("context window of a layer", f"mixer_options.{name}", tuple(values))
    raise ValueError(
        f"mixer {mixer!r} has no option that bounds its context ({', '.join(CONTEXT)}); "
        "cut the examples with --length instead"
    )


def read_options(folder: str | Path, runs: str, root: str | None) -> TrainOptions:
    """The options of a run, to be trained anew; its own folders are left alone."""
    record = read_record(folder)
    if not record.get("options"):
        raise ValueError(f"{folder} holds no options; it was cut off before it began")
    known = {f.name for f in fields(TrainOptions)}
    values = {
        key: value
        for key, value in record["options"].items()
        if key in known and key not in PLACEMENT
    }
    values |= {
        "runs": runs, "root": root or record["options"].get("root"), "progress": False,
        "device": record["options"].get("device", "auto"),
    }  # fmt: skip
    try:
        options = TrainOptions.from_values(values)
    except ValueError as error:
        raise ValueError(f"{folder} holds options that cannot be trained ({error})") from None
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
    save: Callable[[Report], None] | None = None,
    say: Callable[[str], None] | None = None,
    workers: int = 1,
) -> Report:
    """Train every run at every value of an axis; what is finished is not trained again.

    Args:
        runs: options by name, one line of the picture each.
        axis: what to vary.
        seeds: None: the runs' own.
        save: called with the result so far after each point.
        say: called with a line for people.
        workers: processes.

    Returns:
        the content of ``results/curve_NAME.json``: a table whose columns are the axis's values.

    Raises:
        ValueError: the data were replaced between two points.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = dict(distance=4, train=32, validation=4, test=4)
    >>> run = TrainOptions(task="far-order", task_options=data, mixer="conv", dim=8, depth=1,
    ...     steps=1, batch_size=4, progress=False, runs=folder, root=folder)
    >>> found = curve({"conv": run}, Axis("training examples", "limit", (8, 16)))
    >>> found["columns"], len(found["records"])
    ([8, 16], 2)
    """
    report: Report = {
        "schema": 1,
        "kind": "curve",
        "title": f"{' and '.join(runs)}: accuracy against {axis.label}",
        "x_label": axis.label,
        "option": axis.key,
        "metric": "",
        "rows": list(runs),
        "columns": list(axis.values),
        "published": {},
        "notes": ["every point is a run of its own, trained anew"],
        "records": [],
    }
    points = [
        (name, seed, value, replaced(replaced(options, axis.key, value), "seed", seed))
        for name, options in runs.items()
        for seed in (seeds if seeds is not None else [options.seed])
        for value in axis.values
    ]
    entries: dict[int, Report] = {}

    def each(place: int, record: Report) -> None:
        name, seed, value, options = points[place]
        entry = _entry(options, record)
        entries[place] = {"row": name, "column": value, "seed": seed, **entry}
        report["records"] = [entries[number] for number in sorted(entries)]
        report["metric"] = entry.get("metric", {}).get("name") or report["metric"]
        check_same_data(report["records"])
        if say is not None:
            say(f"{name}, {axis.label} {value}, seed {seed}: {_result(entry)}")
        if save is not None:
            save(report)

    sweep([options for *_, options in points], workers=workers, each=each)
    return report


def _result(entry: Report) -> str:
    if entry["status"] == "failed":
        return f"failed: {entry['error']}"
    return f"test {entry['metrics']['test'][entry['metric']['name']]:.4f}"


def _entry(options: TrainOptions, record: Report) -> Report:
    """The part of a point's record that goes into the result."""
    if record["status"] == "failed":
        return {"status": "failed", "error": record["error"], "options": _given(options)}
    kept = ("status", "provenance", "clean", "data", "metric", "metrics", "speed",
            "peak_memory_mib", "parameters", "steps", "total_steps", "selected_step", "started",
            "ended")  # fmt: skip
    entry = {key: record.get(key) for key in kept}
    entry |= {"error": None, "options": _given(options), "run": record["name"]}
    entry["wall_seconds"] = record["speed"]["seconds"]
    metric = record["metric"]["name"]
    lines = list(read_curves(Path(options.runs) / record["name"]))
    points = [
        [line["step"], line[metric]]
        for line in lines
        if line["split"] == "validation" and line.get(metric) is not None
    ]
    every = max(1, -(-len(points) // MOST_POINTS))
    entry["curves"] = {f"validation.{metric}": points[::every]}
    return entry


def _given(options: TrainOptions) -> Report:
    """The options that are not at their defaults."""
    defaults = TrainOptions().identity()
    given = {k: v for k, v in options.identity().items() if v != defaults[k]}
    plain: Report = json.loads(json.dumps(given))
    return plain
