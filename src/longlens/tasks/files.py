"""Files that are either whole or not there: atomic writes, checksums, disk space, locks.

Every file under the cache is written beside its place under a temporary name, flushed to the disk
and renamed. A process killed at any moment leaves the old file, the new file or no file, never a
part of one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from longlens.tasks.errors import DataError

try:
    import fcntl
except ImportError:  # Windows has no flock; there two writers at once are not guarded against
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp"
_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Sha256 of a file's bytes, as lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def human_bytes(count: float) -> str:
    """Spell a number of bytes for people.

    >>> human_bytes(36_445_475)
    '36.4 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise before any work is done when ``folder``'s disk has fewer than ``needed`` bytes free."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DataError(
            f"{what} needs {human_bytes(needed)} in {folder}, where {human_bytes(free)} are free; "
            "free some space, or set LONGLENS_DATA (or --root) to a folder on another disk"
        )


def fsync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut (Windows cannot: a no-op there)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write`` on a temporary file, then flush it to the disk and rename it to ``path``.

    Any failure removes the temporary file; a full disk becomes a :class:`DataError`.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk is full: {path} could not be written") from error
        raise
    fsync_folder(path.parent)


class _HashingFile:
    """A binary file that hashes what passes through it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self.file.write(data)


def save_array(path: Path, array: npt.NDArray[Any]) -> tuple[int, str]:
    """Write ``array`` as ``.npy`` atomically; return the file's size and sha256.

    The hash is taken of the bytes on their way to the disk, so it also convicts a disk that does
    not store what it was given.
    """
    counted: list[_HashingFile] = []

    def write(file: BinaryIO) -> None:
        hashing = _HashingFile(file)
        counted.append(hashing)
        np.lib.format.write_array(
            hashing,
            np.ascontiguousarray(array),
            allow_pickle=False,
        )

    atomic_write(path, write)
    return counted[0].bytes, counted[0].sha256.hexdigest()


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; wait while another process holds it.

    Look again inside the block whether ``what`` is there: whoever waited may find it made. The lock
    dies with its process, so a killed run never blocks the next one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("ab")
    except OSError as error:
        raise DataError(
            f"{path.parent} cannot be written to ({error.strerror}); choose another folder with "
            "LONGLENS_DATA or --root"
        ) from None
    with opened as file:
        if fcntl is not None:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{what}: another process is preparing it, waiting", file=sys.stderr)
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            except OSError as error:
                raise DataError(f"{path} cannot be locked ({error.strerror})") from None
        yield
