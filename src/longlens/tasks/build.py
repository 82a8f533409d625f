"""Preparing a data set: from a registry entry, options and a source to a finished folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from longlens.config import did_you_mean, typed
from longlens.files import digest
from longlens.tasks.arrays import Array
from longlens.tasks.cache import FORMAT, cache_root
from longlens.tasks.errors import DataError
from longlens.tasks.fetch import Remote, fetch
from longlens.tasks.files import check_space, locked
from longlens.tasks.manifest import Manifest, read_manifest, verify_files
from longlens.tasks.progress import Progress
from longlens.tasks.sources import Source
from longlens.tasks.spec import Spec
from longlens.tasks.writer import Writer

MakeBlock = Callable[[Any, str, int, int], dict[str, Array]]


@dataclass
class Draft:
    """A data set in the making: its options, where to write, what to read, and how to work."""

    name: str
    options: Any
    writer: Writer
    source: Source | None
    workers: int = 1
    quiet: bool = False

    def need_source(self) -> Source:
        """Return the source; a builder that reads one is never called without."""
        assert self.source is not None
        return self.source

    def blocks(self, make: MakeBlock, sizes: dict[str, int], block_size: int) -> None:
        """Make every split from independent blocks, on ``workers`` processes.

        ``make(options, split, block, count)`` must depend on its arguments alone, which is why the
        result is the same whatever the number of workers and however often the work was cut off.
        """
        todo = []
        for split, size in sizes.items():
            for block, start in enumerate(range(0, size, block_size)):
                todo.append((split, block, min(block_size, size - start)))
        waiting = [item for item in todo if not self.writer.has_block(item[0], item[1])]
        with Progress(self.name, sum(sizes.values()), quiet=self.quiet) as progress:
            progress.advance(sum(count for _, _, count in todo) - sum(c for _, _, c in waiting))
            for (split, block, count), arrays in self._map(make, waiting):
                self.writer.write_block(split, block, arrays)
                progress.advance(count)

    def _map(
        self, make: MakeBlock, items: Sequence[tuple[str, int, int]]
    ) -> Iterator[tuple[tuple[str, int, int], dict[str, Array]]]:
        if self.workers == 1 or len(items) <= 1:
            for item in items:
                yield item, make(self.options, *item)
            return
        pool = ProcessPoolExecutor(
            self.workers,
            mp_context=get_context("spawn"),
            initializer=signal.signal,  # Ctrl-C is for the process that waits for them
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            ahead: list[tuple[tuple[str, int, int], Future[dict[str, Array]]]] = []
            for item in items:
                ahead.append((item, pool.submit(make, self.options, *item)))
                if len(ahead) > 2 * self.workers:  # bounded, so that finished blocks do not pile up
                    first, future = ahead.pop(0)
                    yield first, future.result()
            for first, future in ahead:
                yield first, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class TaskInfo:
    """A registry entry: what ``longlens data list`` shows and how the data are made.

    ``build`` writes the arrays through ``draft.writer`` and returns the spec and the number of
    examples of each split. ``estimate`` says how many bytes the result will need.
    """

    name: str
    summary: str
    length: str
    classes: str
    sizes: str  # train / validation / test
    source: str
    licence: str
    options: type[Any]
    build: Callable[[Draft], tuple[Spec, dict[str, int]]]
    estimate: Callable[[Any], int]
    spec: Callable[[Any], Spec] | None = None  # of data made with the options; may be too long
    remotes: tuple[Remote, ...] = ()
    needs_source: bool = False
    version: int = 1  # of the builder; raised when the same options give other data
    newer: Callable[[Any], int] | None = None  # what to add to it, where only some options do

    def version_of(self, options: Any) -> int:
        """Version of the builder for data made with ``options``."""
        return self.version + (self.newer(options) if self.newer else 0)


def make_options(info: TaskInfo, values: dict[str, Any]) -> Any:
    """Build a task's options from keyword arguments; raise for a name that it does not have."""
    allowed = [field.name for field in fields(info.options)]
    if unknown := sorted(set(values) - set(allowed)):
        hint, listed = did_you_mean(unknown[0], allowed) or ".", ", ".join(allowed)
        raise DataError(f"{info.name} has no option {unknown[0]!r}{hint} Its options: {listed}")
    try:
        values = typed(info.options, values, info.name)
    except ValueError as error:
        raise DataError(f"{info.name}: {error}") from None
    return info.options(**values)


def find_folder(info: TaskInfo, root: str | Path | None, options: Any) -> Path:
    """Folder where the task made with ``options`` is, or would be."""
    version, values = info.version_of(options), asdict(options)
    key = digest({"format": FORMAT, "name": info.name, "version": version, "options": values})
    return cache_root(root) / info.name / key[:16]


def _resolve_source(
    info: TaskInfo,
    root: str | Path | None,
    given: str | Path | None,
    mirror: str | None,
    check: bool,
    quiet: bool,
) -> Source | None:
    if given is not None:
        return Source(Path(given).expanduser().absolute(), info.remotes, check)
    if not info.needs_source:
        return None
    if not info.remotes:
        raise DataError(f"{info.name} has no public address; give what you have with --from PATH")
    folder = cache_root(root) / "downloads" / info.name
    for remote in info.remotes:
        fetch(remote, folder, mirror=mirror, quiet=quiet)
    if len(info.remotes) == 1:
        return Source(folder / info.remotes[0].filename)
    return Source(folder)


def prepare_task(
    info: TaskInfo,
    root: str | Path | None,
    options: Any,
    *,
    source: str | Path | None = None,
    mirror: str | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> tuple[Path, Manifest]:
    """Make the data set unless it is already there; return its folder and manifest."""
    if workers < 1:
        raise DataError(f"workers must be 1 or more, got {workers}")
    folder = find_folder(info, root, options)
    values = asdict(options)
    with locked(folder.parent / f".{folder.name}.lock", info.name):
        if folder.exists():
            manifest = read_manifest(folder)
            if (manifest.name, manifest.options) != (info.name, values):
                raise DataError(f"{folder} holds another data set ({manifest.name}); delete it")
            verify_files(folder, manifest)
            return folder, manifest
        check_space(folder, int(1.05 * info.estimate(options)), f"preparing {info.name}")
        subset = bool(values.get("subset", False))
        opened = _resolve_source(info, root, source, mirror, not subset, quiet)
        writer = Writer(
            folder, info.name, info.version_of(options), values, fresh=opened is not None
        )
        try:
            draft = Draft(info.name, options, writer, opened, workers, quiet)
            spec, examples = info.build(draft)
            records = opened.records() if opened else []
            return folder, writer.finish(spec, examples, records)
        except Exception:
            if opened is not None:  # nothing half-done stays; generated blocks are whole and reused
                writer.discard()
            raise


def default_workers() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
