"""Writing a data set: blocks of arrays, a journal of finished blocks, one rename at the end.

A data set is made in ``FOLDER.partial`` and renamed to ``FOLDER`` when its manifest is written, so
a folder without ``.partial`` is always whole. Each block (for example 2,000 examples) becomes one
``.npy`` file for each array. When its files are on the disk, a line with their sha256 is appended
to the journal. A run that is started again reads the journal, hashes the files that it names, keeps
the blocks that match and makes the others anew; since a block depends on nothing but its number and
the options, the result is the same to the byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longlens.files import PARTIAL, digest, make_folder, rename_folder, sha256_file
from longlens.tasks.arrays import Array
from longlens.tasks.cache import FORMAT
from longlens.tasks.errors import DataError
from longlens.tasks.files import save_array
from longlens.tasks.manifest import ArrayEntry, FileEntry, Manifest
from longlens.tasks.spec import SPLITS, Spec
from longlens.untrusted import parse_json

Arrays = Mapping[str, Array]
JOURNAL = "journal.jsonl"


class Writer:
    """Collects the blocks of one data set. Made by :func:`longlens.tasks.build.prepare`.

    >>> import tempfile; folder = Path(tempfile.mkdtemp()) / "demo"
    >>> writer = Writer(folder, "demo", 1, {})
    >>> writer.write_block("train", 0, {"tokens": np.zeros((3, 8), np.uint8)})
    >>> writer.has_block("train", 0), writer.has_block("train", 1)
    (True, False)
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        version: int,
        options: dict[str, Any],
        *,
        fresh: bool = False,
        partial: Path | None = None,
    ) -> None:
        self.folder = folder
        self.partial = partial or folder.with_name(folder.name + PARTIAL)
        self.name, self.version, self.options = name, version, options
        self.notes: list[str] = []
        self.sources: list[dict[str, Any]] = []
        self._blocks: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        self._header = {"format": FORMAT, "name": name, "version": version, "options": options}
        if fresh:  # blocks of another source could be left over; only generated ones are reused
            self.discard()
        make_folder(self.partial)
        self._recover()

    def _recover(self) -> None:
        """Keep what an earlier run finished, drop everything else, and start a fresh journal."""
        entries = self._read_journal()
        self._made_from: list[dict[str, Any]] = []
        if entries and entries[0] == self._header:
            for entry in entries[1:]:
                if "task" in entry:
                    self._made_from.append(entry)
                elif "files" not in entry:  # the header once more
                    continue
                elif all(self._intact(name, file) for name, file in entry["files"].items()):
                    self._blocks[entry["split"], entry["block"]] = entry["files"]
        keep = {name for files in self._blocks.values() for name in files}
        for path in self.partial.iterdir():
            if path.name not in keep:
                path.unlink()
        self._append(self._header)
        for entry in self._made_from:
            self._append(entry)
        for (split, block), files in self._blocks.items():
            self._append({"split": split, "block": block, "files": files})

    def _read_journal(self) -> list[dict[str, Any]]:
        """The lines of the journal up to the first one that is torn or damaged."""
        journal = self.partial / JOURNAL
        entries: list[dict[str, Any]] = []
        for line in journal.read_bytes().split(b"\n") if journal.is_file() else []:
            try:
                entry = parse_json(line)
                if entry.pop("checksum") != digest(entry):
                    break
            except (ValueError, KeyError, AttributeError, TypeError):
                break
            entries.append(entry)
        return entries

    def _intact(self, name: str, file: dict[str, Any]) -> bool:
        path = self.partial / name
        return path.is_file() and sha256_file(path) == file["sha256"]

    def _append(self, entry: dict[str, Any]) -> None:
        with (self.partial / JOURNAL).open("ab") as file:
            line = json.dumps({**entry, "checksum": digest(entry)}, sort_keys=True)
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def made_from(self, name: str, options: dict[str, Any], identity: str) -> None:
        """Say that this data set is made from another task; blocks made from other data go."""
        entry = {"task": name, "options": options, "identity": identity}
        self.sources.append(entry)
        if entry not in self._made_from:
            for file in [file for files in self._blocks.values() for file in files]:
                (self.partial / file).unlink()
            self._blocks.clear()
            self._made_from = [entry]
            (self.partial / JOURNAL).unlink()
            self._append(self._header)
            self._append(entry)

    def has_block(self, split: str, block: int) -> bool:
        """Whether this block is already on the disk and intact."""
        return (split, block) in self._blocks

    def read_block(self, split: str, block: int) -> dict[str, Array]:
        """Read a finished block back (arrays by name)."""
        return {
            file["array"]: np.load(self.partial / name, allow_pickle=False)
            for name, file in self._blocks[split, block].items()
        }

    def write_block(self, split: str, block: int, arrays: Arrays) -> None:
        """Write one block: the next rows of each array of ``split``; replaces an earlier one."""
        files = {}
        for array_name, array in arrays.items():
            name = f"{split}-{array_name}-{block:05d}.npy"
            size, sha256 = save_array(self.partial / name, array)
            files[name] = {
                "array": array_name,
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "bytes": size,
                "sha256": sha256,
            }
        self._append({"split": split, "block": block, "files": files})
        self._blocks[split, block] = files

    def _arrays(self) -> dict[str, ArrayEntry]:
        """Join the blocks' files into logical arrays, checking that they fit together."""
        parts: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
        for (split, block), files in self._blocks.items():
            for name, file in files.items():
                parts.setdefault(f"{split}/{file['array']}", []).append((block, name, file))
        arrays = {}
        for array_name in sorted(parts):
            blocks = sorted(parts[array_name], key=lambda part: part[0])
            if [block for block, _, _ in blocks] != list(range(len(blocks))):
                raise AssertionError(f"{array_name}: blocks are missing")
            kinds = {(file["dtype"], tuple(file["shape"][1:])) for _, _, file in blocks}
            if len(kinds) != 1:
                raise AssertionError(f"{array_name}: blocks of different kinds: {kinds}")
            dtype, tail = kinds.pop()
            rows = sum(file["shape"][0] for _, _, file in blocks)
            names = tuple(name for _, name, _ in blocks)
            arrays[array_name] = ArrayEntry(dtype, (rows, *tail), names)
        return arrays

    def finish(
        self, spec: Spec, examples: dict[str, int], sources: list[dict[str, Any]]
    ) -> Manifest:
        """Write the manifest and give the folder its final name."""
        if missing := [split for split in SPLITS if split not in examples]:
            raise AssertionError(f"splits without a count: {missing}")
        manifest = Manifest(
            name=self.name,
            version=self.version,
            spec=spec,
            options=self.options,
            examples=examples,
            arrays=self._arrays(),
            files={
                name: FileEntry(file["bytes"], file["sha256"])
                for files in self._blocks.values()
                for name, file in files.items()
            },
            sources=[*sources, *self.sources],
            notes=self.notes,
        )
        manifest.write(self.partial)
        (self.partial / JOURNAL).unlink()
        if self.folder.exists():
            raise DataError(f"{self.folder} appeared while it was being prepared")
        rename_folder(self.partial, self.folder)
        return manifest

    def discard(self) -> None:
        """Delete the unfinished data set."""
        shutil.rmtree(self.partial, ignore_errors=True)
