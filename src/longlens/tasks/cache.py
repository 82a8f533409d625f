"""Where prepared data sets and downloads live, and the key under which each is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longlens.files import digest
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


def dataset_folder(
    root: str | Path | None, name: str, version: int, options: Mapping[str, Any]
) -> Path:
    """Folder of the data set ``name`` made with ``options`` by its builder's ``version``."""
    key = digest({"format": FORMAT, "name": name, "version": version, "options": dict(options)})
    return cache_root(root) / name / key[:16]


def download_folder(root: str | Path | None) -> Path:
    """Folder where downloaded archives are kept."""
    return cache_root(root) / "downloads"


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
