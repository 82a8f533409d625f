"""Files that are either whole or not there: write beside, flush to the disk, rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no flock; there two processes on one run are not guarded against
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` and flush it to the disk; not atomic by itself."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, whole or not at all."""
    temporary = path.with_name(path.name + PARTIAL)
    try:
        write_file(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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


@contextmanager
def folder_in_place(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends without an error."""
    temporary = target.with_name(target.name + PARTIAL)
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync_folder(temporary)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that no half of it is ever found under its name."""
    doomed = folder.with_name(folder.name + PARTIAL)
    if doomed.exists():
        shutil.rmtree(doomed)
    folder.rename(doomed)
    shutil.rmtree(doomed)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run in ``folder`` for this process; the lock goes with the process, however it ends.

    Raises:
        ValueError: another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"another process is training {folder}; wait for it") from None
        yield
