"""Where prepared data sets and downloads live, and which names they may have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from longlens.tasks.errors import DataError

FORMAT = 1  # of the files at rest; a change makes every cache folder of the old format unreachable


def cache_root(root: str | Path | None = None) -> Path:
    """Return the cache folder: ``root`` if given, else ``$LONGLENS_DATA``, else the platform's.

    >>> cache_root("/data/longlens").as_posix()
    '/data/longlens'
    """
    chosen = root or os.environ.get("LONGLENS_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "longlens"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "longlens"
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "longlens"


def check_name(name: str) -> str:
    """Return ``name`` if it can be a folder's name everywhere; raise otherwise.

    >>> check_name("my-task_2")
    'my-task_2'
    """
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    if not name or len(name) > 64 or not set(name) <= allowed or name[0] in "-.":
        raise DataError(
            f"name must be 1 to 64 of a-z, 0-9, '-', '_' and '.', not starting with '-' or '.'; "
            f"got {name!r}"
        )
    return name
