"""The words of a command: KEY=VALUE, and a command as a result keeps it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

# Where files lie says nothing about a result; each takes a value but the flags.
PLACES = ("--runs", "--root", "--output", "--plot")
FLAGS = ("--quiet",)


def key_values(words: Iterable[str], option: str) -> dict[str, Any]:
    """Read the KEY=VALUE words of an option; a value is JSON, else text.

    >>> key_values(["lr=1e-3", "mixer_options.window=5", "inner=listops"], "--set")
    {'lr': 0.001, 'mixer_options.window': 5, 'inner': 'listops'}
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ValueError(f"{option} takes KEY=VALUE, got {word!r}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def command_line(command: str, words: Sequence[str]) -> str:
    """The command as somebody else would give it, without the places of files on this machine.

    >>> command_line("audit", ["listops", "--runs", "/tmp/runs", "--quiet", "--set", "dim=64"])
    'longlens audit listops --set dim=64'
    """
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word in FLAGS:
            skip = False
        elif word in PLACES:
            skip = True
        elif word.partition("=")[0] not in PLACES:
            kept.append(shlex.quote(word))
    return " ".join(["longlens", command, *kept])
