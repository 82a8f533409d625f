"""Cells: one run's options each, as plain JSON values; a table is a list of them.

A table's file (JSON or YAML) is a list of cells, or a grid::

    base: {task: listops, epochs: 40}
    grid: {mixer: [las, softmax, s4d], seed: [0, 1, 2], mixer_options.window: [3, 5]}

A dot reaches into a nested option. Options that no cell names keep their defaults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def cell_key(cell: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that depend on the cell's content alone.

    >>> cell_key({"lr": 0.1, "dim": 8}) == cell_key({"dim": 8, "lr": 0.1}) != cell_key({"dim": 8})
    True
    """
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def set_option(cell: Cell, name: str, value: Any) -> None:
    """Set an option in place; a dot reaches into a nested one.

    >>> cell = {"mixer_options": {"bound": 0.001}}
    >>> set_option(cell, "mixer_options.window", 5)
    >>> cell
    {'mixer_options': {'bound': 0.001, 'window': 5}}
    """
    *path, last = name.split(".")
    for part in path:
        inner = cell.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ValueError(f"option {name!r}: {part!r} holds {inner!r}, which has no parts")
        cell = inner
    cell[last] = value


def with_options(base: Mapping[str, Any], options: Mapping[str, Any]) -> Cell:
    """Return a copy of ``base`` with ``options`` (dots allowed) set."""
    cell: Cell = json.loads(json.dumps(base))
    for name, value in options.items():
        set_option(cell, name, value)
    return cell


def grid(base: Mapping[str, Any], choices: Mapping[str, Sequence[Any]]) -> Iterator[Cell]:
    """Yield every combination of ``choices`` on top of ``base``.

    >>> list(grid({"task": "listops"}, {"dim": [8, 16], "seed": [0]}))
    [{'task': 'listops', 'dim': 8, 'seed': 0}, {'task': 'listops', 'dim': 16, 'seed': 0}]
    """
    for values in product(*choices.values()):
        yield with_options(base, dict(zip(choices, values, strict=True)))


def read_table(path: str | Path) -> list[Cell]:
    """Read the cells of a table's file.

    Raises:
        ValueError: it cannot be read, holds no cells, or holds one twice.

    """
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"the table {path} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ValueError(f"{path} is not readable: {error}") from None
    if isinstance(content, dict):
        if unknown := sorted(set(content) - {"base", "grid"}):
            raise ValueError(f"{path}: a grid has the keys base and grid, got {unknown}")
        choices = content.get("grid") or {}
        if bad := [name for name, values in choices.items() if not isinstance(values, list)]:
            raise ValueError(f"{path}: the choices of {bad[0]!r} must be a list")
        cells = list(grid(content.get("base") or {}, choices))
    else:
        cells = content if isinstance(content, list) else []
    if not cells or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError(f"{path} must hold a list of cells, or base and grid")
    seen: dict[str, int] = {}
    for number, cell in enumerate(cells):
        if (key := cell_key(cell)) in seen:
            raise ValueError(f"{path}: cells {seen[key]} and {number} are the same")
        seen[key] = number
    return cells


def _yaml(text: str) -> Any:
    import yaml  # comes with jsonargparse

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
