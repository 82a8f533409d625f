"""Writing a far-field task: blocks of a few megabytes, whatever the distance is."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array, Ints
from longlens.tasks.build import Draft
from longlens.tasks.farfield import expressions, pointer, segments, xor
from longlens.tasks.order import generator
from longlens.tasks.spec import SPLITS, Spec

BLOCK_BYTES = 8 << 20
# Modules with the functions sizes, draw, labels, render and orbit.
MEMBERS: dict[str, Any] = {
    "far-order": segments,
    "far-match": segments,
    "far-xor": xor,
    "far-pointer": pointer,
    "far-listops": expressions,
}
NUMBERS = {name: number for number, name in enumerate(MEMBERS)}  # part of the seed
READOUT = ("far-xor", "far-pointer", "far-listops")


def make_block(name: str, options: Any, split: str, block: int, count: int) -> dict[str, Array]:
    """Make one block of the task ``name``, a pure function of the arguments."""
    rng = generator(options.seed, NUMBERS[name], SPLITS.index(split), block)
    _, inputs, targets = examples(name, options, rng, count)
    return {"inputs": inputs, "targets": targets.astype(np.uint8)}


def examples(
    name: str, options: Any, rng: np.random.Generator, count: int
) -> tuple[Any, Array, Ints]:
    """Make examples: what was drawn, tokens (N, L), labels (N,).

    The task's files are written with it, and certificates look at what it gives.
    """
    member = MEMBERS[name]
    drawn = member.draw(options, rng, count)
    return drawn, member.render(options, drawn), member.labels(options, drawn)


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits of the task ``draft.name``."""
    options = draft.options
    sizes = {split: getattr(options, split) for split in SPLITS}
    spec = spec_of(draft.name, options)
    rows = max(1, min(2000, BLOCK_BYTES // spec.max_length))
    draft.blocks(partial(make_block, draft.name), sizes, rows)
    return spec, sizes


def spec_of(name: str, options: Any) -> Spec:
    """What a model needs to know of the task ``name``; no data are needed."""
    sizes = MEMBERS[name].sizes(options)
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=sizes.length,
        vocab_size=sizes.vocabulary,
        num_classes=sizes.classes,
        readout="last" if name in READOUT else None,
    )


def estimate(name: str, options: Any) -> int:
    """Bytes of the result, from above."""
    count = options.train + options.validation + options.test
    return int(count * (MEMBERS[name].sizes(options).length + 2))
