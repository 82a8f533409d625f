"""What follows from an audit's measurements: its curve, ratios and verdict, at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longlens.lens.audit.floor import floor_of
from longlens.lens.audit.options import SIZES, kernels
from longlens.lens.audit.probed import probe_points
from longlens.lens.audit.published import published
from longlens.lens.audit.verdict import summarise
from longlens.training.options import TrainOptions


def judge(report: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a report that are no measurements, from those that are.

    An audit calls it after every model; ``longlens audit --judge FILE`` calls it for a record that
    an older version judged.

    Args:
        report: with ``points``, ``global``, ``chance``, ``length``, ``diagnostics``, ``data`` and
            ``options``.

    >>> point = dict(model="conv 3", receptive_field=3, seed=0, validation=0.6, test=0.6)
    >>> judged = judge(dict(task="t", points=[point], chance=0.5, length=9, diagnostics={},
    ...     data=dict(examples=dict(test=100)), options={}, **{"global": []}))
    >>> judged["verdict"]["category"], judged["verdict"]["decided"]
    ('open', False)
    """
    points = [*report["points"], *report["global"], *probe_points(report.get("probes") or ())]
    floor = floor_of(report.get("diagnostics"), report["chance"])
    test_size = report["data"]["examples"]["test"]
    judged = summarise(points, report["chance"], test_size, report["length"], floor)
    known = published(report["task"])
    judged["published"] = known if _as_published(report) else None
    if known is None:
        return judged | {"ratio": None, "layer_ratio": None}
    kernel, depth = known["kernel"], _depth(report["options"])
    return judged | {
        "ratio": _ratio(judged["curve"], kernel, depth),
        "layer_ratio": _ratio(judged["curve"], 1 + depth * (kernel - 1), depth),
    }


def _as_published(report: Mapping[str, Any]) -> bool:
    """Whether the data are those of the literature, not others in their place."""
    options = report["options"]
    changed = [name for name in options.get("task_options") or {} if name not in SIZES]
    return not (report["data"].get("stands_in_for") or options.get("quick") or changed)


def _depth(options: Mapping[str, Any]) -> int:
    """Blocks of the models."""
    depth = options.get("depth") or (options.get("training") or {}).get("depth")
    return int(depth or TrainOptions.depth)


def _ratio(curve: list[dict[str, Any]], field: int, depth: int) -> dict[str, Any] | None:
    """Accuracy of convolutions that see ``field`` positions, as a share of the best global's."""
    bounded = [row for row in curve if row["model"] == f"conv {field}"]
    unbounded = [row for row in curve if row["global"]]
    if not bounded or not unbounded:
        return None
    best = max(unbounded, key=lambda row: row["validation"])
    return {
        "receptive_field": field,
        "kernels": kernels(field, depth),
        "ratio": bounded[0]["test"] / best["test"],
        "of": best["model"],
    }
