"""Which data a task is at the moment, without opening them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longlens.tasks.build import find_folder, make_options
from longlens.tasks.errors import DataError
from longlens.tasks.imported import imported_folder
from longlens.tasks.manifest import Manifest, read_manifest
from longlens.tasks.mix import easier_options, mixed_identity
from longlens.tasks.registry import find_task


def current_identity(
    name: str, root: str | Path | None = None, *, mix_easier: bool = False, **options: Any
) -> str | None:
    """The identity of the data that ``load`` would open; None where there are none.

    Only manifests are read, so this takes milliseconds.

    Args:
        name: of the task.
        root: the cache.
        mix_easier: of the task with its easier sets, see :mod:`longlens.tasks.mix`.
        options: the task's own.

    >>> import tempfile, longlens.tasks as tasks
    >>> root, options = tempfile.mkdtemp(), dict(length=16, train=4, validation=1, test=1)
    >>> before = current_identity("reverse", root, **options)
    >>> task = tasks.load("reverse", root, **options)
    >>> before, current_identity("reverse", root, **options) == task.identity
    (None, True)
    """
    if mix_easier:
        changes: list[dict[str, Any]] = [{}, *easier_options(name, **options)]
        parts = [current_identity(name, root, **{**options, **change}) for change in changes]
        known = [part for part in parts if part is not None]
        return mixed_identity(known) if len(known) == len(parts) else None
    folder = imported_folder(root, name)
    if folder is not None:
        return _imported_identity(root, name, folder)
    try:
        info = find_task(name)
    except DataError:  # imported once, and deleted since
        return None
    prepared = find_folder(info, root, make_options(info, options))
    if not prepared.exists():
        return None
    manifest = read_manifest(prepared)
    check_made_from(prepared, manifest, root)
    return manifest.identity


def check_made_from(folder: Path, manifest: Manifest, root: str | Path | None) -> None:
    """Raise for a data set made from a task whose data were replaced since."""
    for source in manifest.sources:
        if "task" not in source:
            continue
        now = current_identity(source["task"], root, **source["options"])
        if now not in (None, source["identity"]):
            raise DataError(
                f"{folder} was made from other data of {source['task']}, which has identity "
                f"{now[:16]}… now, had {source['identity'][:16]}…; delete it and prepare it again"
            )


def _imported_identity(root: str | Path | None, name: str, folder: Path | None) -> str | None:
    while folder is not None:
        try:
            return read_manifest(folder).identity
        except DataError:
            now = imported_folder(root, name)
            if now == folder:
                raise
            folder = now  # it was replaced at this moment
    return None
