"""How docstrings become Markdown for the reference: examples as code, no roles of Sphinx."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):(?=`)")


def as_markdown(text: str) -> str:
    """Fence each run of lines that begins with a prompt, up to the next empty line."""
    lines: list[str] = []
    indent: str | None = None  # of the example that is open
    for line in ROLE.sub("", text).splitlines():
        stripped = line.lstrip()
        if indent is None and stripped.startswith(">>>"):
            indent = line[: len(line) - len(stripped)]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not stripped:
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    if indent is not None:
        lines.append(f"{indent}```")
    return "\n".join(lines)


class Docstrings(Extension):
    """Applies `as_markdown` to every docstring that griffe reads."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
