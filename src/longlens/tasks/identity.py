"""Which data a task is at the moment, and what they will be, without opening them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longlens.tasks.build import find_folder, make_options
from longlens.tasks.errors import DataError
from longlens.tasks.imported import read_imported
from longlens.tasks.manifest import Manifest, read_manifest
from longlens.tasks.mix import easier_options, mixed_identity
from longlens.tasks.registry import find_task
from longlens.tasks.spec import Spec


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
    imported = read_imported(root, name, lambda folder: read_manifest(folder).identity)
    if imported is not None:
        return imported
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


def expected_version(name: str, **options: Any) -> int | None:
    """The version of the data that would be made now; None for what the user imported.

    >>> expected_version("listops"), expected_version("mine")
    (1, None)
    """
    try:
        info = find_task(name)
    except DataError:
        return None
    return info.version_of(make_options(info, options))


def expected_spec(name: str, **options: Any) -> Spec:
    """The spec that the task ``name`` will have when it is prepared with ``options``.

    It is exact but for ``max_length``, which is the longest that the published data or the
    generator's options allow, and the vocabulary of a text that is not the published one.

    >>> expected_spec("pathx", size=64).max_length
    4096
    """
    info = find_task(name)
    if info.spec is None:
        raise DataError(f"the shape of {name} is not known before it is prepared")
    return info.spec(make_options(info, options))
