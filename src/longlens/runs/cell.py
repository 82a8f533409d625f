"""Cells: one run's options each, as plain JSON values; a table is a list of them.

A table's file (JSON or YAML) is a list of cells, or a grid::

    base: {task: listops, epochs: 40}
    grid: {mixer: [las, softmax, s4d], seed: [0, 1, 2], lr: [0.001, 0.002]}

A dot reaches into a nested option. Options that no cell names keep their defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from longlens.files import sha256_of
from longlens.untrusted import parse_json

Cell = dict[str, Any]
MOST_CELLS = 100_000
MOST_VALUES = 1_000_000  # in a table
PYTHON_WORDS = {"True": True, "False": False, "None": None}


def cell_key(cell: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that depend on the cell's content alone.

    >>> cell_key({"lr": 0.1, "dim": 8}) == cell_key({"dim": 8, "lr": 0.1}) != cell_key({"dim": 8})
    True
    """
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return sha256_of(text)[:12]


def plain_value(word: str) -> Any:
    """A word of a command line as JSON where it is some, else as it stands.

    ``True``, ``False`` and ``None`` are read as Python writes them, too: as text they would all
    count as true.

    >>> [plain_value(word) for word in ("1e-3", "false", "False", "None", "none", "[3, 5]")]
    [0.001, False, False, None, 'none', [3, 5]]
    """
    if word in PYTHON_WORDS:
        return PYTHON_WORDS[word]
    try:
        return json.loads(word)
    except ValueError:
        return word


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


def read_cells(path: str | Path) -> list[Cell]:
    """Read the cells of a table's file.

    Raises:
        ValueError: it cannot be read, holds no cells, or holds one twice.
    """
    path = Path(path)
    content = read_values(path)
    if content and isinstance(content, dict):
        cells = _read_grid(path, content)
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


def read_values(path: Path) -> Any:
    """Read a JSON or YAML file of options; raise ValueError where it holds anything else."""
    try:
        raw = path.read_bytes()
        content = parse_json(raw) if path.suffix == ".json" else _yaml(raw)
        check_values(content)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not readable: {error}") from None
    return content


def _read_grid(path: Path, content: dict[str, Any]) -> list[Cell]:
    if unknown := sorted(set(content) - {"base", "grid"}):
        raise ValueError(f"{path}: a grid has the keys base and grid, got {unknown}")
    base, choices = content.get("base") or {}, content.get("grid") or {}
    for name, part in (("base", base), ("grid", choices)):
        if not isinstance(part, dict):
            raise ValueError(f"{path}: {name} must hold options by their names, got {part!r}")
    if bad := [name for name, values in choices.items() if not isinstance(values, list)]:
        raise ValueError(f"{path}: the choices of {bad[0]!r} must be a list")
    count = math.prod(len(values) for values in choices.values())
    if count > MOST_CELLS:
        raise ValueError(f"{path}: the grid has {count:,} cells, more than {MOST_CELLS:,}")
    try:
        return list(grid(base, choices))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_values(content: Any) -> None:
    """Refuse what JSON, in which options are kept, does not have: dates, NaN, numbers as keys.

    >>> check_values([{"lr": 0.1, 3: "x"}])
    Traceback (most recent call last):
    ValueError: a key must be text, got 3; put it in quotes
    """
    waiting, seen = [content], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > MOST_VALUES:  # a few lines of YAML can refer to each other that often
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        if isinstance(value, dict):
            if bad := [key for key in value if not isinstance(key, str)]:
                raise ValueError(f"a key must be text, got {bad[0]!r}; put it in quotes")
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is no number that an option can have")
        elif value is not None and not isinstance(value, str | int | float):
            kind = type(value).__name__
            raise ValueError(f"a value must be text or a number, got the {kind} {value}; quote it")


def _yaml(raw: bytes) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML in which no key occurs twice."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
            line = node.start_mark.line + 1
            raise ValueError(f"the key {twice[0]!r} occurs twice in what begins in line {line}")
        values: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return values

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        return yaml.load(raw, Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # PyYAML's own, and whatever its constructors raise for odd tags
        raise ValueError(str(error)) from None
