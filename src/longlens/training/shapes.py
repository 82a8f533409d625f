"""The shape of records and curves: what every reader of them may rely on."""

from __future__ import annotations

from typing import Any

NUMBER = (int, float)
PLAIN = (int, float, str, bool, None)
_BY_GROUP = {"*": {"*": (*NUMBER, None)}}  # accuracy_by_depth: {"3": {"accuracy": 0.5, "count": 8}}
METRICS = {"*": ({"*": (*NUMBER, None, _BY_GROUP)}, None)}  # {"test": {"loss": 0.7, …}}

# What a record and a line of a results file have in common; anything else may be there as well.
RUN: dict[str, Any] = {
    "status": str,
    "error?": str,
    "task?": str,
    "mixer?": str,
    "seed?": int,
    "options?": {},
    "provenance?": {"*": PLAIN},
    "clean?": bool,
    "data?": {"name?": str, "identity?": str, "stands_in_for?": str, "selected_on?": str},
    "metric?": {"name?": str},
    "metrics?": METRICS,
    "speed?": {"*": (*NUMBER, None)},
    "peak_memory_mib?": NUMBER,
    "parameters?": int,
    "world_size?": int,
    "steps?": int,
    "total_steps?": int,
    "selected_step?": int,
    "started?": str,
    "ended?": str,
}
RECORD = {**RUN, "schema": int, "events?": [{}]}
FINISHED = {
    "options": {},
    "data": {"identity": str},
    "metric": {"name": str},
    "metrics": METRICS,
}
CURVE_LINE = {
    "step": int,
    "split": str,
    "loss?": NUMBER,
    "epoch?": NUMBER,
    "seconds?": NUMBER,
    "*": (*NUMBER, str, None),
}
