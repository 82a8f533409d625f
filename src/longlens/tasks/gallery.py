"""A gallery of a task's examples: one PNG of pictures, or one HTML page of anything."""

from __future__ import annotations

import base64
import html
from pathlib import Path

import numpy as np

from longlens.files import replace_file
from longlens.tasks.arrays import Bytes
from longlens.tasks.data import Example, Split, Task
from longlens.tasks.decode import decode
from longlens.tasks.errors import DataError
from longlens.tasks.order import permutation
from longlens.tasks.png import encode_png, write_png
from longlens.tasks.stats import SplitStats


def contact_sheet(pictures: list[Bytes], columns: int, scale: int = 1, gap: int = 2) -> Bytes:
    """Lay pictures of one size side by side, each enlarged ``scale`` times, on mid-gray.

    >>> contact_sheet([np.zeros((4, 4), np.uint8)] * 3, columns=2).shape
    (14, 14)
    """
    height, width = pictures[0].shape
    rows = -(-len(pictures) // columns)
    step_y, step_x = height * scale + gap, width * scale + gap
    sheet = np.full((rows * step_y + gap, columns * step_x + gap), 110, np.uint8)
    for number, picture in enumerate(pictures):
        y, x = gap + number // columns * step_y, gap + number % columns * step_x
        large = picture.repeat(scale, axis=0).repeat(scale, axis=1)
        sheet[y : y + height * scale, x : x + width * scale] = large
    return sheet


def pick(split: Split, count: int, seed: int) -> list[int]:
    """Choose examples at random; of a stream, places where a window starts."""
    return [int(index) for index in permutation(len(split), seed)[:count]]


def words_of(task: Task) -> list[str] | None:
    """Return the vocabulary of a word-level task."""
    if task.spec.encoding != "words":
        return None
    return task.array("vocabulary/text").tobytes().decode("utf-8", "replace").split("\n")


def label(task: Task, example: Example) -> str:
    """Say an example's target and extras in words."""
    spec = task.spec
    if spec.kind == "regression":
        target = f"{np.asarray(example.target).reshape(-1)[:6].round(3).tolist()} …"
    else:
        number = int(example.target)
        target = spec.class_names[number] if spec.class_names else str(number)
    numbers = {key: value for key, value in example.extras.items() if np.ndim(value) == 0}
    extras = "".join(f", {key} {value}" for key, value in numbers.items())
    return f"{target}{extras}"


def example_texts(
    task: Task, split: str, count: int, seed: int
) -> list[tuple[str, str, int | None]]:
    """Return (label, drawn or printed input, number) of a few examples; a window has no number."""
    words = words_of(task)
    if task.spec.kind == "next_token":
        stream = task[split].stream
        places = [min(place, max(0, len(stream) - 400)) for place in pick(task[split], count, seed)]
        texts = [decode(task.spec, stream[place : place + 400], words=words) for place in places]
        titles = [f"from token {place:,}" for place in places]
        return [(title, text, None) for title, text in zip(titles, texts, strict=True)]
    out: list[tuple[str, str, int | None]] = []
    for index in pick(task[split], count, seed):
        example = task[split][index]
        texts = [decode(task.spec, np.asarray(part)) for part in example.inputs]
        out.append((f"{split} {index}: {label(task, example)}", "\n~~~\n".join(texts), index))
    return out


def write_gallery(
    task: Task, path: Path, split: str, count: int, seed: int, stats: dict[str, SplitStats]
) -> None:
    """Write a gallery to ``path``: ``.png`` (image tasks) or ``.html`` (any task)."""
    if path.suffix == ".png":
        if task.spec.image is None:
            raise DataError(f"{task.name} has no pictures; write an .html gallery instead")
        shape = task.spec.image
        pictures = [task[split].sequence(i).reshape(shape) for i in pick(task[split], count, seed)]
        scale = max(1, 128 // shape[0])
        write_png(path, contact_sheet(pictures, columns=min(8, count), scale=scale))
    elif path.suffix == ".html":
        page = _page(task, split, count, seed, stats)
        replace_file(path, page.encode())
    else:
        raise DataError(f"a gallery must end in .png or .html, got {path.name!r}")


def _bars(histogram: tuple[tuple[int, int, int], ...]) -> str:
    most = max((count for _, _, count in histogram), default=1) or 1
    rows = [
        f"<tr><td>{low:,}–{high:,}</td>"
        f"<td><meter max={most} value={count}></meter> {count:,}</td></tr>"
        for low, high, count in histogram
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _card(task: Task, split: str, title: str, body: str, index: int | None) -> str:
    if index is not None and task.spec.image is not None:
        picture = task[split].sequence(index).reshape(task.spec.image)
        data = base64.b64encode(encode_png(picture)).decode()
        body = f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'
    else:
        body = f"<pre>{html.escape(body)}</pre>"
    return f"<figure>{body}<figcaption>{html.escape(title)}</figcaption></figure>"


def _page(task: Task, split: str, count: int, seed: int, stats: dict[str, SplitStats]) -> str:
    texts = example_texts(task, split, count, seed)
    cards = "".join(_card(task, split, title, body, index) for title, body, index in texts)
    facts = "".join(
        f"<h2>{name}: {fact.examples:,} examples, {fact.tokens:,} tokens</h2>"
        f"{_bars(fact.histogram)}"
        f"<p>classes: {', '.join(f'{share:.1%}' for share in fact.classes) or '–'}</p>"
        for name, fact in stats.items()
    )
    style = (
        "body{font:15px system-ui;margin:2em;max-width:70em}"
        "main{display:flex;flex-wrap:wrap;gap:1em}"
        "figure{margin:0;max-width:30em}img{width:12em;image-rendering:pixelated;background:#000}"
        "pre{max-height:20em;overflow:auto;background:#8882;padding:.5em;white-space:pre-wrap}"
        "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
    )
    note = (
        f"<p>Stands in for: {html.escape(task.spec.stands_in_for)}.</p>"
        if task.spec.stands_in_for
        else ""
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{task.name}</title>'
        f"<style>{style}</style><h1>{task.name}</h1><p>identity {task.identity}</p>{note}"
        f"<main>{cards}</main>{facts}</html>\n"
    )
