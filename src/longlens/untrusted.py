"""What comes from outside and may be anything: JSON, names of folders, text for a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

_LONGEST_NAME = 200  # bytes: file systems allow 255, and endings such as ".old-1" are added


def parse_json(content: bytes | str) -> Any:
    """Read JSON as its standard defines it, which is stricter than Python's reader.

    A key that occurs twice, NaN, an infinity (also as ``1e999``), an integer beyond 64 bits and
    text that is no UTF-8 are refused: each of them would be changed or dropped somewhere.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' occurs twice
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_number,
            parse_float=_number,
            parse_int=_integer,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice"
        )
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"an integer of {len(text)} digits has more than 64 bits")
    return int(text)


def check_shape(value: Any, shape: Any, where: str = "it") -> None:
    """Raise ValueError unless a JSON value has a shape.

    Args:
        value: what was read.
        shape: a type; None; a tuple of shapes, one of which must fit; a list of one shape, for
            lists of any length; a mapping from keys to shapes. A key that ends in "?" may be
            missing or null, "*" stands for every key, and keys that are not named may hold
            anything. True and false are no numbers.
        where: what the value is called in the message.

    >>> check_shape({"step": 1, "loss": "x"}, {"step": int, "loss?": float})
    Traceback (most recent call last):
    ValueError: loss is 'x'
    """
    if isinstance(shape, tuple):
        fits = any(_has_shape(value, one) for one in shape)
    elif isinstance(shape, list):
        fits = isinstance(value, list)
        if fits:
            for number, entry in enumerate(value):
                check_shape(entry, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict):
        fits = isinstance(value, dict)
        if fits:
            _check_keys(value, shape, "" if where == "it" else f"{where}.")
    elif shape is None:
        fits = value is None
    else:
        fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    if not fits:
        raise ValueError(f"{where} is {value!r:.60}")


def shape_of(kind: Any) -> Any:
    """The shape, for :func:`check_shape`, of JSON that is to become a value of a type.

    A dataclass's fields with a default and all keys of a TypedDict may be missing or null.

    >>> shape_of(dict[str, list[float | None]])
    {'*': [(<class 'int'>, <class 'float'>, None)]}
    """
    origin, inner = get_origin(kind), [shape_of(part) for part in get_args(kind)]
    if origin in (Union, UnionType):
        return tuple(one for part in inner for one in (part if type(part) is tuple else [part]))
    if origin in (dict, Mapping):
        return {} if get_args(kind)[1] is Any else {"*": inner[1]}
    if origin in (list, tuple):
        return [inner[0]]
    if is_dataclass(kind):
        needed = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
    elif is_typeddict(kind):
        needed = set()
    else:
        return {float: (int, float), Any: object, type(None): None}.get(kind, kind)
    hints = get_type_hints(kind).items()
    return {name if name in needed else f"{name}?": shape_of(hint) for name, hint in hints}


def _has_shape(value: Any, shape: Any) -> bool:
    try:
        check_shape(value, shape)
    except ValueError:
        return False
    return True


def _check_keys(value: dict[str, Any], shape: dict[str, Any], before: str) -> None:
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if key == "*":
            for own, entry in value.items():
                check_shape(entry, inner, f"{before}{own}")
        elif name in value and not (key.endswith("?") and value[name] is None):
            check_shape(value[name], inner, f"{before}{name}")
        elif not key.endswith("?"):
            raise ValueError(f"{before}{name} is missing")


def check_folder_name(name: str, what: str) -> str:
    """Return ``name`` if a folder of that name lies inside the folder where it is made.

    >>> check_folder_name("../a", "name")
    Traceback (most recent call last):
    ValueError: name must be a folder's name without slashes and control characters, got '../a'
    """
    inside = name not in ("", ".", "..") and not set(name) & set("/\\") and name.isprintable()
    if not inside or len(name.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"{what} must be a folder's name without slashes and control characters, got "
            f"{name[:_LONGEST_NAME]!r}"
        )
    return name


_HARMFUL = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
} | {
    # marks that reorder a line, and further ends of lines
    code: f"\\u{code:04x}"
    for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


def printable(text: str) -> str:
    r"""Spell out what a terminal would obey instead of show: escape sequences, bells, lone \r.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8").translate(_HARMFUL)


def one_line(message: object) -> str:
    r"""A message for a terminal as one line.

    >>> one_line(ValueError("first\n  second"))
    'first second'
    """
    return printable(" ".join(str(message).split()))
