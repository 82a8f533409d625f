"""Records of runs, found in folders and read into rows."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longlens.training.options import TrainOptions
from longlens.training.records import RECORD, read_curves, read_record

# Short names for places in a record; every option and every top-level key is a name as well.
FIELDS = {
    "tokens/s": ("speed", "tokens_per_second"),
    "flop/s": ("speed", "flops_per_second"),
    "peak": ("speed", "share_of_peak"),
    "seconds": ("speed", "seconds"),
    "memory": ("peak_memory_mib",),
    "commit": ("provenance", "commit"),
    "torch": ("provenance", "torch"),
    "data": ("data", "identity"),
    "stands_in_for": ("data", "stands_in_for"),
}
SPLITS = ("validation", "test")
DAMAGED = "damaged"  # the status of a run whose record cannot be read


@dataclass(frozen=True)
class Run:
    """One record; ``values`` is the content of its ``record.json``."""

    folder: Path
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name (a stage before it, as ``NAME/pretrain``)."""
        stage = self.folder.name == "pretrain"
        return f"{self.folder.parent.name}/pretrain" if stage else self.folder.name

    @cached_property
    def curves(self) -> list[dict[str, Any]]:
        """The lines of the run's curves; none where they are damaged, see ``problem``."""
        return self._curves[0]

    @property
    def problem(self) -> str | None:
        """What is damaged: the record, so that nothing is known of the run, or its curves."""
        damaged = self.values.get("status") == DAMAGED
        return str(self.values.get("error")) if damaged else self._curves[1]

    @cached_property
    def _curves(self) -> tuple[list[dict[str, Any]], str | None]:
        try:
            return list(read_curves(self.folder)), None
        except (ValueError, OSError) as error:
            return [], str(error)

    @property
    def metric(self) -> str:
        """The name of the metric that runs of this task are judged by."""
        return str((self.values.get("metric") or {}).get("name") or "loss")

    def get(self, name: str) -> Any:
        """Return a column's value, None where the record has none.

        ``validation`` and ``test`` are the metric there, ``test.loss`` another one; further names
        are those of ``FIELDS``, of the record and of the options; a dot reaches into a nested one.
        """
        if name == "name":
            return self.name
        split, _, which = name.partition(".")
        if split in SPLITS:
            return _inside(self.values, ("metrics", split, *(which or self.metric).split(".")))
        if name in FIELDS:
            return _inside(self.values, FIELDS[name])
        path = tuple(name.split("."))
        found = _inside(self.values, path)
        return found if found is not None else _inside(self.values, ("options", *path))


def _inside(values: Any, path: Sequence[str]) -> Any:
    for part in path:
        if not isinstance(values, dict):
            return None
        values = values.get(part)
    return values


def find_runs(root: str | Path, everything: bool = False) -> list[Run]:
    """Read all records under ``root``, ordered by name.

    A record that cannot be read is listed with the status ``damaged``. Runs that were set aside
    (``NAME.old-1``) are left out unless ``everything``.

    Raises:
        ValueError: there is no such folder.

    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is no folder of runs")
    runs = []
    for folder in sorted(path.parent for path in root.rglob(RECORD)):
        inner = folder.relative_to(root).parts
        if any(".old-" in part for part in inner) and not everything:
            continue
        try:
            values = read_record(folder)
        except ValueError as error:
            values = {"status": DAMAGED, "error": str(error)}
        runs.append(Run(folder, values))
    return runs


def read_run(folder: str | Path) -> Run:
    """Read one run."""
    return Run(Path(folder), read_record(folder))


_COMPARISONS = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "=": operator.eq,
}  # fmt: skip


def select(runs: Iterable[Run], conditions: Iterable[str]) -> list[Run]:
    """Keep the runs that meet every condition: ``task=listops,image``, ``lr<0.01``, ``seed!=0``.

    >>> runs = [Run(Path(name), {"options": {"lr": lr}}) for name, lr in (("a", 0.1), ("b", 0.2))]
    >>> [run.name for run in select(runs, ["lr<=0.1"])]
    ['a']
    """
    kept = list(runs)
    for condition in conditions:
        match = re.fullmatch(r"([\w./]+)(<=|>=|!=|<|>|=)(.*)", condition)
        if not match:
            raise ValueError(f"a condition is name=value, name<value …, got {condition!r}")
        name, sign, text = match.groups()
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


def sort(runs: Sequence[Run], by: str, down: bool = False) -> list[Run]:
    """Order runs by a column, ``down`` from high to low; runs without it come last."""
    there = [run for run in runs if run.get(by) is not None]
    rest = [run for run in runs if run.get(by) is None]
    numbers = all(isinstance(run.get(by), int | float) for run in there)
    there.sort(key=lambda run: run.get(by) if numbers else str(run.get(by)), reverse=down)
    return there + rest


def differing_options(runs: Sequence[Run]) -> list[str]:
    """Names of the options in which ``runs`` differ, nested ones with a dot.

    An option that a record does not know had its default.
    """
    defaults = dict(_flatten(TrainOptions().to_json()))
    flat = [defaults | dict(_flatten(run.values.get("options") or {})) for run in runs]
    names = sorted({name for options in flat for name in options})
    shown = {"name", "runs", "root", "task", "mixer", "seed", "progress", "resume"}
    return [
        name
        for name in names
        if name not in shown and len({repr(options.get(name)) for options in flat}) > 1
    ]


def _flatten(options: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield before + name, value
