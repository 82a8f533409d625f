"""What records say about other decays and other smoothers than those of LaS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from longlens.charts import dot_chart
from longlens.report.cells import TableCell, table
from longlens.report.compare import T95, Difference, grouped, joined
from longlens.report.las_findings import Answer
from longlens.report.layout import Figure, full_width
from longlens.report.results import Results
from longlens.runs.results import ResultTable

NEITHER = ("no decay", "no smoother")
LAS = ("LaS", "average")


class Effect(NamedTuple):
    """What a decay or a smoother adds in a column: a difference for every partner that it has."""

    name: str
    points: Sequence[float]

    @property
    def margin(self) -> float | None:
        """Half the 95 % interval of the mean over partners; None of a single one."""
        n = len(self.points)
        if n < 2:
            return None
        return T95[min(n - 1, len(T95)) - 1] * stdev(self.points) / math.sqrt(n)

    def text(self) -> str:
        """The mean, its interval and the number of pairs."""
        shown = f"{mean(self.points):+.1f}".replace("-", "−")
        spread = "" if self.margin is None else f" ± {self.margin:.1f}"
        return f"{self.name} {shown}{spread} ({len(self.points)})"


def other_decays(results: Results) -> Answer | None:
    """ALiBi in the place of LaS; the best decay and smoother, and what each adds to none."""
    named = {e.name: e for e in results.experiments}
    answers = [_in_its_place(named["table2"])] if "table2" in named else []
    answers += [_with_smoothers(named["decays"])] if "decays" in named else []
    there = [answer for answer in answers if answer is not None]
    if not there:
        return None
    first, *more = there  # the page's first screen has room for one
    return Answer(
        first.short,
        [*first.sentences, *(s for answer in more for s in (answer.short, *answer.sentences))],
        [figure for answer in there for figure in answer.figures],
        {at: title for answer in there for at, title in answer.evidence.items()},
    )


def _in_its_place(found: ResultTable) -> Answer | None:
    """ALiBi against LaS where all else is as the paper has it."""
    cells = table(found)
    pairs = [
        Difference(column, cells["ALiBi"][column], cells["LaS"][column])
        for column in found.columns
        if {"ALiBi", "LaS"} <= cells.keys()
        and all(cells[row][column].is_of_one_model for row in ("ALiBi", "LaS"))
    ]
    if not pairs:
        return None
    said = [
        f"{d.label}, at the paper's settings: ALiBi {d.ours.text()}, LaS {d.theirs.text()}, a "
        f"difference of {d.amount()}{d.unit} ({d.evidence()})."
        for d in pairs
    ]
    short = f"In the place of LaS, at the paper's settings, ALiBi is {grouped(pairs)}."
    return Answer(short, said, (), {f"t-{found.name}": found.title})


def _with_smoothers(found: ResultTable) -> Answer | None:
    """The best decay and smoother beside LaS and neither, and what each adds to none."""
    cells = table(found)
    short, said, figures = [], [], []
    for column in found.columns:
        here = {row: cells[row][column] for row in cells if cells[row][column].is_of_one_model}
        effects = {kind: _effects(here, n, by=n) for n, kind in enumerate(("decay", "smoother"))}
        if not all(effects.values()):
            continue
        short.append(f"{column}: {_best(here)}.")
        said += [
            f"{column}, points that a {kind} adds to none, mean and 95 % interval over partners "
            f"(their number): {', '.join(e.text() for e in each)}."
            for kind, each in effects.items()
        ]
        said.append(
            f"{column}, points that smoothers add beside each decay, mean and 95 % interval (their "
            f"number): {', '.join(e.text() for e in _effects(here, 1, by=0))}."
        )
        figures.append(_figure(column, here))
    if not short:
        return None
    return Answer(" ".join(short), said, figures, {f"t-{found.name}": found.title})


def _figure(column: str, here: Mapping[str, TableCell]) -> Figure:
    """Accuracies, a row for each decay, a mark for each smoother beside it."""
    shown: dict[str, dict[str, float]] = {}
    for row, cell in here.items():
        decay, smoother = row.split(", ")
        shown.setdefault(decay, {})[smoother] = cell.mean or 0.0
    return full_width(
        lambda width: dot_chart(
            f"{column}: each decay, with each smoother", shown, "test accuracy (%)", log=False,
            digits=1, width=width,
        )
    )  # fmt: skip


def _best(here: Mapping[str, TableCell]) -> str:
    """The row with most, beside LaS and beside neither decay nor smoother, where they were run."""
    best = max(here, key=lambda row: here[row].mean or 0.0)
    others = {"LaS": ", ".join(LAS), "neither": ", ".join(NEITHER)}
    parts = [f"{best} {here[best].mean:.1f} %"] + [
        f"{name} {here[row].mean:.1f} %" for name, row in others.items() if row in here
    ]
    seeds = {len(cell.values) for cell in here.values()}
    return joined(parts) + (" (one seed each)" if seeds == {1} else "")


def _effects(here: Mapping[str, TableCell], place: int, by: int) -> list[Effect]:
    """What decays (place 0) or smoothers (1) add to none, by the name at place ``by`` of a row.

    Rows are named after a decay and a smoother.
    """
    points: dict[str, list[float]] = {}
    for row, cell in here.items():
        names = row.split(", ")
        base = here.get(", ".join([*names[:place], NEITHER[place], *names[place + 1 :]]))
        if base is not None and base is not cell and cell.mean is not None:
            points.setdefault(names[by], []).append(cell.mean - (base.mean or 0.0))
    return [Effect(name, each) for name, each in points.items()]
