"""Folders of classes: a folder for each class, a file for each example, of text or of sound.

::

    demo_coding/train/0/1.txt  demo_coding/test/1/7.txt      Genomic Benchmarks, as downloaded
    speech_commands/yes/0a7c.wav  speech_commands/no/1b.wav  Speech Commands
    speech_commands/validation_list.txt  …/testing_list.txt  which of them are held out

Folders above the classes may be named train, validation and test. Sound is mono or has channels,
of whole numbers of 8, 16 or 32 bits, and becomes values between -1 and 1.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError
from longlens.tasks.files import read_text
from longlens.tasks.given import Given
from longlens.tasks.split import WORDS

ENDINGS = (".txt", ".wav")
LISTS = {"validation_list.txt": "validation", "testing_list.txt": "test"}
WIDTHS = {1: "u1", 2: "<i2", 4: "<i4"}


def read_classes(folder: Path) -> Given | None:
    """Examples of a folder of classes; None where it is none.

    >>> import tempfile; home = Path(tempfile.mkdtemp())
    >>> for name, text in (("train/a/1.txt", "AC"), ("train/b/2.txt", "GG"), ("test/a/3.txt", "T")):
    ...     (home / name).parent.mkdir(parents=True, exist_ok=True)
    ...     _ = (home / name).write_text(text)
    >>> given = read_classes(home)
    >>> given.examples, given.labels, given.split
    (['AC', 'GG', 'T'], ['a', 'b', 'a'], ['train', 'train', 'test'])
    """
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    parts = [path for path in inside if path.name.lower() in WORDS]
    parts.sort(key=lambda path: ("train", "validation", "test").index(WORDS[path.name.lower()]))
    roots = parts if parts and len(parts) == len(inside) else [folder]
    files = [
        (root, path)
        for root in roots
        for kind in sorted(root.iterdir())
        if kind.is_dir() and not kind.name.startswith(("_", "."))  # noise to mix in, caches
        for path in sorted(kind.iterdir(), key=lambda path: (len(path.name), path.name))
        if path.suffix.lower() in ENDINGS
    ]
    if not files:
        return None
    kinds = {path.suffix.lower() for _, path in files}
    if len(kinds) > 1:
        raise DataError(f"{folder} has files of several kinds: {', '.join(sorted(kinds))}")
    sound = kinds == {".wav"}
    examples: list[Any] = [read_wav(path) if sound else _read_text(path) for _, path in files]
    labels = [path.parent.name for _, path in files]
    split, note = _split(folder, files, roots == parts)
    return Given(examples, labels, split, [f"{len(set(labels))} folders of classes", note])


def _split(
    folder: Path, files: list[tuple[Path, Path]], named: bool
) -> tuple[list[str] | None, str]:
    """Which split each file belongs to: by its folder, by lists of names, or unknown."""
    if named:
        return [WORDS[root.name.lower()] for root, _ in files], "split as given by folders"
    held: dict[str, str] = {}
    for name, part in LISTS.items():
        if (folder / name).exists():
            lines = read_text(folder / name).split()
            held |= dict.fromkeys(lines, part)
    if not held:
        return None, "no split is given"
    found = [path.relative_to(folder).as_posix() for _, path in files]
    return [held.get(name, "train") for name in found], f"split as given ({', '.join(LISTS)})"


def _read_text(path: Path) -> str:
    text = read_text(path).strip()
    if not text:
        raise DataError(f"{path} is empty")
    return text


def read_wav(path: Path) -> npt.NDArray[np.float32]:
    """Samples of a .wav file as (length, channels), between -1 and 1."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width = file.getnchannels(), file.getsampwidth()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise DataError(f"{path} is no .wav file of whole numbers ({error})") from None
    if width not in WIDTHS:
        raise DataError(f"{path}: samples of {8 * width} bits are not read")
    values = np.frombuffer(raw, WIDTHS[width]).reshape(-1, channels)
    if not len(values):
        raise DataError(f"{path} has no samples")
    centre = 128.0 if width == 1 else 0.0  # eight bits are stored without a sign
    return np.asarray((values - centre) / 2.0 ** (8 * width - 1), np.float32)
