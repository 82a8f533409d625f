"""The words of a command, as a result keeps them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# Where files lie says nothing about a result; each takes a value but the flags.
PLACES = ("--runs", "--root", "--output", "--plot")
FLAGS = ("--quiet",)


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
