"""The manifest beside a data set: what it holds, from what, with the sha256 of every file.

``identity`` is the hash of what the data *are* (task, spec, options, every file's content), the
same wherever and from whatever copy they were made; records of runs cite it. ``checksum`` is the
hash of the whole manifest. A manifest must be, byte for byte, the canonical JSON of its own
content, so that a changed byte anywhere in it is an error, even one between two words.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longlens._version import __version__
from longlens.files import digest, replace_file, seal, sha256_file, unseal
from longlens.tasks.cache import FORMAT
from longlens.tasks.errors import DataError
from longlens.tasks.spec import SPLITS, Spec
from longlens.untrusted import check_shape

FILENAME = "manifest.json"
SHAPE: dict[str, Any] = {
    "name": str,
    "version": int,
    "spec": {},
    "options": {},
    "examples": dict.fromkeys(SPLITS, int),
    "arrays": {"*": {"dtype": str, "shape": [int], "files": [str]}},
    "files": {"*": {"bytes": int, "sha256": str}},
    "sources": [{}],
    "notes": [str],
}
Verify = Literal["full", "size"]


@dataclass(frozen=True)
class ArrayEntry:
    """One logical array: its dtype, its whole shape, and the files that hold its rows in order."""

    dtype: str
    shape: tuple[int, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class FileEntry:
    """Size and sha256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The parsed manifest of one data set; ``arrays`` are named ``split/array``."""

    name: str
    version: int
    spec: Spec
    options: dict[str, Any]
    examples: dict[str, int]
    arrays: dict[str, ArrayEntry]
    files: dict[str, FileEntry]
    sources: list[dict[str, Any]]
    notes: list[str]

    def content(self) -> dict[str, Any]:
        """Return what the data are, as JSON values: the part that ``identity`` hashes."""
        return {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "spec": self.spec.to_json(),
            "options": self.options,
            "examples": self.examples,
            "arrays": {name: asdict(entry) for name, entry in self.arrays.items()},
            "files": {name: asdict(entry) for name, entry in self.files.items()},
        }

    @property
    def identity(self) -> str:
        """The data's own hash, 64 hexadecimal digits."""
        return digest(self.content())

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(entry.bytes for entry in self.files.values())

    def write(self, folder: Path) -> None:
        """Write ``manifest.json`` into ``folder``, atomically."""
        values = self.content() | {
            "identity": self.identity,
            "sources": self.sources,
            "notes": self.notes,
            "made_with": {
                "longlens": __version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        replace_file(folder / FILENAME, seal(values))


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``folder``'s manifest alone (not the files that it lists)."""
    path = folder / FILENAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{folder} is not a prepared data set: it has no {FILENAME}") from None
    try:
        values = unseal(raw)
        if values["format"] != FORMAT:
            raise DataError(
                f"{path} has format {values['format']}, this version reads {FORMAT}; "
                "prepare it again"
            )
        check_shape(values, SHAPE)
        manifest = Manifest(
            name=values["name"],
            version=values["version"],
            spec=Spec.from_json(values["spec"]),
            options=values["options"],
            examples=values["examples"],
            arrays={
                name: ArrayEntry(a["dtype"], tuple(a["shape"]), tuple(a["files"]))
                for name, a in values["arrays"].items()
            },
            files={name: FileEntry(**entry) for name, entry in values["files"].items()},
            sources=values["sources"],
            notes=values["notes"],
        )
        if manifest.identity != values["identity"]:
            raise ValueError("its identity does not match its content")
        for name in {name for entry in manifest.arrays.values() for name in entry.files}:
            if name not in manifest.files:  # and every one of these is hashed before it is opened
                raise ValueError(f"an array lies in {name!r}, which is none of its files")
        if not all(entry.files and entry.shape for entry in manifest.arrays.values()):
            raise ValueError("an array has no files or no shape")
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete {folder} and prepare the data set again"
        ) from None
    return manifest


def verify_files(folder: Path, manifest: Manifest, verify: Verify = "full") -> None:
    """Check every file of ``folder`` against ``manifest``; raise for the first that differs.

    ``full`` (the default everywhere) reads every byte: about one second a gigabyte, and the pages
    that it reads are the ones that training needs next. ``size`` compares names and sizes only; it
    finds a truncated file but not a flipped byte, so it is only for a process that knows that
    another one has just verified the same folder (the ranks of one node).
    """
    if verify not in ("full", "size"):
        raise DataError(f"verify must be 'full' or 'size', got {verify!r}")
    advice = f"delete {folder} and prepare the data set again"
    present = {path.name for path in folder.iterdir()}
    if foreign := sorted(present - set(manifest.files) - {FILENAME}):
        raise DataError(
            f"{folder} holds a file that its manifest does not list: {foreign[0]}; {advice}"
        )
    for name, entry in manifest.files.items():
        path = folder / name
        if name not in present:
            raise DataError(f"{path} is missing; {advice}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(f"{path} is damaged: {size} bytes instead of {entry.bytes}; {advice}")
        if verify == "full" and (actual := sha256_file(path)) != entry.sha256:
            hashes = f"sha256 {actual[:16]}… instead of {entry.sha256[:16]}…"
            raise DataError(f"{path} is damaged: {hashes}; {advice}")
