"""Where a queue lives: a journal file (the default), or a database for a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longlens.files import HAS_LOCKS, take_lock

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def need_optuna() -> Any:
    """Import Optuna, quietly, or say how to get it."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise ValueError(
            "queues and searches need Optuna: pip install 'longlens[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_storage(where: str | Path) -> BaseStorage:
    """Open the storage ``where``: a path (a journal file), or a URL such as ``postgresql://…``."""
    optuna = need_optuna()
    if "://" in str(where):
        try:
            storage: BaseStorage = optuna.storages.get_storage(str(where))
        except Exception as error:  # SQLAlchemy's and its drivers' own
            raise ValueError(f"the database {where} cannot be opened: {error}") from None
        return storage
    path = Path(where)
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=_journal_lock(path))
    journal: BaseStorage = optuna.storages.JournalStorage(backend)
    return journal


def _journal_lock(path: Path) -> Any:
    if HAS_LOCKS:
        return JournalLock(path)
    return need_optuna().storages.journal.JournalFileOpenLock(str(path))


class JournalLock:
    """A lock that goes with the process that holds it, however that ends.

    Optuna's own locks are files: after a kill in the wrong moment everybody waits for half a minute
    before somebody breaks the lock. And a line that a kill cut short would be joined with the next
    one and make the journal unreadable; whoever gets the lock next removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._file = _flock(self.path)
        remove_torn_line(self.path)
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _flock(path: Path) -> int:
    """Wait for the lock beside ``path``; closing what is returned gives it back."""
    lock = Path(f"{path}.lock")
    file = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        take_lock(file, lock, wait=True)
    except BaseException:
        os.close(file)
        raise
    return file


@contextmanager
def claiming(where: str | Path) -> Iterator[None]:
    """Hold what makes taking a trial atomic where the storage itself does not.

    The journal and the database servers let one worker win. SQLite knows no row locks: two workers
    that look at the same moment would both win, so there they take turns by a lock file.
    """
    prefix = "sqlite:///"
    if not str(where).startswith(prefix) or not HAS_LOCKS:
        yield
        return
    file = _flock(Path(str(where).removeprefix(prefix).split("?")[0]))
    try:
        yield
    finally:
        os.close(file)


def remove_torn_line(path: Path) -> None:
    """Cut a file of lines after its last line end."""
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        if end < size:
            file.truncate(end)
