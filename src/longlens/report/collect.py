"""The records of an experiment as one compact file: what is kept under ``results/``.

Reads records only; needs neither torch nor numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from longlens.files import write_output
from longlens.report.read import DAMAGED, Run, find_runs
from longlens.report.results import POINTS, thin
from longlens.report.rows import fill_rows
from longlens.report.shapes import PLACE, RESULTS, check_labels
from longlens.training.options import PLACEMENT, TrainOptions
from longlens.training.records import EXPERIMENT
from longlens.untrusted import check_shape, parse_json

SCHEMA = 1
DIGITS = 6  # significant ones that are kept
HEADER = (
    "schema", "experiment", "title", "source", "command", "metric", "rows", "columns", "kind",
    "x_label", "published", "published_seeds", "cost", "notes", "quick",
)  # fmt: skip
NAMED = ("task", "mixer", "seed")  # options that are written also where they are the default
COPIED = (
    "provenance", "clean", "data", "metric", "metrics", "speed", "peak_memory_mib", "parameters",
    "world_size", "steps", "total_steps", "selected_step", "started", "ended",
)  # fmt: skip
OPTIONAL = ("ablations",)  # copied where a record has them


def collect(folder: str | Path, problems: list[str] | None = None) -> dict[str, Any]:
    """The content of a results file, from the folder of an experiment's runs.

    Args:
        folder: where ``longlens run NAME`` wrote ``experiment.json`` and the records.
        problems: gets a line for each damaged record, which counts as failed, and for damaged
            curves, which are left out.

    Raises:
        ValueError: it is no such folder.

    """
    folder = Path(folder)
    path = folder / EXPERIMENT
    try:
        labels = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} has no {EXPERIMENT}: give the folder that `longlens run NAME` made"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not isinstance(labels, dict) or labels.get("schema") != SCHEMA:
        raise ValueError(f"{path} is of another version; this one reads schema {SCHEMA}")
    places = check_labels(path, labels)
    runs = {run.name: run for run in find_runs(folder)}
    if problems is not None:
        problems += [run.problem for run in runs.values() if run.problem is not None]
    perplexity = labels.get("metric") == "perplexity"
    records = [
        {**place, "seed": place.get("seed") or 0, **_compact(runs[name], perplexity)}
        for name, place in places.items()
        if name in runs
    ]
    records = fill_rows(records, labels)
    header = {key: labels[key] for key in HEADER if key in labels}
    return {**header, "records": _ordered(records, header)}


def merge(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Two results files of one experiment: of each row, column and seed the newer record.

    >>> base = {"experiment": "mine", "quick": False, "rows": ["a"], "columns": ["x"]}
    >>> record = {"row": "a", "column": "x", "seed": 0, "started": "2026-01-02"}
    >>> other = record | {"seed": 1}
    >>> both = merge({**base, "records": [record]}, {**base, "records": [other]})
    >>> [record["seed"] for record in both["records"]]
    [0, 1]

    Raises:
        ValueError: they are of different experiments.

    """
    for key in ("experiment", "quick"):
        if new.get(key) != old.get(key):
            raise ValueError(
                f"results of different experiments: {key} is {new.get(key)!r} and {old.get(key)!r}"
            )
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in (*old["records"], *new["records"]):
        place = (record["row"], record["column"], record["seed"])
        there = kept.get(place)
        if there is None or (record.get("started") or "") >= (there.get("started") or ""):
            kept[place] = record
    rows, columns = (_with_labels(new[key], kept.values(), key[:-1]) for key in ("rows", "columns"))
    whole = {**new, "rows": rows, "columns": columns}
    return {**whole, "records": _ordered(list(kept.values()), whole)}


def _with_labels(labels: list[str], records: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """The declared labels, and at the end those that only an older record has."""
    return list(dict.fromkeys([*labels, *(record[key] for record in records)]))


def _ordered(records: list[dict[str, Any]], header: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows, columns = header["rows"], header["columns"]
    return sorted(
        records,
        key=lambda one: (rows.index(one["row"]), columns.index(one["column"]), one["seed"]),
    )


def _compact(run: Run, perplexity: bool) -> dict[str, Any]:
    """One record: what was run, what came out, thin curves."""
    values = run.values
    status, error = values["status"], values.get("error")
    if status not in ("finished", "failed", "stopped"):
        status = "failed" if status == DAMAGED else "stopped"
        error = error or "no end is recorded: killed, or still running"
    lines = run.curves
    kept: dict[str, Any] = {key: values.get(key) for key in COPIED}
    kept |= {key: values[key] for key in OPTIONAL if key in values}
    if perplexity and kept["metrics"]:
        for of_split in filter(None, kept["metrics"].values()):
            loss = of_split.get("loss")
            of_split["perplexity"] = None if loss is None or loss > 700 else math.exp(loss)
    return {
        "status": status,
        "error": error,
        "options": _changed(values.get("options") or {}),
        **{key: _rounded(value) for key, value in kept.items()},
        "epochs": max((line.get("epoch") or 0.0 for line in lines), default=None),
        "wall_seconds": _seconds(values),
        "curves": _thin_curves(lines, run.metric),
    }


def _changed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what is computed and differ from the defaults."""
    defaults: dict[str, Any] = {
        field.name: {} if field.name.endswith("_options") else field.default
        for field in fields(TrainOptions)
    }
    return {
        name: value
        for name, value in options.items()
        if name in NAMED or (name not in PLACEMENT and value != defaults.get(name))
    }


def _seconds(values: Mapping[str, Any]) -> float | None:
    """From start to end by the clock; of a run that was resumed this counts the pause as well."""
    if not values.get("started") or not values.get("ended"):
        return None
    try:
        started, ended = (datetime.fromisoformat(values[key]) for key in ("started", "ended"))
        return (ended - started).total_seconds()
    except (ValueError, TypeError):  # no dates, or only one of them with a time zone
        return None


def _thin_curves(lines: list[dict[str, Any]], metric: str) -> dict[str, list[list[float]]]:
    """``split.quantity`` -> [step, value], evenly thinned; the ends are kept."""
    curves: dict[str, list[list[float]]] = {}
    for line in lines:
        for quantity in dict.fromkeys(("loss", metric)):
            value = line.get(quantity)
            if isinstance(value, int | float):
                point = [line["step"], _rounded(value)]
                curves.setdefault(f"{line['split']}.{quantity}", []).append(point)
    return {name: thin(points, POINTS) for name, points in curves.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value


def write_results(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a results file: one record a line, so that a difference between two can be read."""
    header = {key: value for key, value in content.items() if key != "records"}
    head = json.dumps(header, indent=1, ensure_ascii=False, allow_nan=False)
    lines = [
        json.dumps(record, ensure_ascii=False, allow_nan=False) for record in content["records"]
    ]
    body = ",\n".join(lines)
    write_output(
        Path(path),
        (head[: head.rindex("}")].rstrip() + f',\n "records": [\n{body}\n]}}\n').encode(),
    )


def read_results(path: str | Path) -> dict[str, Any]:
    """Read a results file.

    Raises:
        ValueError: it is damaged, or of another version.

    """
    path = Path(path)
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"it is of another version; this one reads schema {SCHEMA}")
        check_shape(content, {**RESULTS, "records": [{**PLACE, "seed": int, "status": str}]})
    except ValueError as error:
        raise ValueError(f"{path} is no results file ({error})") from None
    return content
