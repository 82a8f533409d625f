"""Data sets of the long-range literature, prepared once, checked always, in one call.

>>> import tempfile
>>> task = load("listops", root=tempfile.mkdtemp(), train=8, validation=2, test=2)
>>> len(task["train"]), task.spec.num_classes, task.spec.vocab_size
(8, 10, 16)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from longlens.tasks.build import find_folder, make_options, prepare_task
from longlens.tasks.cache import cache_root
from longlens.tasks.data import Example, Split, Task
from longlens.tasks.errors import DataError
from longlens.tasks.hub import import_dataset, to_datasets
from longlens.tasks.identity import check_made_from
from longlens.tasks.imported import read_imported
from longlens.tasks.manifest import Manifest, Verify
from longlens.tasks.own import bring_ucr, import_file
from longlens.tasks.registry import TASKS, find_task
from longlens.tasks.spec import Spec
from longlens.tasks.user import import_arrays

if TYPE_CHECKING:
    from longlens.tasks.batches import Batch, Batches
    from longlens.tasks.torch_data import TaskDataset

__all__ = [
    "TASKS",
    "Batch",
    "Batches",
    "DataError",
    "Example",
    "Spec",
    "Split",
    "Task",
    "TaskDataset",
    "import_arrays",
    "import_dataset",
    "import_file",
    "load",
    "prepare",
    "to_datasets",
]


def prepare(
    name: str,
    root: str | Path | None = None,
    *,
    source: str | Path | None = None,
    mirror: str | None = None,
    workers: int = 1,
    quiet: bool = False,
    **options: Any,
) -> Manifest:
    """Make the data set ``name`` under ``root`` unless it is there; return its manifest.

    Args:
        name: a name of :data:`TASKS`, or ``retrieval-NAME`` for a corpus of your own.
        root: the cache; default ``$LONGLENS_DATA``, else the platform's cache folder.
        source: what you have already (``--from``): the official archive, its files, or arrays.
            Without it, tasks that need files download them.
        mirror: an address to download from instead of the official one.
        workers: processes for the generators; the result does not depend on it.
        quiet: no progress on standard error.
        options: the task's own options, for example ``size=64`` for ``pathx``.
    """
    info = find_task(name)
    task_options = make_options(info, options)
    folder, manifest = prepare_task(
        info, root, task_options, source=source, mirror=mirror, workers=workers, quiet=quiet
    )
    check_made_from(folder, manifest, root)
    return manifest


def load(
    name: str,
    root: str | Path | None = None,
    *,
    verify: Verify = "full",
    workers: int = 1,
    **options: Any,
) -> Task:
    """Open a prepared task; every file is checked against its sha256 first.

    Tasks that need no files are generated on first use. The others must have been prepared
    (``longlens data prepare NAME``): loading never downloads.

    Args:
        name: as for :func:`prepare`, the name of a task that you imported, or ``ucr:NAME``, a set
            of an installed package (see :func:`import_file`).
        root: the cache.
        verify: see :func:`longlens.tasks.manifest.verify_files`.
        workers: processes for the generators.
        options: the task's own options; they are part of what is looked up.
    """
    if name.startswith("ucr:"):
        name = bring_ucr(name, root)
    imported = read_imported(root, name, lambda folder: Task(folder, verify))
    if imported is not None:
        if options:
            raise DataError(f"{name} is imported and has no options, got {sorted(options)}")
        return imported
    info = find_task(name)
    task_options = make_options(info, options)
    folder = find_folder(info, root, task_options)
    if not folder.exists():
        if info.needs_source or getattr(task_options, "origin", "generated") != "generated":
            given = "".join(f" --set {key}={value}" for key, value in options.items())
            raise DataError(
                f"{name} is not prepared under {cache_root(root)}; run "
                f"`longlens data prepare {name}{given}` (add --from PATH if you have its files)"
            )
        prepare_task(info, root, task_options, workers=workers)
    task = Task(folder, verify)
    if task.name != info.name:
        raise DataError(f"{folder} holds {task.name}, not {info.name}; delete it and prepare again")
    check_made_from(folder, task.manifest, root)
    return task


def __getattr__(name: str) -> Any:
    if name in ("Batch", "Batches"):  # these need torch, and nothing else does
        from longlens.tasks import batches

        return getattr(batches, name)
    if name == "TaskDataset":
        from longlens.tasks.torch_data import TaskDataset

        return TaskDataset
    raise AttributeError(f"module 'longlens.tasks' has no attribute {name!r}")
