"""The spec of a task before its data are there, for checks that need no data."""

from __future__ import annotations

from typing import Any

from longlens.tasks import atomic, listops
from longlens.tasks.build import make_options
from longlens.tasks.errors import DataError
from longlens.tasks.farfield.build import MEMBERS, spec_of
from longlens.tasks.registry import TASKS, find_task
from longlens.tasks.spec import Spec

# Longest example, vocabulary and classes of the published data.
_PIXELS = {"image": (32, 10), "smnist": (28, 10), "pmnist": (28, 10)}
_VOCABULARIES = {"enwik8": 256, "text8": 27, "wikitext103": 267_735}
_LONGEST_REVIEW = 13_704


def expected_version(name: str, **options: Any) -> int | None:
    """The version of the data that would be made now; None for what the user imported.

    >>> expected_version("listops"), expected_version("mine")
    (1, None)
    """
    try:
        info = find_task(name)
    except DataError:
        return None
    return info.version_of(make_options(info, options))


def expected_spec(name: str, **options: Any) -> Spec:
    """The spec that the task ``name`` will have when it is prepared with ``options``.

    What a model needs to know is exact but for ``max_length``, which is the longest that the
    published data or the generator's options allow; names for people are left out.

    >>> expected_spec("pathx", size=64).max_length
    4096
    """
    info = find_task(name)
    made = make_options(info, options)
    if name in ("pathfinder", "pathx"):
        return _image(made.size, 2)
    if name in _PIXELS:
        return _image(*_PIXELS[name], square=name != "pmnist")
    if name == "listops":
        return Spec(
            kind="classification",
            inputs="tokens",
            max_length=made.max_length - 1,
            vocab_size=listops.VOCAB,
            pad_id=listops.PAD,
            num_classes=10,
        )
    if name == "text" or name.startswith("retrieval"):
        pair = name != "text"
        return Spec(
            kind="classification",
            inputs="tokens",
            max_length=made.max_length if pair else _LONGEST_REVIEW,
            vocab_size=257,
            pad_id=0,
            num_classes=2,
            pair=pair,
        )
    if name in _VOCABULARIES:
        return Spec("next_token", "tokens", max_length=0, vocab_size=_VOCABULARIES[name])
    if isinstance(made, atomic.AtomicOptions):
        return atomic.spec(name, made)
    if name in MEMBERS:
        return spec_of(name, made)
    raise DataError(f"{name} has no known shape; there are {', '.join(TASKS)}")


def _image(side: int, classes: int, square: bool = True) -> Spec:
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=side * side,
        vocab_size=256,
        num_classes=classes,
        image=(side, side) if square else None,
    )
