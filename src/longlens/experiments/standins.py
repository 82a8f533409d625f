"""Synthetic files in every official layout, a few examples each: what ``--quick`` trains on.

They hold nothing to learn. Data sets made from them carry ``stands_in_for`` in their manifest, so
that no record of a quick run can be taken for a result.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.runs.cell import Cell, with_options
from longlens.tasks.build import Draft, find_folder, make_options, prepare_task
from longlens.tasks.errors import DataError
from longlens.tasks.registry import find_task
from longlens.tasks.spec import Spec

QUICK = "(a few synthetic examples of --quick: no result)"
TRAIN, HELD = 16, 8

_ATOMIC = dict(length=64, train=TRAIN, validation=HELD, test=HELD)
_IMAGES = dict(validation=HELD, subset=True)
_LANGUAGE = dict(subset=True)
_PATHFINDER = dict(images=80)
SMALL: dict[str, dict[str, Any]] = {
    "listops": dict(train=TRAIN, validation=HELD, test=HELD, min_length=32, max_length=64),
    "text": dict(validation=HELD, subset=True),
    "retrieval": dict(max_length=64, subset=True),
    "retrieval-peerread": dict(max_length=64),
    "image": _IMAGES, "smnist": _IMAGES, "pmnist": _IMAGES,
    "pathfinder": _PATHFINDER, "pathx": {**_PATHFINDER, "size": 64},
    "select": {**_ATOMIC, "marked": 8},
    "far-order": dict(distance=8, train=TRAIN, validation=HELD, test=HELD),
    **dict.fromkeys(("cumsum", "cummax", "shift", "reverse", "sort"), _ATOMIC),
    **dict.fromkeys(("flip-flop", "induction", "mqar"), _ATOMIC),
    **dict.fromkeys(("enwik8", "text8", "wikitext103"), _LANGUAGE),
}  # fmt: skip
"""The options with which each task is small."""
KEPT = ("validation_from",)  # options that say which examples are for what, not how many


def small_options(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which ``task`` is small, and of ``options`` those that must stay.

    >>> small_options("text", {"validation_from": "test", "validation": 100})
    {'validation': 8, 'subset': True, 'validation_from': 'test'}
    """
    if task not in SMALL:
        raise DataError(f"--quick has no small data for {task!r}; it has {', '.join(SMALL)}")
    return SMALL[task] | {name: options[name] for name in KEPT if name in options}


def quick_data(runs: str | Path) -> Path:
    """The data cache of quick runs: never the user's own."""
    return Path(runs) / "quick-data"


def shrink(cell: Cell, runs: str | Path) -> Cell:
    """The cell as a quick run: its mixer and protocol, with everything else as small as can be.

    >>> small = shrink({"task": "image", "mixer": "s4", "dim": 512, "epochs": 200.0}, "runs")
    >>> small["dim"], small["steps"], small["task_options"]["subset"], "epochs" in small
    (16, 2, True, False)
    """
    # sets of the UCR archive may not be installed: gray pixels, a series too, stand in for them
    task = "image" if cell["task"].startswith("ucr:") else cell["task"]
    options = small_options(task, cell.get("task_options", {}))
    dropped = ("steps", "epochs", "budget", "length")
    small = {name: value for name, value in cell.items() if name not in dropped}
    heads = cell.get("mixer_options", {}).get("num_heads", 1)
    width = 16 if 16 % heads == 0 else 8 * heads
    small |= dict(task=task, task_options=options, root=str(quick_data(runs)), device="cpu")
    small |= dict(dim=width, depth=1, steps=2, batch_size=4, evaluate_batch=8, log_every=1)
    small["warmup"] = 0.0
    augments = "augment" in str(cell.get("protocol")).split("+")  # which needs whole pictures
    if not augments and "length" not in options:
        small["length"] = 64
    for name, value in (("limit", 8), ("pretrain_steps", 2)):
        if small.get(name) is not None:
            small[name] = value
    if small.get("collapse") or small.get("collapse_depth"):
        small["collapse_steps"] = small.get("collapse_depth", 1)  # a step on each level
        small["steps"] = small["collapse_steps"] + 1
    if "transfer_options" in small:  # the same data once more
        small["transfer_options"] = {name: {"limit": 8} for name in small["transfer_options"]}
    return with_options(small, {})


def prepare_stand_in(task: str, root: Path, **changes: Any) -> bool:
    """Make the small stand-in of ``task`` under ``root``; False if it was there already.

    Args:
        task: a key of ``SMALL``.
        root: the cache of stand-ins.
        changes: options of the task that are to stay, see ``KEPT``.
    """
    small = small_options(task, changes)

    def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
        spec, sizes = real.build(draft)
        return replace(spec, stands_in_for=f"{task} {QUICK}"), sizes

    real = find_task(task)
    options = make_options(real, small)
    if find_folder(real, root, options).exists():
        return False
    source = None
    if real.needs_source:
        source = root / "sources" / task
        for name, content in _files(task).items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    prepare_task(replace(real, build=build), root, options, source=source, quiet=True)
    return True


def _files(task: str) -> dict[str, bytes]:
    """The files of ``task``'s official layout."""
    rng = np.random.default_rng(0)
    if task == "text":
        return _reviews()
    if task == "image":
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        return {f"cifar-10-batches-bin/{name}": _cifar(rng) for name in names}
    if task in ("smnist", "pmnist"):
        return _mnist(rng, "train", TRAIN + HELD) | _mnist(rng, "t10k", HELD)
    if task == "retrieval":
        return {f"new_aan_pairs.{split}.tsv": _pairs() for split in ("train", "eval", "test")}
    if task == "retrieval-peerread":
        return _corpus()
    if task == "wikitext103":
        text = b"".join(b" the %d th word \n" % number for number in range(200)) + b" <unk> \n"
        return {f"wiki.{split}.tokens": text for split in ("train", "valid", "test")}
    letters = rng.integers(ord("a"), ord("z") + 1, 20_000, dtype=np.uint8).tobytes()
    return {task: letters}


def _reviews() -> dict[str, bytes]:
    return {
        f"{split}.jsonl": "".join(
            json.dumps({"label": number % 2, "text": f"{split} {number} " * (1 + number % 3)})
            + "\n"
            for number in range(TRAIN + HELD)
        ).encode()
        for split in ("train", "test")
    }


def _cifar(rng: np.random.Generator) -> bytes:
    rows = rng.integers(0, 256, (HELD, 1 + 3 * 1024), dtype=np.uint8)  # a label, three colours
    rows[:, 0] %= 10
    return rows.tobytes()


def _mnist(rng: np.random.Generator, split: str, count: int) -> dict[str, bytes]:
    def idx(array: npt.NDArray[np.uint8]) -> bytes:
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        return gzip.compress(head + array.tobytes(), mtime=0)

    return {
        f"{split}-images-idx3-ubyte.gz": idx(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)),
        f"{split}-labels-idx1-ubyte.gz": idx(rng.integers(0, 10, count, dtype=np.uint8)),
    }


def _pairs() -> bytes:
    rows = [
        f"{float(number % 2)}\tP{number}\tP{number + 1}\tb'paper {number}'\tb'paper {number + 1}'\n"
        for number in range(TRAIN)
    ]
    return "".join(rows).encode()


def _corpus(documents: int = 60) -> dict[str, bytes]:
    rows = [
        {"id": f"{number:03d}", "title": f"Paper {number}", "text": f"text of {number} " * 3}
        for number in range(documents)
    ]
    cited = [(n, (7 * n + k) % documents) for n in range(documents) for k in range(1, 9)]
    return {
        "docs.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "citations.tsv": "".join(f"{a:03d}\t{b:03d}\n" for a, b in cited).encode(),
    }
