"""``longlens layers``: the zoo as a table, measured from the built layers where it can be."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from typing import Any

from longlens.cli.parser import Parser
from longlens.models.aspects import ASPECTS, Description
from longlens.tables import Table

COLUMNS = {
    "key": "key",
    "cost": "cost",
    "direction": "direction",
    "steps": "step",
    "parameters": "parameters",
    **ASPECTS,
    "paper": "paper",
}

LEGEND = """\
decay: near positions count more than far ones in a fresh layer (measured)
R: regularised · U.I: special initialisation · S: stable for any parameters
G: gating · C: complex numbers (measured) · N: normalisation of its own
non-rec: no recurrence over the sequence (measured)
step: can run one position at a time"""


def parser() -> Parser:
    """The command line of ``longlens layers``."""
    p = Parser(
        "layers",
        "Every mixer of the zoo: cost, direction, parameters, and the design aspects of the LaS "
        "paper's Table 10, measured from the built layer where that is possible.",
        "example: longlens layers s4 las mega --format markdown",
    )
    p.add_argument("keys", nargs="*", metavar="KEY", help="mixers to show (default: all)")
    p.add_argument(
        "--dim", type=int, default=256, help="width to count parameters at (default: 256)"
    )
    p.add_argument("--format", choices=("text", "markdown"), default="text", help="default: text")
    p.add_json()
    p.add_argument("--options", action="store_true", help="print the options of each mixer instead")
    return p


def cells(row: Description) -> list[str]:
    """One row as text: yes and no as ``y`` and ``·``."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "y" if value else "·"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return [text(getattr(row, name)) for name in COLUMNS]


def fitted(table: Table, width: int) -> str:
    """Aligned text; where it does not fit into ``width``, closer and without papers."""
    text = table.text()
    if max(map(len, text.splitlines())) <= width:
        return text
    narrow = Table(table.head[:-1], [row[:-1] for row in table.rows])
    note = "papers: in a wider terminal, in a pipe, or with --format markdown"
    return f"{narrow.text(' ')}\n\n{note}"


def show_options(keys: Sequence[str], as_json: bool) -> None:
    """Print every option with its default."""
    from longlens.layers import options_of

    if as_json:
        print(json.dumps({key: options_of(key) for key in keys}, indent=1, default=str))
        return
    for key in keys:
        print(key)
        for name, default in options_of(key).items():
            print(f"    {name} = {default!r}")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    args = parser().parse_args(argv)
    from longlens.layers import MIXERS
    from longlens.layers.registry import unknown

    keys = args.keys or list(MIXERS)
    for key in keys:
        if key not in MIXERS:
            raise unknown("mixer", key, MIXERS)
    if args.options:
        show_options(keys, args.json)
        return 0
    from longlens.models.aspects import describe

    if args.json:
        print(json.dumps([dataclasses.asdict(describe(key, args.dim)) for key in keys], indent=1))
        return 0
    table = Table(list(COLUMNS.values()), [cells(describe(key, args.dim)) for key in keys])
    if args.format == "markdown":
        print(table.markdown())
    else:
        width = shutil.get_terminal_size((10_000, 0)).columns  # a pipe takes lines of any width
        print(f"{fitted(table, width)}\n\n{LEGEND}")
    return 0
