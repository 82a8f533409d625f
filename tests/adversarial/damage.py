"""Ways to damage a file, each a function of its bytes and a seeded generator."""

from __future__ import annotations

import json
import re
import struct
from random import Random

HUGE = (0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
ODD_VALUES = (
    None,
    True,
    -1,
    0,
    3,
    2**63,
    1e308,
    "",
    "x",
    "\x1b[31m",
    "../../x",
    [],
    [3],
    {},
    {"a": 1},
)
# Words of the formats, and what stands there in another type, order or version.
WORDS = (
    (b"F32", b"F64"), (b"F32", b"I32"), (b"F32", b"BF16"), (b"I64", b"F64"), (b"BOOL", b"U8"),
    (b"<f4", b"<i4"), (b"<f8", b"<f4"), (b"<i8", b"<u8"), (b"<i8", b">i8"), (b"|u1", b"|i1"),
    (b"<f8", b"|O8"), (b"False", b"True"), (b"true", b"false"), (b"null", b"0"), (b"1", b"1e999"),
    (b"0", b"NaN"), (b"(", b"(-"), (b": ", b": -"), (b",", b",,"), (b"{", b"[{"), (b"\n", b"\r\n"),
    (b"data_offsets", b"data_offset"), (b"shape", b"shape\0"), (b'"', b"'"), (b"\t", b" "),
    (b"0.", b"2024-01-01"), (b": ", b": !!binary "), (b": ", b": &a [*a]"), (b"- ", b"- 1: "),
    (b"{", b"{[1]: 2, "), (b"{", b"{<<: 3, "), (b"name", b"name: ../x, name"), (b":", b": :"),
)  # fmt: skip


def truncate(data: bytes, rng: Random) -> bytes:
    """Cut off the end, often where a block, a line or a header ends."""
    places = [rng.randrange(len(data)), rng.randrange(len(data)) // 512 * 512, len(data) - 1]
    places += [match.end() for match in list(re.finditer(rb"\n|\}|\0{8}", data))[:200]]
    return data[: rng.choice(places)]


def flip(data: bytes, rng: Random) -> bytes:
    """Flip one bit, or a few; half of the time near the start, where headers are."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 16))):
        end = len(out) if rng.random() < 0.5 else min(len(out), 256)
        out[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(data: bytes, rng: Random) -> bytes:
    """Put zeros, ones or noise over a range."""
    start = rng.randrange(len(data))
    length = rng.choice((1, 4, 8, 64, 512))
    fill = rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length)))
    return data[:start] + fill[: len(data) - start] + data[start + length :]


def swap(data: bytes, rng: Random) -> bytes:
    """Exchange two ranges of the same length."""
    length = rng.choice((1, 8, 64, 512))
    if len(data) < 2 * length + 1:
        return data[::-1]
    first = rng.randrange(len(data) - 2 * length)
    second = rng.randrange(first + length, len(data) - length + 1)
    return (data[:first] + data[second : second + length] + data[first + length : second]
            + data[first : first + length] + data[second + length :])  # fmt: skip


def insert(data: bytes, rng: Random) -> bytes:
    """Insert noise, or a copy of another range."""
    length, place = rng.choice((1, 3, 8, 512)), rng.randrange(len(data) + 1)
    start = rng.randrange(len(data))
    new = rng.choice((rng.randbytes(length), data[start : start + length], b"\0" * length))
    return data[:place] + new + data[place:]


def delete(data: bytes, rng: Random) -> bytes:
    """Take a range out."""
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice((1, 4, 8, 64, 512)) :]


def append(data: bytes, rng: Random) -> bytes:
    """Go on after the end, with zeros, noise or the file once more."""
    return data + rng.choice((b"\0", bytes(512), rng.randbytes(7), rng.randbytes(600), data, b"\n"))


def oversize(data: bytes, rng: Random) -> bytes:
    """Write another number where a header has one: eight bytes, four bytes, or digits."""
    value = rng.choice(HUGE)
    digits = list(re.finditer(rb"\d+", data[:100_000]))
    kind = rng.choice(("digits", "eight", "four")) if digits else "eight"
    if kind == "digits":
        match = rng.choice(digits)
        text = rng.choice((str(value), "9" * 400, f"-{value}", f"{value}.5", "1e400")).encode()
        return data[: match.start()] + text + data[match.end() :]
    size = 8 if kind == "eight" else 4
    place = rng.choice((0, 4, 8, rng.randrange(max(1, len(data) - size))))
    packed = struct.pack("<Q", value)[:size]
    return data[:place] + (packed if rng.random() < 0.5 else packed[::-1]) + data[place + size :]


def reword(data: bytes, rng: Random) -> bytes:
    """Exchange a word of the format: another type, another order, a value that is none."""
    there = [pair for pair in WORDS if pair[0] in data]
    if not there:
        return flip(data, rng)
    old, new = rng.choice(there)
    places = [match.start() for match in re.finditer(re.escape(old), data)][:500]
    place = rng.choice(places)
    return data[:place] + new + data[place + len(old) :]


def replace(data: bytes, rng: Random) -> bytes:
    """Put something else there altogether."""
    nested = b"[" * 50_000
    return rng.choice(
        (b"", b"\n", b"{}", b"[]", b"null", nested, rng.randbytes(len(data)), b"PK\5\6")
    )


def restructure(data: bytes, rng: Random) -> bytes:
    """In JSON: another value, a missing key, a renamed or repeated key, somewhere in the tree."""
    line = rng.randrange(data.count(b"\n") + 1)
    lines = data.split(b"\n")
    try:
        tree, whole = json.loads(data), True
    except ValueError:
        try:
            tree, whole = json.loads(lines[line]), False
        except ValueError:
            return reword(data, rng)
    places = list(_places(tree))
    if not places:
        return reword(data, rng)
    owner, key = rng.choice(places)
    action = rng.choice(("value", "value", "missing", "renamed", "repeated"))
    if action == "value" or isinstance(owner, list):
        owner[key] = rng.choice(ODD_VALUES)
    elif action == "missing":
        del owner[key]
    else:
        owner[f"{key}\0twice" if action == "repeated" else f"{key}_"] = owner[key]
        if action == "renamed":
            del owner[key]
    indent = 1 if whole and b"\n " in data else None
    text = json.dumps(tree, indent=indent).encode().replace(b"\\u0000twice", b"")
    return text + b"\n" if whole else b"\n".join([*lines[:line], text, *lines[line + 1 :]])


def _places(tree: object):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield tree, key
            yield from _places(value)
    elif isinstance(tree, list):
        for number, value in enumerate(tree[:50]):
            yield tree, number
            yield from _places(value)


WAYS = (truncate, flip, overwrite, swap, insert, delete, append, oversize, reword, replace)


def damaged(data: bytes, rng: Random, text: bool = False) -> tuple[str, bytes]:
    """The name of a way of damage, and what it makes of ``data``: never the same bytes."""
    while True:
        way = rng.choice((*WAYS, restructure, restructure, restructure) if text else WAYS)
        out = way(data, rng) if data else rng.randbytes(9)
        if out != data:
            return way.__name__, out
