"""A prepared data set in memory: memory-mapped arrays behind splits of examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from longlens.tasks.arrays import Array, Ints
from longlens.tasks.errors import DataError
from longlens.tasks.manifest import ArrayEntry, Manifest, Verify, read_manifest, verify_files
from longlens.tasks.npy import open_npy
from longlens.tasks.spec import SPLITS, Spec


class Rows:
    """One logical array whose rows lie in one or more memory-mapped ``.npy`` files.

    >>> rows = Rows([np.arange(3), np.arange(3, 5)])
    >>> rows.take(np.array([4, 0])).tolist(), rows.slice(2, 4).tolist(), len(rows)
    ([4, 0], [2, 3], 5)
    """

    def __init__(self, parts: list[Array]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        self.dtype, self.shape = parts[0].dtype, (int(self.starts[-1]), *parts[0].shape[1:])

    @classmethod
    def open(cls, folder: Path, entry: ArrayEntry) -> Rows:
        """Map the files of ``entry``; copy-on-write, so that nobody can write to the cache."""
        parts = [open_npy(folder / name, str(folder / name), "c") for name in entry.files]
        rows = cls(parts)
        if rows.shape != entry.shape or rows.dtype.str != entry.dtype:
            raise DataError(f"{folder}: an array does not have the shape that the manifest states")
        return rows

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def nbytes(self) -> int:
        """Size of the whole array."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def take(self, index: Ints) -> Array:
        """Rows ``index`` (n,) as a new array (n, ...)."""
        if len(self.parts) == 1:
            return np.asarray(self.parts[0][index])
        out = np.empty((len(index), *self.shape[1:]), self.dtype)
        home = np.searchsorted(self.starts, index, side="right") - 1
        for part in np.unique(home):
            here = home == part
            out[here] = self.parts[part][index[here] - self.starts[part]]
        return out

    def slice(self, start: int, stop: int) -> Array:
        """Rows start … stop-1; a view where one file holds them all."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        if first < len(self.parts) and stop <= self.starts[first + 1]:
            offset = int(self.starts[first])
            return self.parts[first][start - offset : stop - offset]
        return self.take(np.arange(start, stop))

    def whole(self) -> Array:
        """Return the whole array (a view where it is one file)."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


@dataclass(frozen=True)
class Example:
    """One example as it is stored: a pair has two inputs, everything else one."""

    inputs: tuple[Array, ...]
    target: Any
    extras: dict[str, Any] = field(default_factory=dict)  # numbers; arrays where they have a shape


class Split:
    """The examples of one split.

    Arrays (N examples): fixed length ``inputs`` (N, L[, C]); varying length ``flat`` (total[, C])
    with ``lengths`` (N,); pairs ``pairs`` (N, 2) of rows of the shared documents; next-token
    ``stream`` (total,). ``targets`` (N,) or (N, T, D). Extras (N, …).
    """

    def __init__(
        self, name: str, spec: Spec, arrays: Mapping[str, Rows], documents: Split | None
    ) -> None:
        self.name, self.spec, self.arrays, self.documents = name, spec, dict(arrays), documents
        if "lengths" in self.arrays:
            self.starts = np.cumsum([0, *self.arrays["lengths"].whole()], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of examples (of a next-token split: of tokens)."""
        for key in ("targets", "lengths", "inputs", "stream"):
            if key in self.arrays:
                return len(self.arrays[key])
        raise AssertionError("a split without arrays")

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def lengths(self) -> Ints:
        """Length of each example (N,); of a pair the longer of its two documents."""
        if self.spec.pair:
            assert self.documents is not None
            pairs = self.arrays["pairs"].whole()
            return np.asarray(self.documents.lengths[pairs].max(axis=1))
        if "lengths" in self.arrays:
            return self.arrays["lengths"].whole().astype(np.int64)
        if self.spec.kind == "next_token":
            raise DataError(
                "a next-token split is one stream; its windows have the length you choose"
            )
        return np.full(len(self), self.arrays["inputs"].shape[1], np.int64)

    def sequence(self, index: int) -> Array:
        """Return the input of example ``index`` without padding: (length,) or (length, C)."""
        if "flat" in self.arrays:
            return self.arrays["flat"].slice(int(self.starts[index]), int(self.starts[index + 1]))
        return np.asarray(self.arrays["inputs"].slice(index, index + 1)[0])

    def __getitem__(self, index: int) -> Example:
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        index %= len(self)
        if self.spec.kind == "next_token":
            raise DataError("a next-token split has no examples; use Batches, or .stream")
        if self.spec.pair:
            assert self.documents is not None
            pair = self.arrays["pairs"].slice(index, index + 1)[0]
            inputs = tuple(self.documents.sequence(int(document)) for document in pair)
        else:
            inputs = (self.sequence(index),)
        target = self.arrays["targets"].slice(index, index + 1)[0]
        rows = {key: self.arrays[key].slice(index, index + 1)[0] for key in self.spec.extras}
        extras = {key: row if row.ndim else int(row) for key, row in rows.items()}
        return Example(inputs, target, extras)

    @property
    def stream(self) -> Array:
        """Return the tokens of a next-token split (total,)."""
        return self.arrays["stream"].whole()

    @property
    def targets(self) -> Array:
        """Return all targets: (N,) classes or (N, T, D)."""
        return self.arrays["targets"].whole()

    def extra(self, name: str) -> Array:
        """Return one extra value of every example (N, …), for example ``operator``."""
        if name not in self.spec.extras:
            raise DataError(f"extra must be one of {list(self.spec.extras)}, got {name!r}")
        return self.arrays[name].whole()

    @property
    def nbytes(self) -> int:
        """Size of everything that batches of this split are made from."""
        size = sum(rows.nbytes for rows in self.arrays.values())
        return size + (self.documents.nbytes if self.documents else 0)


class Task:
    """A prepared data set: ``task.spec``, ``task.identity`` and ``task["train"]``.

    Args:
        folder: where :func:`longlens.tasks.prepare` put it.
        verify: see :func:`longlens.tasks.manifest.verify_files`.
    """

    def __init__(self, folder: Path, verify: Verify = "full") -> None:
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        verify_files(folder, self.manifest, verify)
        self.name, self.spec, self.options = (
            self.manifest.name,
            self.manifest.spec,
            self.manifest.options,
        )
        documents = self._split("documents", None) if self.spec.pair else None
        self.splits = {name: self._split(name, documents) for name in SPLITS}

    def _split(self, name: str, documents: Split | None) -> Split:
        arrays = {
            key.removeprefix(f"{name}/"): Rows.open(self.folder, entry)
            for key, entry in self.manifest.arrays.items()
            if key.startswith(f"{name}/")
        }
        spec = replace(self.spec, pair=False) if name == "documents" else self.spec
        self._check_arrays(name, arrays)
        return Split(name, spec, arrays, documents)

    def _check_arrays(self, name: str, arrays: Mapping[str, Rows]) -> None:
        """Raise unless a split has the arrays that the spec promises, one row an example."""
        varying = {"flat", "lengths"} <= set(arrays)
        content = {"flat", "lengths"} if varying else {"inputs"}
        if self.spec.kind == "next_token":
            needed = {"stream"}
        elif name == "documents":
            needed = {"flat", "lengths"}
        else:
            needed = ({"pairs"} if self.spec.pair else content) | {"targets", *self.spec.extras}
        if missing := sorted(needed - set(arrays)):
            raise DataError(f"{self.folder}: {name} has no array {missing[0]}")
        counts = {len(arrays[key]) for key in needed - {"flat"}}
        if name != "documents" and counts != {self.manifest.examples[name]}:
            raise DataError(f"{self.folder}: the arrays of {name} have {sorted(counts)} rows")
        if "flat" in needed:
            total = int(arrays["lengths"].whole().sum(dtype=np.int64))
            if total != len(arrays["flat"]):
                raise DataError(f"{self.folder}: the lengths of {name} add up to {total}")

    @property
    def identity(self) -> str:
        """The hash that names these data in records."""
        return self.manifest.identity

    @property
    def examples(self) -> dict[str, int]:
        """How many examples each split has."""
        return dict(self.manifest.examples)

    def describe(self) -> dict[str, Any]:
        """What records say about these data."""
        return {
            "identity": self.identity,
            "name": self.name,
            "version": self.manifest.version,
            "options": dict(self.options),
            "examples": self.examples,
            "stands_in_for": self.spec.stands_in_for,
            "selected_on": self.selected_on,
        }

    @property
    def selected_on(self) -> str:
        """What a model chosen by the validation split is chosen on: "test" if that is the same."""
        contents = [
            {
                key.removeprefix(f"{split}/"): [self.manifest.files[f].sha256 for f in entry.files]
                for key, entry in self.manifest.arrays.items()
                if key.startswith(f"{split}/")
            }
            for split in ("validation", "test")
        ]
        return "test" if contents[0] == contents[1] else "validation"

    def __getitem__(self, split: str) -> Split:
        if split not in self.splits:
            raise DataError(f"split must be one of {list(self.splits)}, got {split!r}")
        return self.splits[split]

    def __repr__(self) -> str:
        counts = " / ".join(f"{self.examples[split]:,}" for split in SPLITS)
        return f"Task({self.name!r}, {counts}, identity {self.identity[:16]})"

    def array(self, name: str) -> Array:
        """Return an array that belongs to no split, for example ``vocabulary/text``."""
        if name not in self.manifest.arrays:
            raise DataError(f"array must be one of {sorted(self.manifest.arrays)}, got {name!r}")
        return Rows.open(self.folder, self.manifest.arrays[name]).whole()
