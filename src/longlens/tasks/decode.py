"""Examples for human eyes: ListOps as an indented tree, bytes as text, pixels as a picture."""

from __future__ import annotations

import numpy as np

from longlens.tasks import listops
from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.spec import Spec

_SHADES = np.array(list(" .:-=+*#%@"))


def _reduce(operator: int, arguments: list[int]) -> int:
    ordered = sorted(arguments)
    middle = ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]
    return (ordered[0], ordered[-1], middle // 2, sum(ordered) % 10)[operator]


def listops_value(tokens: Array) -> tuple[int, list[str]]:
    """Evaluate a ListOps sequence with a stack; return its value and the tree, a line a node.

    Independent of the generator, which evaluates whole levels of many trees at once.

    >>> listops_value(np.array([12, 3, 11, 5, 8, 15, 15]))
    (4, ['MAX = 4', '  2', '  MIN = 4', '    4', '    7'])
    """
    lines: list[str] = []
    stack: list[tuple[int, int, list[int]]] = []  # operator, its line, values so far
    for token in tokens.tolist():
        indent = "  " * len(stack)
        if listops.DIGIT <= token < listops.OPERATOR:
            value = token - listops.DIGIT
            lines.append(f"{indent}{value}")
        elif listops.OPERATOR <= token < listops.CLOSE:
            stack.append((token - listops.OPERATOR, len(lines), []))
            lines.append(f"{indent}{listops.OPERATORS[token - listops.OPERATOR]}")
            continue
        elif token == listops.CLOSE and stack and stack[-1][2]:
            operator, line, values = stack.pop()
            value = _reduce(operator, values)
            lines[line] += f" = {value}"
        else:
            raise DataError("not a well-formed ListOps sequence")
        if not stack:
            return value, lines
        stack[-1][2].append(value)
    raise DataError("a ListOps sequence ends before its last bracket")


def picture_text(pixels: Array, shape: tuple[int, int], width: int = 64) -> str:
    """Draw gray pixels in characters, two rows to a line, at most ``width`` columns."""
    picture = pixels.reshape(shape)
    factor = max(1, -(-shape[1] // width))
    rows, columns = shape[0] // (2 * factor), shape[1] // factor
    cut = picture[: rows * 2 * factor, : columns * factor]
    coarse = cut.reshape(rows, 2 * factor, columns, factor).max(axis=(1, 3))
    shades = _SHADES[coarse.astype(np.int64) * len(_SHADES) // 256]
    return "\n".join("".join(row) for row in shades)


def decode(spec: Spec, tokens: Array, limit: int = 400, words: list[str] | None = None) -> str:
    """Return one input as text, as its encoding says; long ones are cut at ``limit``."""
    if spec.encoding == "listops":
        lines = listops_value(tokens)[1]
        rest = [f"… {len(lines) - 40} more lines"] if len(lines) > 40 else []
        return "\n".join([*lines[:40], *rest])
    if spec.image is not None:
        return picture_text(tokens, spec.image)
    if spec.encoding in ("bytes", "bytes+1"):
        offset = 1 if spec.encoding == "bytes+1" else 0
        raw = (tokens[:limit].astype(np.int64) - offset).astype(np.uint8).tobytes()
        text = raw.decode("utf-8", "replace")
    elif spec.encoding == "letters":
        text = "".join(" abcdefghijklmnopqrstuvwxyz"[token] for token in tokens[:limit])
    elif spec.encoding == "words" and words is not None:
        text = " ".join(words[token] for token in tokens[: limit // 5])
        return text + (" …" if len(tokens) > limit // 5 else "")
    else:
        values = tokens[:16].tolist()
        return f"{values}{' …' if len(tokens) > 16 else ''}"
    return text + (" …" if len(tokens) > limit else "")
