"""The grammar that all commands share: options and their help, KEY=VALUE, and near matches.

``--set KEY=VALUE`` is an option of a model, a mixer or a task, ``-o`` the output file, ``--json``
for scripts; dashes and underscores are the same.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from longlens.config import SYNONYMS, did_you_mean
from longlens.runs.cell import plain_value

# Where files lie says nothing about a result; each takes a value but the flags.
PLACES = ("--runs", "--root", "--output", "-o", "--plot")
FLAGS = ("--quiet",)
KINDS = {int: "N", float: "X", Path: "FILE", str: "NAME"}  # what help calls a value


class UsageError(ValueError):
    """The words of a command are wrong."""


class Parser(argparse.ArgumentParser):
    """A command's options; what is wrong is one line, with the near match.

    Args:
        command: its name.
        about: what it does.
        epilog: examples.
        settable: names that ``--set`` takes, for whoever writes them as options of their own.

    >>> Parser("runs", "", settable=["dim"]).parse_args(["--dim", "8"])
    Traceback (most recent call last):
    longlens.cli.parser.UsageError: there is no option --dim; give --set dim=VALUE
    """

    def __init__(
        self, command: str, about: str, epilog: str = "", settable: Container[str] = ()
    ) -> None:
        super().__init__(
            prog=f"longlens {command}", description=textwrap.fill(about, 100), epilog=epilog,
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.settable = settable

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read words; raise UsageError where one is not known."""
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest))
        return given

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read the words that are known; the others are returned as well."""
        known = {name.replace("-", "_"): name for name in self._option_string_actions}
        words = []
        for word in args:
            name, equals, value = word.partition("=")
            same = known.get(name.replace("-", "_"), name) if name.startswith("--") else name
            words.append(same + equals + value)
        return super().parse_known_args(words, namespace)

    def format_help(self) -> str:
        """The text of ``--help``; what is explained below is not listed before."""
        given = [a for a in self._actions if not a.option_strings]
        words = [f"[{a.metavar or a.dest}]" if a.nargs in ("?", "*") else a.metavar or a.dest
                 for a in given]  # fmt: skip
        self.usage = " ".join([self.prog, *map(str, words), "[options]"])
        return super().format_help()

    def error(self, message: str) -> Any:
        """Raise what is wrong, without the usage: it may be longer than a screen."""
        raise UsageError(message)

    def _unknown(self, rest: Sequence[str]) -> str:
        name = next((word for word in rest if word.startswith("--")), rest[0]).partition("=")[0]
        if not name.startswith("-"):
            example = "--task" if "--task" in self._option_string_actions else "--name"
            return f"{name!r} is one word too many; options are given as {example} {name}"
        key = name.strip("-").replace("-", "_")
        if f"--{SYNONYMS.get(key)}" in self._option_string_actions:
            return f"there is no option {name}; did you mean --{SYNONYMS[key]}?"
        for meant in (key, SYNONYMS.get(key, "")):
            if meant.partition(".")[0] in self.settable:
                return f"there is no option {name}; give --set {meant}=VALUE"
        return f"there is no option {name}{did_you_mean(name, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            name = action.option_strings[-1] if action.option_strings else action.dest
            self.error(f"{name} must be one of {', '.join(allowed)}, got {value!r}"
                       f"{did_you_mean(str(value), allowed)}")  # fmt: skip

    # ------------------------------------------------------------------ words of many commands

    def add_set(self, what: str) -> None:
        """``--set KEY=VALUE``, may be given again."""
        self.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                          help=f"{what}; may be given again")  # fmt: skip

    def add_output(self, what: str, *endings: str, **more: Any) -> None:
        """``-o FILE``, which ends in one of ``endings``, if there are some."""
        kind = ending_in(*endings) if endings else Path
        self.add_argument("-o", "--output", type=kind, metavar="FILE", help=what, **more)

    def add_json(self) -> None:
        """``--json``."""
        self.add_argument("--json", action="store_true", help="print JSON, for scripts")


# ---------------------------------------------------------------------- values


def read_value(text: str, hint: Any = Any) -> Any:
    """A value from a command line: JSON or text, whichever a type wants.

    >>> read_value("5"), read_value("5", str), read_value("auto", int | str), read_value("1e-3")
    (5, '5', 'auto', 0.001)
    """
    allowed = get_args(hint) or (hint,)
    if Path in allowed and str not in allowed:
        return Path(text)
    if (str in allowed and int not in allowed) or get_origin(hint) is Literal:
        return None if text == "null" and NoneType in allowed else text
    return plain_value(text)


def key_values(words: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Read the KEY=VALUE words of an option; a value is JSON, else text.

    >>> key_values(["lr=1e-3", "mixer_options.window=5", "inner=listops"])
    {'lr': 0.001, 'mixer_options.window': 5, 'inner': 'listops'}
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} takes KEY=VALUE, got {word!r}")
        values[name] = read_value(text)
    return values


def ending_in(*endings: str) -> Callable[[str], Path]:
    """A reader of names of files that end in one of these; a device or a pipe has no ending.

    >>> ending_in(".json", ".csv")("a.csv").name
    'a.csv'
    """

    def read(text: str) -> Path:
        path = Path(text)
        if path.suffix and path.suffix not in endings:
            raise argparse.ArgumentTypeError(f"must end in {' or '.join(endings)}, got {text!r}")
        return path

    return read


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them.

    >>> numbers("64,128", "context")
    (64, 128)
    """
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise UsageError(f"{name} must be whole numbers, as in 64,128; got {text!r}")
    return tuple(int(word) for word in words)


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


# ---------------------------------------------------------------------- options of dataclasses


def explained(source: Any) -> dict[str, str]:
    """What each field of a dataclass, or argument of a function, is, by name.

    It stands in a string below the field, or under "Args:"; inherited ones are included.

    >>> from longlens.config import ModelOptions
    >>> explained(ModelOptions)["depth"], explained(numbers)
    ('Number of blocks.', {})
    """
    docs: dict[str, str] = {}
    for part in reversed(source.__mro__) if isinstance(source, type) else [source]:
        args = inspect.getdoc(part) if part is not object else None
        _, _, listed = (args or "").partition("Args:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", listed, re.MULTILINE):
            docs[name] = " ".join(text.split())
        if is_dataclass(part):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
            for field, below in pairwise(getattr(body, "body", [])):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    assert isinstance(below.value, ast.Constant)
                    docs[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return docs


def defaults_of(source: Any) -> dict[str, Any]:
    """The fields of a dataclass or arguments of a function with their defaults."""
    if isinstance(source, type):
        return {f.name: {} if f.default is MISSING else f.default for f in fields(source)}
    return {name: p.default for name, p in inspect.signature(source).parameters.items()}


def add_options(
    group: Any,
    source: Any,
    names: Iterable[str],
    choices: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add options for fields or arguments of ``source``; what is not given is left out.

    Args:
        group: a parser, or a group of one.
        source: a dataclass or a function.
        names: of the fields.
        choices: of those that have a few.
    """
    docs, hints, defaults = explained(source), get_type_hints(source), defaults_of(source)
    for name in names:
        hint, default = hints[name], defaults[name]
        allowed = get_args(hint) or (hint,)
        literal = next(
            (get_args(one) for one in (hint, *allowed) if get_origin(one) is Literal), ()
        )
        few = (choices or {}).get(name) or literal
        shown = "" if default in (None, inspect.Parameter.empty) else f" (default: {default})"
        kind = next((word for one, word in KINDS.items() if one in allowed), "VALUE")
        more: dict[str, Any] = {"metavar": "|".join(few) or kind, "choices": few or None}
        if bool in allowed:
            more = {"nargs": "?", "const": True, "metavar": "true|false"}
        flags = ["-o"] if name == "output" else []
        group.add_argument(
            *flags, f"--{name}", type=partial(read_value, hint=hint), default=argparse.SUPPRESS,
            help=docs.get(name, "").replace("%", "%%") + shown, **more,
        )  # fmt: skip
