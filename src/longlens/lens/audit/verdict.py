"""From accuracies to a verdict: how wide a window a task needs, and how sure that is.

Accuracies of a model are its seeds' on one test set. Uncertainty has two parts: the seeds' spread
(one variance for all models, pooled, with as many degrees of freedom as there are seeds beyond the
first) and the test set's size (binomial). Both are drawn 4,000 times; each draw gives a range, and
the share of draws that agree with the verdict is its confidence. One seed has no spread, and so no
confidence.

A verdict names what it cannot know. It is *open* where the sweep is too narrow, where no global
model has learned, or where a linear model of a few neighbours contradicts it; and it is *undecided*
with fewer than three seeds, without a floor, where global models lag behind, or where the fields
that were tried leave out the border between two categories.

Probes (random features, see ``lens/probe``) are rows as models are. They keep who was right about
which example, so their examples are drawn as a bootstrap, for all probes the same. What probes say
alone is decided only where it needs nobody else: short range, and 95 % of all there is is learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.arrays import Bools, Floats
from longlens.tasks.order import generator

LEVELS = (0.90, 0.95, 0.99)
DRAWS = 4000
SHORT, LONG = 1 / 8, 1 / 2  # of an example's length
SURE = 0.9
SEEDS = 3  # of every model, for a verdict that is decided
RULES = 4  # of these rules; a record says by which it was judged
BOUNDED = ("local", "conv")  # mixers that see a window, as do all whose names end in -chunk


def summarise(
    points: Sequence[dict[str, Any]],
    chance: float,
    test_size: int,
    length: int,
    floor: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Curve, ranges and verdict from finished points.

    Args:
        points: with ``model`` (a name), ``receptive_field`` (None: unbounded, or unknown),
            ``seed``, ``validation`` and ``test`` (None where a run failed).
        chance: accuracy without looking at the input.
        test_size: examples of the test split.
        length: of a typical example.
        floor: what is reached without a network (see ``floor.py``); None: not measured.
    """
    if all(point.get("test") is None for point in points):
        nothing = _nothing("no run has finished", 0, floor)
        return {"curve": [], "best": None, "ranges": {}, "verdict": nothing}
    every, curve, draws, place = plausible(points, chance, test_size)
    best = curve[place]
    summary: dict[str, Any] = {"curve": every, "best": best, "length": length, "chance": chance}
    bounded = [i for i, row in enumerate(curve) if row["receptive_field"] is not None]
    ranges: dict[str, Any] = {"of_accuracy": {}, "of_gain": {}}
    for level in LEVELS:
        key = f"{level:.2f}"
        raw = draws >= level * draws[:, place : place + 1]
        gain = draws - chance >= level * (draws[:, place : place + 1] - chance)
        mean = np.array([[row["test"] for row in curve]])
        reached, gained = mean >= level * best["test"], mean - chance >= level * best["gain"]
        ranges["of_accuracy"][key] = _range(curve, bounded, reached, raw)
        ranges["of_gain"][key] = _range(curve, bounded, gained, gain)
    summary["ranges"] = ranges
    return summary | {"verdict": _verdict(summary, curve, draws, bounded, place, floor)}


def plausible(
    points: Sequence[dict[str, Any]], chance: float, test_size: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Floats, int]:
    """Every model, those that are judged, their plausible accuracies (DRAWS, models), the best."""
    models = _models(points)
    every = [_row(name, field, rows, chance) for (name, field), rows in models.items()]
    best = max(every, key=lambda row: row["validation"])
    rights = {key: [row["right"] for row in rows if "right" in row] for key, rows in models.items()}
    curve = _complete(every, best)
    judged = [rights[row["model"], row["receptive_field"]] for row in curve]
    return every, curve, _draws(curve, test_size, judged), curve.index(best)


def _complete(curve: list[dict[str, Any]], best: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that are judged: beside probes, only those with all seeds, if the best has them."""
    complete = [row for row in curve if row["seeds"] >= SEEDS]
    probed = any(row.get("probe") for row in curve)
    return complete if probed and best in complete else curve


def _models(points: Sequence[dict[str, Any]]) -> dict[tuple[str, int | None], list[dict[str, Any]]]:
    models: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for point in points:
        if point.get("test") is not None:
            models.setdefault((point["model"], point["receptive_field"]), []).append(point)
    wide = float("inf")
    return dict(sorted(models.items(), key=lambda item: (item[0][1] or wide, item[0][0])))


def _row(name: str, field: int | None, rows: list[dict[str, Any]], chance: float) -> dict[str, Any]:
    test = np.array([row["test"] for row in rows])
    probe = {"probe": True} if rows[0].get("probe") else {}
    return probe | {
        "model": name,
        "receptive_field": field,
        "global": field is None and name not in BOUNDED and not name.endswith("-chunk"),
        "seeds": len(rows),
        "validation": float(np.mean([row["validation"] for row in rows])),
        "test": float(test.mean()),
        "deviation": float(test.std(ddof=1)) if len(rows) > 1 else None,
        "gain": float(test.mean() - chance),
    }


def _draws(curve: list[dict[str, Any]], test_size: int, rights: list[list[Any]]) -> Floats:
    """Plausible accuracies of every model: (DRAWS, models)."""
    rng = generator(0)
    mean = np.array([row["test"] for row in curve])
    seeds = np.array([row["seeds"] for row in curve])
    shape = (DRAWS, len(curve))
    drawn = np.tile(mean, (DRAWS, 1))
    probes = np.array([bool(row.get("probe")) for row in curve])
    for kind in (False, True):  # seeds of probes differ less than those of trained models
        rows = [row for row, probe in zip(curve, probes, strict=True) if probe == kind]
        freedom = sum(row["seeds"] - 1 for row in rows)
        if not freedom:
            continue
        squares = sum((row["deviation"] or 0.0) ** 2 * (row["seeds"] - 1) for row in rows)
        spread = np.sqrt(squares / freedom / seeds) * (probes == kind)
        drawn += spread * rng.standard_t(freedom, shape)
    counting = np.sqrt(mean * (1 - mean) / test_size)
    drawn += np.where(probes, 0, counting * rng.standard_normal(shape))
    if probes.any():
        right = np.stack([np.mean(row, axis=0) for row in rights if len(row)], axis=1)
        # One more that everybody gets right and one that nobody does: few examples prove little.
        right = np.concatenate([right, np.ones_like(right[:1]), np.zeros_like(right[:1])])
        drawn[:, probes] += bootstrap(len(right)) @ right - right.mean(0)
    return np.asarray(drawn)


@lru_cache(maxsize=1)
def bootstrap(count: int) -> npt.NDArray[np.float32]:
    """Shares of ``count`` examples in each of DRAWS samples with replacement: (DRAWS, count)."""
    rng = generator(1)
    rows = [
        np.bincount(rng.integers(0, count, count), minlength=count) / count for _ in range(DRAWS)
    ]
    return np.stack(rows).astype(np.float32)


def _range(
    curve: list[dict[str, Any]], bounded: list[int], reached: Bools, drawn: Bools
) -> dict[str, Any]:
    """The least field that reaches a level (None: none does), and its 90 % interval, if known."""
    least = _least_field(curve, bounded, reached)[0]
    low, high = np.quantile(_least_field(curve, bounded, drawn), [0.05, 0.95], method="nearest")
    as_field = [None if value == np.inf else int(value) for value in (least, low, high)]
    several = min(row["seeds"] for row in curve) > 1
    return {"receptive_field": as_field[0], "interval": as_field[1:] if several else None}


def _least_field(curve: list[dict[str, Any]], bounded: list[int], reached: Bools) -> Floats:
    """The least field that reaches a level in each draw (N, models); infinity where none does."""
    fields = np.array([curve[i]["receptive_field"] for i in bounded] + [np.inf])
    every = np.concatenate([reached[:, bounded], np.ones((len(reached), 1), bool)], axis=1)
    return np.asarray(fields[every.argmax(axis=1)])


def _category(needed: Floats, widest: int, length: int) -> npt.NDArray[np.str_]:
    """Short, middle or long range, by the share of an example that must be seen."""
    share = needed / length
    names = np.where(share <= SHORT, "short range", "middle range")
    names = np.where(share > LONG, "long range", names)
    # More than the widest field that was tried is long range only if that one was wide.
    return np.where(np.isfinite(needed) | (widest >= LONG * length), names, "open")


def _verdict(
    summary: dict[str, Any],
    curve: list[dict[str, Any]],
    draws: Floats,
    bounded: list[int],
    place: int,
    floor: dict[str, Any] | None,
) -> dict[str, Any]:
    chance, length = summary["chance"], summary["length"]
    best, seeds = summary["best"], min(row["seeds"] for row in curve)
    learned = (draws > chance).mean(axis=0) >= 0.99
    if not learned[place]:
        text = (
            f"no model is clearly better than chance ({chance:.1%}): the best, {best['model']}, "
            f"has {best['test']:.1%}"
        )
        if not all(row.get("probe") for row in curve):
            text += "; train longer"
        return _nothing(text, seeds, floor)
    if not bounded:
        return _nothing("no bounded model was trained", seeds, floor)
    fields = np.array([curve[i]["receptive_field"] for i in bounded])
    hits = draws - chance >= 0.95 * (draws[:, place : place + 1] - chance)
    widest = int(fields.max())
    drawn = _category(_least_field(curve, bounded, hits), widest, length)
    needed = summary["ranges"]["of_gain"]["0.95"]["receptive_field"]
    category = str(_category(np.array([needed or np.inf]), widest, length)[0])
    confidence = float((drawn == category).mean()) if seeds > 1 else None
    top = _best_global(curve)
    # any of them: the best on validation may be one of several, and not the best on test
    has_learned = any(
        row["global"] and known and (floor is None or row["test"] >= floor["test"])
        for row, known in zip(curve, learned, strict=True)
    )
    there = [n for n, row in enumerate(curve) if row["receptive_field"] == needed]
    all_there_is = draws - chance >= 0.95 * (1 - chance)  # whatever a global model might find
    conclusive = needed is not None and bool((all_there_is[:, there].mean(axis=0) >= SURE).any())
    reason = (
        f"the sweep ends below half the length; try fields up to {int(LONG * length)}"
        if category == "open"
        else _contradiction(category, best, chance, top, has_learned, floor, conclusive)
    )
    asked = top if reason is None and not conclusive else None
    doubts = list(_doubts(best, asked, seeds, confidence, floor))
    if reason is None and (borders := _untried(needed, fields, length)):
        doubts.append(
            f"a field of {' or '.join(map(str, borders))}, the border to another verdict, was not "
            "tried (--fields)"
        )
    enough = conclusive and category == "short range"
    if not enough and all(row.get("probe") for row in curve):
        doubts.append("by random features alone: a network that is trained may find more")
    decided = reason is None and not doubts
    said = "open" if reason else category if decided else f"{category}, undecided"
    what = f"{needed} of {length} positions" if needed else f"more than {widest} positions"
    parts = [
        f"{said}: 95 % of what the best model ({best['model']}, {best['test']:.1%}) learns beyond "
        f"chance ({chance:.1%}) needs {what}",
        _floor_words(floor, best, chance),
        *([reason] if reason else []),
        *doubts,
    ]
    if decided:
        parts.append(f"confidence {confidence:.0%}, {seeds} seeds")
    return {
        "category": "open" if reason else category,
        "decided": decided,
        "confidence": None if reason else confidence,
        "seeds": seeds,
        "floor": floor,
        "rules": RULES,
        "text": "; ".join(parts),
    }


def _untried(needed: int | None, fields: Floats, length: int) -> list[int]:
    """Borders between categories among the fields that may be enough and were not tried.

    A field that is enough was found, and the next smaller one that was tried is not enough; all
    between them may be.

    >>> _untried(33, np.array([3.0, 9, 33]), 64), _untried(33, np.array([9.0, 32, 33]), 64)
    ([32], [])
    """
    if needed is None:
        return []
    below = max((int(field) for field in fields if field < needed), default=0)
    return [border for border in (int(SHORT * length), int(LONG * length))
            if below < border < needed]  # fmt: skip


def _floor_words(floor: dict[str, Any] | None, best: dict[str, Any], chance: float) -> str:
    if floor is None:
        return "what is reached without a network was not measured"
    enough = floor["test"] - chance >= 0.95 * best["gain"]
    also = ", which is as much" if enough else ""
    return f"without a network {floor['test']:.1%} ({floor['name']}){also}"


def _best_global(curve: list[dict[str, Any]]) -> dict[str, Any] | None:
    everywhere = [row for row in curve if row["global"]]
    return max(everywhere, key=lambda row: row["validation"]) if everywhere else None


def _contradiction(
    category: str,
    best: dict[str, Any],
    chance: float,
    top: dict[str, Any] | None,
    has_learned: bool,
    floor: dict[str, Any] | None,
    conclusive: bool,
) -> str | None:
    """Why the sweep's answer cannot stand, or None."""
    near = (floor or {}).get("local")
    enough = near is not None and near["test"] - chance >= 0.95 * best["gain"]
    if near is not None and enough and category != "short range":
        return f"but a linear model of {near['name']} reaches {near['test']:.1%}"
    if category == "long range" or conclusive:
        return None
    if top is None:
        return "but no global model was trained, so nobody looked for what is far away"
    if not has_learned:
        return f"but no global model has learned the task ({top['model']}, {top['test']:.1%})"
    return None


def _doubts(
    best: dict[str, Any],
    top: dict[str, Any] | None,
    seeds: int,
    confidence: float | None,
    floor: dict[str, Any] | None,
) -> Iterator[str]:
    """What keeps a verdict from being decided."""
    if seeds < SEEDS:
        yield f"{seeds} {'seed' if seeds == 1 else 'seeds'}, where {SEEDS} are needed"
    if confidence is not None and confidence < SURE:
        yield f"confidence {confidence:.0%}"
    if floor is None:
        yield "a verdict needs a floor"
    if top is not None and top["gain"] < 0.95 * best["gain"]:
        yield (
            f"no global model keeps up ({top['model']}, {top['test']:.1%}): one that is trained "
            "better might show more that is far away"
        )


def _nothing(text: str, seeds: int, floor: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "category": "open",
        "decided": False,
        "confidence": None,
        "seeds": seeds,
        "floor": floor,
        "rules": RULES,
        "text": text,
    }
