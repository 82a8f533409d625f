"""The shape of results files, and of the labels beside an experiment's runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longlens.training.shapes import NUMBER, RUN
from longlens.untrusted import check_shape

LABEL = (str, *NUMBER)  # a curve's columns are numbers
PLACE = {"row": LABEL, "column": LABEL, "seed?": int}
WORDS = ("experiment", "title", "metric", "kind", "source", "command", "x_label", "relative_to")
RESULTS: dict[str, Any] = {
    **{f"{key}?": str for key in WORDS},
    "rows?": [LABEL],
    "columns?": [LABEL],
    "published?": {"*": {"*": (*NUMBER, None)}},
    "notes?": [str],
    "reads?": {"*": str},
    "quick?": bool,
    "records?": [
        {
            **RUN,
            **PLACE,
            "wall_seconds?": NUMBER,
            "epochs?": NUMBER,
            "curves?": {"*": [[(*NUMBER, None)]]},
        }
    ],
}


def check_labels(path: Path, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Row, column and seed of each run, out of the content of an ``experiment.json``.

    Raises:
        ValueError: it is damaged.

    """
    labels = values.get("runs") or {}
    try:
        check_shape(dict(values), {**RESULTS, "experiment": str, "rows": [str], "columns": [LABEL]})
        check_shape(labels, {"*": PLACE}, "runs")
        for name, place in labels.items():
            for side in ("row", "column"):
                if place[side] not in values[f"{side}s"]:
                    raise ValueError(f"runs.{name}: there is no {side} {place[side]!r}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return dict(labels)
