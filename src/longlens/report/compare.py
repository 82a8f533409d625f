"""Who is ahead of whom: differences of means, and no more said than the spread over seeds allows.

Runs are compared that differ in nothing but LaS's two operators: their options say which those are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import variance
from typing import Any

from longlens.report.cells import MIXED, TableCell, filled
from longlens.report.read import MEANS, STATED
from longlens.runs.record import Record
from longlens.runs.results import ResultTable

# Two-sided 95 % quantiles of Student's t for 1, 2 … degrees of freedom; more than ten count as ten.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
MODELS = {"softmax": "softmax", "l": "L", "s": "S", "las": "LaS"}
FAMILY = {("none", "none"): "softmax", ("las", "none"): "L", ("none", "box"): "S",
          ("las", "box"): "LaS"}  # fmt: skip
# Options that belong to LaS
OPERATORS = {"window", "bound", "spacing", "smoothing", "edge", "learned_alpha", "decay",
             "smoother"}  # fmt: skip
UNFAIR = {"selected on test", "validation trained on", "validation", "quick", MIXED}


@dataclass(frozen=True)
class Difference:
    """How far a cell is ahead of another; negative: behind, whatever the metric."""

    label: str
    ours: TableCell
    theirs: TableCell

    @property
    def value(self) -> float:
        """The difference of the means, positive where ours is better."""
        assert self.ours.mean is not None and self.theirs.mean is not None
        sign = 1 if self.ours.metric.higher_is_better else -1
        return sign * (self.ours.mean - self.theirs.mean)

    @property
    def margin(self) -> float | None:
        """Half the 95 % interval of the difference (Welch); None where a side has a single run."""
        sides = [(variance(c.values) / len(c.values), len(c.values) - 1)
                 for c in (self.ours, self.theirs) if len(c.values) > 1]  # fmt: skip
        if len(sides) < 2:
            return None
        total = sum(part for part, _ in sides)
        if total == 0:
            return 0.0
        freedom = total**2 / sum(part**2 / count for part, count in sides)
        return T95[max(1, min(int(freedom), len(T95))) - 1] * math.sqrt(total)

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind`` or ``level``; of single runs ``ahead once`` and so on."""
        if self.margin is None:
            side = "ahead" if self.value > 0 else "behind" if self.value < 0 else "level"
            return f"{side} once"
        if abs(self.value) <= self.margin:
            return "level"
        return "ahead" if self.value > 0 else "behind"

    @property
    def unit(self) -> str:
        """What a difference is counted in."""
        name = self.ours.metric.name
        bits = " bits" if name.startswith("bits") else ""
        return {"accuracy": " points", "r2": " R²"}.get(name, bits)

    def amount(self, value: float | None = None) -> str:
        """The difference, or another one of this metric, with its sign."""
        shown = self.value if value is None else value
        digits = 1 if self.ours.metric.name == "accuracy" else 3
        if digits == 3 and 0 < abs(shown) < 0.0005:  # what is left of an R² near 1
            digits = min(6, math.ceil(-math.log10(abs(shown))))
        text = f"{shown:+.{digits}f}".replace("-", "−")
        return text if text.strip("+−0.") else text[1:]

    def evidence(self) -> str:
        """The interval and the seeds, or that there is a single run."""
        seeds = sorted({len(self.ours.values), len(self.theirs.values)})
        if self.margin is None:
            return "a single run each" if seeds == [1] else "a single run on one side"
        ends = " to ".join(self.amount(self.value + sign * self.margin) for sign in (-1, 1))
        count = f"{seeds[0]} seeds each" if len(seeds) == 1 else f"{seeds[0]} and {seeds[1]} seeds"
        return f"95 % interval {ends}; {count}"


@dataclass(frozen=True)
class Setting:
    """Runs of one experiment that share everything but LaS's operators."""

    experiment: ResultTable
    column: str
    options: Mapping[str, object]
    cells: dict[str, list[TableCell]] = field(default_factory=dict)
    """By model: softmax, L, S and LaS."""

    def difference(self, ours: str, theirs: str = "softmax") -> Difference:
        """Between the first cells of two models."""
        return Difference(self.column, self.cells[ours][0], self.cells[theirs][0])


def model_of(record: Record) -> str | None:
    """Which of softmax, L, S and LaS a run has; None: another mixer."""
    options = record.options.get("mixer_options") or {}
    if record.options.get("mixer") == "family":
        return FAMILY.get((options.get("decay", "las"), options.get("smoother", "box")))
    return MODELS.get(str(record.options.get("mixer")))


def settings(experiments: Iterable[ResultTable]) -> Iterator[Setting]:
    """All groups of finished cells that differ in LaS's operators alone."""
    for experiment in experiments:
        found: dict[str, Setting] = {}
        for cell in filled(experiment):
            if cell.mean is None or {word for word, _ in cell.marks} & UNFAIR:
                continue
            record = cell.scored[0][0]
            if (model := model_of(record)) is None:
                continue
            options = _without_operators(record.options)
            key = json.dumps([cell.column, options, record.data.get("identity")], sort_keys=True)
            setting = found.setdefault(key, Setting(experiment, cell.column, options))
            setting.cells.setdefault(model, []).append(cell)
        yield from (setting for setting in found.values() if len(setting.cells) > 1)


def _without_operators(options: Mapping[str, Any]) -> dict[str, Any]:
    """A run's options without LaS's own, without how it was computed, without stated defaults."""
    kept = {k: v for k, v in options.items() if k not in MEANS}
    mixer = options.get("mixer_options") or {}
    kept["mixer_options"] = {k: v for k, v in mixer.items() if k not in OPERATORS}
    for name, defaults in STATED.items():
        inner = kept.pop(name, None) or {}
        if left := {k: v for k, v in inner.items() if (k, v) not in defaults.items()}:
            kept[name] = left
    return kept


PHRASES = {
    "ahead": "ahead", "behind": "behind", "level": "not to be told apart",
    "ahead once": "ahead in single runs", "behind once": "behind in single runs",
    "level once": "level in single runs",
}  # fmt: skip


def grouped(differences: Sequence[Difference], most: int = 5) -> str:
    """Who is ahead where: ``ahead on Text (+8.0) and Image (+2.0 points)``.

    Of a verdict at most ``most`` are named, more are counted.
    """
    words = []
    for verdict, phrase in PHRASES.items():
        group = sorted((d for d in differences if d.verdict == verdict), key=lambda d: -d.value)
        if len(group) > most:
            ends = f"{group[-1].amount()} to {group[0].amount()}{group[0].unit}"
            words.append(f"{phrase} in {len(group)} settings ({ends})")
        elif group:
            units = [d.unit if d is group[-1] else "" for d in group]
            named = [f"{d.label} ({d.amount()}{u})" for d, u in zip(group, units, strict=True)]
            words.append(f"{phrase} on {joined(named)}")
    return joined(words, ", ", " and " if len(words) == 2 else ", and ")


def joined(words: Sequence[str], comma: str = ", ", last: str = " and ") -> str:
    """Words as a list in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return last.join([comma.join(words[:-1]), words[-1]] if len(words) > 1 else words)
