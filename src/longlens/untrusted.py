"""What comes from outside and may be anything: JSON, names of folders, text for a terminal."""

from __future__ import annotations

import json
import math
from typing import Any

_LONGEST_NAME = 200  # bytes: file systems allow 255, and endings such as ".old-1" are added


def parse_json(content: bytes | str) -> Any:
    """Read JSON as its standard defines it, which is stricter than Python's reader.

    A key that occurs twice, NaN, an infinity (also as ``1e999``) and text that is no UTF-8 are
    refused: each of them would be changed or dropped silently.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' occurs twice
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_number, parse_float=_number
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
