"""From accuracies to a verdict: how wide a window a task needs, and how sure that is.

Accuracies of a model are its seeds' on one test set. Uncertainty has two parts: the seeds' spread
(one variance for all models, pooled, with as many degrees of freedom as there are seeds beyond the
first) and the test set's size (binomial). Both are drawn 4,000 times; each draw gives a range, and
the share of draws that agree with the verdict is its confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.order import generator

LEVELS = (0.90, 0.95, 0.99)
DRAWS = 4000
SHORT, LONG = 1 / 8, 1 / 2  # of an example's length
SURE = 0.9
Floats = npt.NDArray[np.float64]


def summarise(
    points: Sequence[dict[str, Any]], chance: float, test_size: int, length: int
) -> dict[str, Any]:
    """Curve, ranges and verdict from finished points.

    Args:
        points: with ``model`` (a name), ``receptive_field`` (None: global), ``seed``,
            ``validation`` and ``test`` (None where a run failed).
        chance: accuracy without looking at the input.
        test_size: examples of the test split.
        length: of a typical example.
    """
    models = _models(points)
    if not models:
        return {"curve": [], "best": None, "ranges": {}, "verdict": _nothing("no run has finished")}
    curve = [_row(name, field, rows, chance) for (name, field), rows in models.items()]
    best = max(curve, key=lambda row: row["validation"])
    draws = _draws(curve, test_size)
    place = curve.index(best)
    summary: dict[str, Any] = {"curve": curve, "best": best, "length": length, "chance": chance}
    bounded = [i for i, row in enumerate(curve) if row["receptive_field"] is not None]
    ranges: dict[str, Any] = {"of_accuracy": {}, "of_gain": {}}
    for level in LEVELS:
        key = f"{level:.2f}"
        raw = draws >= level * draws[:, place : place + 1]
        gain = draws - chance >= level * (draws[:, place : place + 1] - chance)
        mean = np.array([[row["test"] for row in curve]])
        ranges["of_accuracy"][key] = _range(curve, bounded, (mean >= level * best["test"])[0], raw)
        ranges["of_gain"][key] = _range(
            curve, bounded, (mean - chance >= level * (best["test"] - chance))[0], gain
        )
    summary["ranges"] = ranges
    learned = float((draws[:, place] > chance).mean())
    summary["verdict"] = _verdict(summary, draws, bounded, place, learned)
    return summary


def _models(points: Sequence[dict[str, Any]]) -> dict[tuple[str, int | None], list[dict[str, Any]]]:
    models: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for point in points:
        if point.get("test") is not None:
            models.setdefault((point["model"], point["receptive_field"]), []).append(point)
    wide = float("inf")
    return dict(sorted(models.items(), key=lambda item: (item[0][1] or wide, item[0][0])))


def _row(name: str, field: int | None, rows: list[dict[str, Any]], chance: float) -> dict[str, Any]:
    test = np.array([row["test"] for row in rows])
    return {
        "model": name,
        "receptive_field": field,
        "seeds": len(rows),
        "validation": float(np.mean([row["validation"] for row in rows])),
        "test": float(test.mean()),
        "deviation": float(test.std(ddof=1)) if len(rows) > 1 else None,
        "gain": float(test.mean() - chance),
    }


def _draws(curve: list[dict[str, Any]], test_size: int) -> Floats:
    """Plausible accuracies of every model: (DRAWS, models)."""
    rng = generator(0)
    mean = np.array([row["test"] for row in curve])
    seeds = np.array([row["seeds"] for row in curve])
    freedom = int((seeds - 1).sum())
    spread = np.zeros_like(mean)
    if freedom:
        squares = sum((row["deviation"] or 0.0) ** 2 * (row["seeds"] - 1) for row in curve)
        spread = np.sqrt(squares / freedom / seeds)
    shape = (DRAWS, len(curve))
    chance = rng.standard_t(freedom, shape) if freedom else np.zeros(shape)
    counting = np.sqrt(mean * (1 - mean) / test_size)
    return np.asarray(mean + spread * chance + counting * rng.standard_normal(shape))


def _range(
    curve: list[dict[str, Any]], bounded: list[int], reached: Any, draws: Any
) -> dict[str, Any]:
    """The least field that reaches a level, and its 90 % interval; None: no bounded field does."""
    fields = np.array([curve[i]["receptive_field"] for i in bounded] + [np.inf])

    def first(hits: npt.NDArray[np.bool_]) -> Floats:
        every = np.concatenate([hits[:, bounded], np.ones((len(hits), 1), bool)], axis=1)
        return np.asarray(fields[every.argmax(axis=1)])

    found = first(np.asarray(reached)[None])[0]
    low, high = np.quantile(first(np.asarray(draws)), [0.05, 0.95], method="nearest")
    as_field = [None if value == np.inf else int(value) for value in (found, low, high)]
    return {"receptive_field": as_field[0], "interval": as_field[1:]}


def _category(needed: Floats, widest: int, length: int) -> npt.NDArray[np.str_]:
    """Short, middle or long range, by the share of an example that must be seen."""
    share = needed / length
    long = (share > LONG) & np.isfinite(needed)
    none = ~np.isfinite(needed)  # more than the widest field that was tried
    names = np.where(share <= SHORT, "short range", "middle range")
    names = np.where(long, "long range", names)
    return np.where(none, "long range" if widest > SHORT * length else "open", names)


def _verdict(
    summary: dict[str, Any], draws: Floats, bounded: list[int], place: int, learned: float
) -> dict[str, Any]:
    curve, chance, length = summary["curve"], summary["chance"], summary["length"]
    best = summary["best"]
    if learned < 0.99:
        return _nothing(
            f"no model is clearly better than chance ({chance:.1%}): the best, {best['model']}, "
            f"has {best['test']:.1%}; train longer"
        )
    if not bounded:
        return _nothing("no bounded model was trained")
    fields = np.array([curve[i]["receptive_field"] for i in bounded] + [np.inf])
    hits = draws - chance >= 0.95 * (draws[:, place : place + 1] - chance)
    every = np.concatenate([hits[:, bounded], np.ones((len(hits), 1), bool)], axis=1)
    widest = int(fields[:-1].max())
    drawn = _category(fields[every.argmax(axis=1)], widest, length)
    needed = summary["ranges"]["of_gain"]["0.95"]["receptive_field"]
    category = str(_category(np.array([needed or np.inf]), widest, length)[0])
    confidence = float((drawn == category).mean())
    what = f"{needed} of {length} positions" if needed else f"more than {widest} positions"
    text = (
        f"{category}: 95 % of what the best model ({best['model']}, {best['test']:.1%}) learns "
        f"beyond chance ({chance:.1%}) needs {what}; confidence {confidence:.0%}"
    )
    if category == "open":
        text += f"; try fields up to {int(LONG * length)}"
    weak = _weak_global(curve, best)
    if weak is not None:
        text += (
            f"; but no global model keeps up ({weak['model']}, {weak['test']:.1%}): one that is "
            "trained better might show more that is far away"
        )
    return {
        "category": category,
        "decided": confidence >= SURE and category != "open" and weak is None,
        "confidence": confidence,
        "text": text,
    }


def _weak_global(curve: list[dict[str, Any]], best: dict[str, Any]) -> dict[str, Any] | None:
    """The best global model, if it learns less than 95 % of what a bounded one does."""
    everywhere = [row for row in curve if row["receptive_field"] is None]
    if not everywhere:
        return None
    top = max(everywhere, key=lambda row: row["validation"])
    return top if top["gain"] < 0.95 * best["gain"] else None


def _nothing(text: str) -> dict[str, Any]:
    return {"category": "open", "decided": False, "confidence": 0.0, "text": text}
