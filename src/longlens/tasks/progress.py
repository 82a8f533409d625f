"""Progress on standard error: a bar in a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_INTERVAL = 10.0  # seconds between two plain lines


class Bar:
    """A live bar with a text beside it; false where there is no terminal, or no rich.

    >>> bool(Bar("demo", total=3, quiet=True))
    False
    """

    def __init__(
        self, label: str, total: int | None, completed: int = 0, quiet: bool = False
    ) -> None:
        self._bar: Any = None
        if quiet or not sys.stderr.isatty():
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:  # the library part installs without rich
            return
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._bar.add_task(label, total=total, completed=completed, text="")
        self._bar.start()

    def __bool__(self) -> bool:
        return self._bar is not None

    def update(self, completed: int, text: str) -> None:
        """Show how much is done, and a text beside it."""
        self._bar.update(self._task, completed=completed, text=text)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, highlight=False)

    def close(self) -> None:
        """End the live view."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Progress:
    """Counts work that is being done; use as a context manager.

    >>> with Progress("demo", total=3, quiet=True) as progress:
    ...     progress.advance(3)
    >>> progress.done
    3
    """

    def __init__(
        self, label: str, total: int | None, unit: str = "examples", quiet: bool = False
    ) -> None:
        self.label, self.total, self.unit, self.quiet = label, total, unit, quiet
        self.done = 0

    def __enter__(self) -> Progress:
        self._started = self._last = time.monotonic()
        self._bar = Bar(self.label, self.total, quiet=self.quiet)
        return self

    def advance(self, count: int) -> None:
        """Report that ``count`` more units are done."""
        self.done += count
        if self._bar:
            self._bar.update(self.done, self._count())
        elif time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._last = time.monotonic()
            self._line()

    def _count(self) -> str:
        of_total = f" of {self.total:,}" if self.total is not None else ""
        return f"{self.done:,}{of_total} {self.unit}"

    def _line(self) -> None:
        if not self.quiet:
            seconds = time.monotonic() - self._started
            line = f"{self.label}: {self._count()}, {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.close()
        elif kind is None:
            self._line()
