"""Where imported data lie: in ``imported/NAME/1``, ``2`` …, of which the highest number counts.

Replacing the data gives the next number to a folder that is complete, by one rename, and deletes
the one before afterwards. So readers find the old data or the new, whole, and whoever is killed on
the way has changed nothing. What is not complete lies in ``imported/.NAME.partial``; no task's name
begins with a dot.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from longlens.files import remove_folder
from longlens.tasks.cache import cache_root, check_name
from longlens.tasks.errors import DataError
from longlens.tasks.manifest import FILENAME
from longlens.tasks.registry import TASKS

IMPORTED = "imported"
T = TypeVar("T")


def home_folder(root: str | Path | None, name: str) -> Path | None:
    """Folder of all that was imported as ``name``; None where the name belongs to longlens."""
    if name in TASKS or name.startswith("retrieval-"):
        return None
    return cache_root(root) / IMPORTED / check_name(name)


def _numbers(home: Path) -> list[int]:
    if not home.is_dir():
        return []
    return sorted(int(path.name) for path in home.iterdir() if path.name.isdigit())


def imported_folder(root: str | Path | None, name: str) -> Path | None:
    """Folder of the data that are the task ``name`` now; None if there are none."""
    home = home_folder(root, name)
    if home is None:
        return None
    if numbers := _numbers(home):
        return home / str(numbers[-1])
    return home if (home / FILENAME).exists() else None  # as versions before 0.1 imported


def imported_names(root: str | Path | None) -> list[str]:
    """Names of all imported tasks."""
    base = cache_root(root) / IMPORTED
    names = [path.name for path in base.iterdir()] if base.is_dir() else []
    return sorted(
        name
        for name in names
        if not name.startswith(".") and imported_folder(root, name) is not None
    )


def read_imported(root: str | Path | None, name: str, read: Callable[[Path], T]) -> T | None:
    """Read the folder of the imported task ``name``, also while it is replaced; None: no task."""
    folder = imported_folder(root, name)
    while folder is not None:
        try:
            return read(folder)
        except (DataError, OSError):
            now = imported_folder(root, name)
            if now == folder:
                raise
            folder = now  # it was replaced while it was being read
    return None


def next_folder(home: Path) -> Path:
    """The folder that will hold the data that are imported next."""
    return home / str(max(_numbers(home), default=0) + 1)


def remove_others(folder: Path) -> None:
    """Delete what ``folder``, which is complete, has replaced."""
    (folder.parent / FILENAME).unlink(missing_ok=True)
    for path in folder.parent.iterdir():
        if path == folder:
            continue
        if path.name.isdigit():
            remove_folder(path)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
