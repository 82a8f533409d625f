"""Runs chosen, ordered and compared by the columns of their records."""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from longlens.config import did_you_mean
from longlens.runs.record import FIELDS, SPLITS, Record
from longlens.training.options import PLACEMENT, TrainOptions

# Options that say how a run is computed or what else is measured after it, and not what it learns;
# two runs of an experiment that differ in nothing else, mixer and seed aside, may be compared.
MEANS = {"mixer", "seed", "shapes", "compile", "compile_blocks", "graphs", "evaluate_batch",
         "log_every", "buckets", "ablate"}  # fmt: skip
# Defaults inside of an option that some records state and others leave out
STATED = {"augment_options": {"policy": True}}
SHOWN = {"name", "runs", "root", "task", "mixer", "seed", "progress", "resume"}  # anyway, or never


def check_columns(names: Iterable[str], runs: Sequence[Record]) -> None:
    """Raise ValueError for a column that neither records nor options have.

    >>> check_columns(["name", "mixer_options.window", "tset"], [])
    Traceback (most recent call last):
    ValueError: there is no column 'tset'; did you mean 'test'?
    """
    known = {*SPLITS, *FIELDS} | {f.name for kind in (Record, TrainOptions) for f in fields(kind)}
    for name in names:
        if name.partition(".")[0] in known or name in known:
            continue
        if all(run.get(name) is None for run in runs):  # options of earlier versions stay columns
            raise ValueError(f"there is no column {name!r}{did_you_mean(name, known)}")


_COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


def select(runs: Iterable[Record], conditions: Iterable[str]) -> list[Record]:
    """Keep the runs that meet every condition: ``task=listops,image``, ``lr<0.01``, ``seed!=0``.

    >>> runs = [Record(status="finished", name=name, options={"lr": lr})
    ...         for name, lr in (("a", 0.1), ("b", 0.2))]
    >>> [run.name for run in select(runs, ["lr<=0.1"])]
    ['a']
    """
    kept = everything = list(runs)
    for condition in conditions:
        match = re.fullmatch(r"([\w./]+)(<=|>=|!=|<|>|=)(.*)", condition)
        if not match:
            raise ValueError(f"a condition is name=value, name<value …, got {condition!r}")
        name, sign, text = match.groups()
        check_columns([name], everything)
        kept = [run for run in kept if _holds(run.get(name), sign, text)]
    return kept


def _holds(value: Any, sign: str, text: str) -> bool:
    words = text.split(",")
    if sign == "=":
        return any(_same(value, word) for word in words)
    if sign == "!=":
        return not any(_same(value, word) for word in words)
    try:
        return bool(_COMPARISONS[sign](float(value), float(text)))
    except (TypeError, ValueError):
        return False


def _same(value: Any, word: str) -> bool:
    if isinstance(value, bool) or value is None:
        return str(value).lower() == word.lower()
    if isinstance(value, int | float):
        try:
            return float(word) == value
        except ValueError:
            return False
    return str(value) == word


def sort(runs: Sequence[Record], by: str, down: bool = False) -> list[Record]:
    """Order runs by a column, ``down`` from high to low; runs without it come last."""
    there = [run for run in runs if run.get(by) is not None]
    rest = [run for run in runs if run.get(by) is None]
    numbers = all(isinstance(run.get(by), int | float) for run in there)
    there.sort(key=lambda run: run.get(by) if numbers else str(run.get(by)), reverse=down)
    return there + rest


def differing_options(runs: Sequence[Record], besides: Container[str] = SHOWN) -> list[str]:
    """Names of the options, besides some, in which ``runs`` differ, nested ones with a dot.

    An option that a record does not know had its default.
    """
    defaults = dict(_flatten(TrainOptions().to_json() | STATED))
    flat = [defaults | dict(_flatten(run.options)) for run in runs]
    names = sorted({name for options in flat for name in options})
    return [
        name
        for name in names
        if name not in besides and any(one.get(name) != flat[0].get(name) for one in flat)
    ]


def mixed_options(seeds: Sequence[Record]) -> list[str]:
    """The options in which runs differ that should differ in their seeds alone.

    >>> runs = [Record(status="finished", options={"seed": seed, "steps": steps, "clip": 1.0})
    ...         for seed, steps in ((0, 100), (1, 200))]
    >>> mixed_options(runs)
    ['steps']
    """
    return differing_options(seeds, (MEANS | PLACEMENT) - {"mixer"})


def _flatten(options: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield before + name, value
