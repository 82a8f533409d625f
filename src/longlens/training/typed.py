"""Values of options from files and programs: of the right type, or an error that names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_origin

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
         NoneType: "null", Mapping: "a mapping"}  # fmt: skip


def typed(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as an option of type ``hint`` has it.

    Whole numbers become floats where a float is wanted, and so does text that reads as one: YAML
    takes ``1e-3`` for text.

    >>> typed("lr", "1e-3", float), typed("steps", None, int | None), typed("epochs", 2, float)
    (0.001, None, 2.0)
    >>> typed("dim", "wide", int)
    Traceback (most recent call last):
    ValueError: dim must be a whole number, got 'wide'
    """
    allowed = {get_origin(kind) or kind for kind in get_args(hint) or (hint,)}
    if get_origin(hint) is Mapping:
        allowed = {Mapping}
    if type(value) in allowed or (Mapping in allowed and isinstance(value, Mapping)):
        return value
    if isinstance(value, int | str) and not isinstance(value, bool):
        for kind in (int, float):
            if kind in allowed and (isinstance(value, str) or kind is float):
                try:
                    return kind(value)
                except (ValueError, OverflowError):
                    continue
    wanted = " or ".join(word for kind, word in WORDS.items() if kind in allowed)
    raise ValueError(f"{name} must be {wanted}, got {value!r}")
