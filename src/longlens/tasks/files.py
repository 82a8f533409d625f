"""Text and arrays on the disk, free space, and the lock of a data set."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from longlens import files
from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError


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


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, without the byte order mark that spreadsheets write."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8 (byte {error.start}); convert it first") from None


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise before any work is done when ``folder``'s disk has fewer than ``needed`` bytes free."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DataError(
            f"{what} needs {human_bytes(needed)} in {folder}, where {human_bytes(free)} are free; "
            "free some space, or set LONGLENS_DATA (or --root) to a folder on another disk"
        )


def save_array(path: Path, array: Array) -> tuple[int, str]:
    """Write ``array`` as ``.npy`` atomically; return the file's size and sha256."""
    whole = np.ascontiguousarray(array)
    return files.replace_file(
        path, lambda file: np.lib.format.write_array(file, whole, allow_pickle=False)
    )


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; wait while another process holds it.

    Look again inside the block whether ``what`` is there: whoever waited may find it made.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(path, what, wait=True))
        except OSError as error:
            raise DataError(
                f"{path.parent} cannot be written to ({error.strerror}); choose another folder "
                "with LONGLENS_DATA or --root"
            ) from None
        yield
