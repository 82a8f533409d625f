"""What the atlas keeps of an audit: how far a task reaches, what windows miss, how sure that is.

All of it follows from an audit's record: test accuracies of probes by reach, and who was right
about which example, for the bootstrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longlens.lens.atlas.entries import Entry
from longlens.lens.audit.probed import probe_points
from longlens.lens.audit.verdict import SHORT, plausible, summarise
from longlens.tasks.arrays import Floats

LEARNED = 0.99  # share of draws in which the best model is above chance
ENDS = [0.05, 0.95]  # of a 90 % interval


def atlas_row(entry: Entry, report: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the atlas from an entry and the record of its audit (see ``timed_audit``)."""
    chance, length, data = report["chance"], report["length"], report["data"]
    probes = _complete(report.get("probes") or ())
    points = [*report["points"], *report["global"], *probe_points(probes)]
    floor = report["verdict"].get("floor")
    judged = summarise(points, chance, data["examples"]["test"], length, floor)
    row: dict[str, Any] = {
        "name": entry.name,
        "group": entry.group,
        "task": report["task"],
        "options": dict(entry.options),
        "identity": data["identity"][:16],
        "stands_in_for": data.get("stands_in_for"),
        "length": length,
        "examples": data["examples"],
        "probed": report.get("probed"),
        "budget": report["options"].get("total"),
        "open": report.get("open") or [],
        "chance": _short(chance),
        "floor": _floor(floor),
        "proven": _proven(report.get("certificate")),
        "verdict": judged["verdict"]["text"],
        "global": {
            where: _short(np.mean([probe["test"] for probe in probes if probe["where"] == where]))
            for where in ("anywhere", "in place")
            if any(probe["where"] == where for probe in probes)
        },
        "learned": False,
        "curve": [],
    }
    if not points:
        return row
    every, curve, draws, place = plausible(points, chance, data["examples"]["test"])
    needed = judged["ranges"]["of_gain"]["0.95"]
    best = curve[place]
    learned = bool((draws[:, place] > chance).mean() >= LEARNED)
    return row | {
        "curve": [
            {
                "model": model["model"],
                "receptive_field": model["receptive_field"],
                "test": _short(model["test"]),
                "deviation": _short(model["deviation"]),
            }
            for model in every
        ],
        "best": {"model": best["model"], "test": _short(best["test"])},
        "learned": learned,
        "reach": needed["receptive_field"] if learned else None,
        "reach_interval": needed["interval"] if learned else None,
        "widest": max((m["receptive_field"] or 0 for m in curve), default=0) or None,
        "near": near(curve, draws, place, chance, length),
    }


def _complete(probes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The probes of those seeds that were tried everywhere; of the first seed, whatever there is.

    A window that a seed has not come to would look worse, or its spread wider, than it is.
    """
    kinds = {(probe["where"], probe["receptive_field"]) for probe in probes}
    counts = Counter(probe["seed"] for probe in probes)
    return [probe for probe in probes if probe["seed"] == 0 or counts[probe["seed"]] == len(kinds)]


def near(
    curve: Sequence[Mapping[str, Any]], draws: Floats, place: int, chance: float, length: int
) -> dict[str, Any] | None:
    """What windows of up to an eighth of an example miss of all that was learned.

    ``missed`` is a share of the best model's accuracy beyond chance, with a 90 % interval; ``sure``
    is the share of draws in which they miss more than a twentieth.
    """
    fields = [model["receptive_field"] or np.inf for model in curve]
    inside = [n for n, field in enumerate(fields) if field <= max(SHORT * length, min(fields))]
    if not inside or min(fields) == np.inf:
        return None

    chosen = max(inside, key=lambda n: float(curve[n]["validation"]))

    def missed(accuracies: Floats) -> Floats:
        gain = np.maximum(accuracies[:, place] - chance, 1e-9)
        return np.asarray(1 - (accuracies[:, chosen] - chance) / gain).clip(0, 1)

    found = missed(np.array([[model["test"] for model in curve]]))
    drawn = missed(draws)
    return {
        "window": int(max(fields[n] for n in inside)),
        "missed": _short(found[0]),
        "interval": [_short(end) for end in np.quantile(drawn, ENDS)],
        "sure": _short((drawn > 0.05).mean()),
    }


def _short(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)


def _floor(floor: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if floor is None else {"name": floor["name"], "test": _short(floor["test"])}


def _proven(certificate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a certificate that holds says: no covered model of this reach is above this accuracy."""
    if certificate is None or not certificate["holds"]:
        return None
    return {
        "distance": certificate["range"],
        "accuracy": _short(certificate["accuracy_bound"]),
        "covers": certificate["covers"],
        "method": certificate["method"],
    }
