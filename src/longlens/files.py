"""Files that are whole or not there, whatever happens: a kill, a full disk, a power cut.

Everything that counts is written in one order: content under a temporary name, flushed to the disk;
then the name that makes it count; then the folder that holds the name. New folders are flushed into
their parents. So the last thing written decides, and what it decides about is on the disk already.
Needs the standard library only, and filelock (which comes with torch) to lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PARTIAL = ".partial"
Content = bytes | Callable[[BinaryIO], object]
"""What to write: bytes, or a function that writes to an open file."""


class DiskFullError(ValueError):
    """There is no room for a file; what was there before is whole."""


class BusyError(ValueError):
    """Another process holds the lock."""


@contextmanager
def disk_faults_named(path: Path) -> Iterator[None]:
    """Turn a full disk into a message that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"the disk is full: {path} could not be written; what was there before is whole: "
                "make room and give the same command again"
            ) from error
        raise


# ---------------------------------------------------------------------- writing


def sync_folder(folder: Path) -> None:
    """Make new, renamed and deleted names inside ``folder`` survive a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # always on Windows; elsewhere of a folder that may not be read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(descriptor)


def rename_file(path: Path, target: Path) -> None:
    """Give a whole file the name ``target``, also after a power cut, whoever wrote its content."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    path.replace(target)
    sync_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its parents, unless they are there, so that they survive a power cut."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


class _Hashing:
    """A binary file that counts and hashes what passes through it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256, self.bytes = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self.file.write(data)


def write_file(path: Path, content: Content) -> tuple[int, str]:
    """Write a file and flush it to the disk; return its size and sha256. Not atomic by itself.

    The hash is taken of the bytes on their way to the disk, so it also convicts a disk that does
    not store what it was given.
    """
    with disk_faults_named(path), path.open("wb") as file:
        hashing = _Hashing(file)
        if isinstance(content, bytes):
            hashing.write(content)
        else:
            content(hashing)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    return hashing.bytes, hashing.sha256.hexdigest()


def replace_file(path: Path, content: Content) -> tuple[int, str]:
    """Put ``content`` at ``path``, whole or not at all; return its size and sha256.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> size, sha256 = replace_file(path, b"hello")
    >>> size, sha256 == sha256_file(path)
    (5, True)
    """
    temporary = path.with_name(path.name + PARTIAL)
    try:
        written = write_file(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return written


def write_output(path: Path, content: bytes) -> None:
    """Write a file that the user named: whole or not at all; a device or a pipe is written to."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    make_folder(path.parent)
    replace_file(path.resolve(), content)  # a link stays a link


@contextmanager
def folder_in_place(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends without an error.

    The block flushes the files that it writes there (:func:`write_file`).
    """
    temporary = target.with_name(target.name + PARTIAL)
    if temporary.exists():
        shutil.rmtree(temporary)
    make_folder(temporary)
    try:
        with disk_faults_named(target):
            yield temporary
            rename_folder(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def rename_folder(folder: Path, target: Path) -> None:
    """Give a folder whose files are flushed the name ``target``, which must not be taken yet."""
    sync_folder(folder)
    folder.rename(target)
    sync_folder(target.parent)
    if folder.parent != target.parent:
        sync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there, so that no half of it is ever found under its name."""
    doomed = folder.with_name(folder.name + PARTIAL)
    if doomed.exists():
        _delete(doomed)
    if folder.exists():
        folder.rename(doomed)
        sync_folder(folder.parent)
        _delete(doomed)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:  # a damaged disk may have put anything there
        path.unlink()


# ---------------------------------------------------------------------- JSON and hashes


def sha256_of(data: bytes | str) -> str:
    """Sha256 of bytes, or of a text in UTF-8, as lower-case hexadecimal.

    >>> sha256_of("a") == sha256_of(b"a")
    True
    """
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_file(path: Path) -> str:
    """Sha256 of a file's bytes, as lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(values: Mapping[str, Any]) -> bytes:
    """Readable JSON; numbers that are not finite, which JSON lacks, become null."""
    return (json.dumps(finite(values), indent=1, allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as None.

    >>> finite({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    return value


def canonical_json(value: Any) -> str:
    """The one way in which JSON that is going to be hashed is written."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def digest(value: Any) -> str:
    """Sha256 of a value's canonical JSON."""
    return sha256_of(canonical_json(value))


def seal(values: Mapping[str, Any]) -> bytes:
    """JSON that carries the hash of its own content under the key ``checksum``."""
    return canonical_json({**values, "checksum": digest(values)}).encode()


def unseal(raw: bytes) -> dict[str, Any]:
    """Read what :func:`seal` wrote; any byte that differs raises ValueError.

    >>> unseal(seal({"step": 3}))
    {'step': 3}
    """
    values = json.loads(raw)
    if not isinstance(values, dict) or canonical_json(values).encode() != raw:
        raise ValueError("not in canonical form")
    if values.pop("checksum", None) != digest(values):
        raise ValueError("its checksum does not match its content")
    return values


# ---------------------------------------------------------------------- locks


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file ``path``; where that cannot be told, one may."""
    if not path.exists():
        return False
    try:
        with locked(path, str(path)):
            return False
    except (ValueError, OSError):  # BusyError, or a file system without locks
        return True


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; the lock goes with the process, however it ends.

    Args:
        path: of the lock file; its folder is made where it is missing.
        what: is worked on, for messages.
        wait: for another process that holds the lock. Whoever waited looks again what is there.

    Raises:
        BusyError: another process holds it, and ``wait`` is False.
        ValueError: the file system has no locks.
    """
    from filelock import FileLock, Timeout

    make_folder(path.parent)
    path.open("ab").close()  # a folder that cannot be written to is no matter of locks
    # A soft lock, a file that exists, would outlive a process that is killed.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not wait:
                raise BusyError(f"another process is working on {what}; wait for it") from None
            print(f"{what}: another process is working on it, waiting", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be locked ({error.strerror}), and without a lock two processes at once "
            "could spoil each other's work; choose a folder on a file system that has flock"
        ) from None
    try:
        yield
    finally:
        lock.release()
