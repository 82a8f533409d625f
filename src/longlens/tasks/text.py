"""``text``: IMDB reviews as bytes, positive or negative (Maas et al. 2011).

The published set has train and test only, and published runs often choose their model on test.
Here validation is taken from train, class by class, with all copies of a review on one side. The
other way is available by name, ``validation_from="test"``, and never by default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.build import Draft
from longlens.tasks.errors import DataError, check_least
from longlens.tasks.fetch import Remote
from longlens.tasks.order import permutation
from longlens.tasks.spec import Spec
from longlens.untrusted import parse_json

IMDB = Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
PUBLISHED = 25_000
BLOCK = 5_000  # reviews
_FILE = re.compile(r"(?:^|.*/)(train|test)/(pos|neg)/[^/]+\.txt$")
Review = tuple[bytes, int]


@dataclass(frozen=True)
class TextOptions:
    """Options of ``text``.

    Args:
        validation: reviews to hold out of train, half of each class.
        validation_from: "train"; "test" repeats the select-on-test practice, and says so.
        seed: of the choice of what is held out.
        subset: accept fewer reviews than were published (not comparable).
    """

    validation: int = 2_500
    validation_from: str = "train"
    seed: int = 0
    subset: bool = False

    def __post_init__(self) -> None:
        if self.validation_from not in ("train", "test"):
            raise DataError(
                f"text: validation_from must be 'train' or 'test', got {self.validation_from!r}"
            )
        check_least(self, "text", validation=2, seed=0)


def _read(draft: Draft) -> dict[str, list[Review]]:
    """Reviews of train and test, sorted, so that every source gives the same data."""
    reviews: dict[str, list[Review]] = {"train": [], "test": []}

    def wanted(name: str) -> bool:
        return bool(_FILE.match(name)) or PurePosixPath(name).name in ("train.jsonl", "test.jsonl")

    for name, file in draft.need_source().stream(wanted):
        if match := _FILE.match(name):
            if not (text := file.read()):
                raise DataError(f"{name} is empty")
            reviews[match[1]].append((text, int(match[2] == "pos")))
            continue
        split = PurePosixPath(name).stem
        for number, line in enumerate(file, start=1):
            try:
                row = parse_json(line)
                text, label = row["text"].encode(), row["label"]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(
                    f"{name}, line {number}: not a JSON object with label and a text"
                ) from None
            if type(label) is not int or label not in (0, 1) or not text:
                raise DataError(
                    f"{name}, line {number}: label must be 0 or 1, and text must not be empty"
                )
            reviews[split].append((text, label))
    return {split: sorted(rows) for split, rows in reviews.items()}


def hold_out(rows: list[Review], count: int, seed: int) -> set[int]:
    """Choose about ``count`` rows, half of each class, copies of a text together.

    >>> chosen = hold_out([(b"a", 0), (b"a", 0), (b"b", 0), (b"c", 1), (b"d", 1)], 2, seed=0)
    >>> sorted(rows % 10 for rows in chosen) != []
    True
    """
    chosen: set[int] = set()
    for label in (0, 1):
        groups: dict[bytes, list[int]] = {}
        for number, (text, its_label) in enumerate(rows):
            if its_label == label:
                groups.setdefault(text, []).append(number)
        parts = list(groups.values())
        wanted = count // 2
        for place in permutation(len(parts), seed, label):
            if len(parts[place]) <= wanted:
                chosen.update(parts[place])
                wanted -= len(parts[place])
    return chosen


def build(draft: Draft) -> tuple[Spec, dict[str, int]]:
    """Write the three splits from aclImdb's folders or archive, or from JSON lines."""
    options: TextOptions = draft.options
    reviews = _read(draft)
    if not any(reviews.values()):
        raise DataError(
            f"{draft.need_source().path} holds neither aclImdb's train/pos/*.txt … nor train.jsonl "
            "and test.jsonl with label and text"
        )
    for split, rows in reviews.items():
        if len(rows) != PUBLISHED and not options.subset:
            raise DataError(
                f"text: {len(rows)} {split} reviews where the published set has {PUBLISHED}; pass "
                "subset=True (--set subset=true) to use them all the same"
            )
    if options.validation_from == "test":
        splits = {"train": reviews["train"], "validation": reviews["test"], "test": reviews["test"]}
        draft.writer.notes.append(
            "validation is the test split (select-on-test, as in LRA's pipeline)"
        )
    else:
        held = hold_out(reviews["train"], options.validation, options.seed)
        splits = {
            "train": [row for i, row in enumerate(reviews["train"]) if i not in held],
            "validation": [row for i, row in enumerate(reviews["train"]) if i in held],
            "test": reviews["test"],
        }
    for split, rows in splits.items():
        if not rows:
            raise DataError(f"text: the {split} split would be empty")
        for block, start in enumerate(range(0, len(rows), BLOCK)):
            draft.writer.write_block(split, block, _as_arrays(rows[start : start + BLOCK]))
    longest = max(len(text) for rows in splits.values() for text, _ in rows)
    sizes = {split: len(rows) for split, rows in splits.items()}
    return replace(spec(options), max_length=longest), sizes


def _as_arrays(rows: list[Review]) -> dict[str, Array]:
    """Reviews as tokens, byte + 1, one after the other."""
    raw = b"".join(text for text, _ in rows)
    return {
        "flat": np.frombuffer(raw, np.uint8).astype(np.uint16) + np.uint16(1),
        "lengths": np.array([len(text) for text, _ in rows], np.int32),
        "targets": np.array([label for _, label in rows], np.uint8),
    }


def spec(options: TextOptions) -> Spec:
    """The shape of the task, with the longest published review."""
    return Spec(
        kind="classification",
        inputs="tokens",
        max_length=13_704,
        vocab_size=257,
        pad_id=0,
        num_classes=2,
        encoding="bytes+1",
        class_names=("negative", "positive"),
    )
